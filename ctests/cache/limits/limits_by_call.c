/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdmamr_set_cache_limits: before the cache starts, a program sets the limits that the environment
 * sets otherwise. Wrong calls, and calls after the start, change nothing.
 */
#include <rdmamr.h>
#include "../../lib/observe.h"

enum { MOST = 2, COUNT = 6 };

static struct pair pair;
static char *memory;

static int set(struct rdmamr_cache_limits limits)
{
	return rdmamr_set_cache_limits(&limits, sizeof(limits));
}

static void wrong_calls(void)
{
	static const struct rdmamr_cache_limits none = { 0 };
	struct {
		struct rdmamr_cache_limits known;
		uint64_t newer;
	} longer = { { RDMAMR_UNCHANGED, RDMAMR_UNCHANGED, RDMAMR_UNCHANGED, RDMAMR_UNCHANGED }, 7 };

	is(rdmamr_set_cache_limits(NULL, sizeof(none)), EINVAL, "NULL: EINVAL");
	is(rdmamr_set_cache_limits(&none, 0), EINVAL, "of 0 bytes: EINVAL");
	is(rdmamr_set_cache_limits(&none, 12), EINVAL, "of 12 bytes: EINVAL");
	is(set((struct rdmamr_cache_limits){ 1000000000000, 0, 0, 0 }), EINVAL, "a linger time of 10^12 ms: EINVAL");
	is(set((struct rdmamr_cache_limits){ 0, 1000000000000, 0, 0 }), EINVAL, "of regions with remote rights: EINVAL");
	longer.known.max_idle = 0;
	is(rdmamr_set_cache_limits(&longer.known, sizeof(longer)), E2BIG, "a limit that the library does not know: E2BIG");
	longer.newer = RDMAMR_UNCHANGED;
	longer.known.max_idle = RDMAMR_UNCHANGED;
	is(rdmamr_set_cache_limits(&longer.known, sizeof(longer)), 0, "one that is RDMAMR_UNCHANGED: 0");
}

/* Registers and deregisters several ranges. Returns how many are idle then. */
static int idle_after(int access)
{
	for (int n = 0; n < COUNT; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, memory + 2 * n * PAGE, PAGE, access);

		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
	return (int)stats().idle;
}

/* A child in which the cache has not started yet. Its parent has opened no device. */
static int in_child(int (*function)(void))
{
	pid_t pid = fork();
	int status;

	must(pid >= 0);
	if (!pid) {
		relaxed_open(&pair);
		_exit(function());
	}
	must(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* At a tick the cleaner ends those beyond the limit. */
static uint64_t most = MOST;

static int number(void)
{
	idle_after(LOCAL_AND_REMOTE);
	return comes(stats().idle <= most) ? (int)stats().idle : 100;
}

/* Those without remote rights, and 10 times all. */
static int each(void)
{
	int local = idle_after(IBV_ACCESS_LOCAL_WRITE);

	return local + 10 * idle_after(LOCAL_AND_REMOTE);
}

int main(int argc, char **argv)
{
	const uint64_t same = RDMAMR_UNCHANGED;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (!rdmamr_set_cache_limits)
		skip_all("the program runs without the library");
	memory = pages(2 * COUNT);
	wrong_calls();
	is(in_child(each), COUNT + 10 * 2 * COUNT, "wrong calls have changed nothing: all regions stay");
	is(rdmamr_set_cache_limits(&(struct rdmamr_cache_limits){ .linger_local = 0 }, sizeof(uint64_t)), 0,
	   "a shorter structure: 0");
	is(in_child(each), 0 + 10 * COUNT, "regions without remote rights do not stay, the others do");
	is(set((struct rdmamr_cache_limits){ 3600000, 0, same, same }), 0, "the other way round: 0");
	is(in_child(each), COUNT + 10 * COUNT, "those without remote rights stay, the others do not");
	is(set((struct rdmamr_cache_limits){ 3600000, 3600000, MOST, same }), 0, "at most %d regions: 0", MOST);
	is(in_child(number), MOST, "as many stay");
	is(set((struct rdmamr_cache_limits){ same, same, COUNT, PAGE }), 0, "at most a page: 0");
	most = 1;
	is(in_child(number), 1, "one stays");
	relaxed_open(&pair);
	must(idle_after(LOCAL_AND_REMOTE) <= COUNT);
	is(set((struct rdmamr_cache_limits){ same, same, 0, same }), EBUSY, "after the start: EBUSY");
	ok(comes(stats().idle == 1), "and nothing changes");
	return relaxed_close(&pair);
}
