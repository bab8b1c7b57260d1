/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The watch splits memory into mappings, of which a process may have vm.max_map_count. The cache
 * must not use them up: all registrations succeed, the program can still map memory, and a flush
 * gives the mappings back. Tests a limit that is low when the library is loaded, and one that is
 * lowered later; in one big mapping, and in one that the program has split nearly as far as it may.
 *
 * Runs only in the machine of vm/, since the limit is global.
 */
#include "../../lib/observe.h"

enum { ROOM = 1500, SCATTERED = 1200, SPARE = 60 };
#define LIMIT_FILE "/proc/sys/vm/max_map_count"

static struct pair pair;

static int limit(int set)
{
	FILE *file = fopen(LIMIT_FILE, set ? "we" : "re");
	int value = -1;

	if (!file)
		return -1;
	if (set)
		value = fprintf(file, "%d\n", set) > 0 ? set : -1;
	else if (fscanf(file, "%d", &value) != 1)
		value = -1;
	return fclose(file) ? -1 : value;
}

/*
 * Registers one page of each `step`, relaxed, all at once and then in turn; moves data in some of
 * them.
 */
static void scattered(const char *name, char *memory, int step)
{
	static struct ibv_mr *regions[SCATTERED];
	int failed = 0, stale = 0, moved = 0;

	for (int n = 0; n < SCATTERED; n++) {
		regions[n] = register_region(pair.pd, memory + (long)n * step * PAGE, PAGE, LOCAL_AND_REMOTE);
		failed += !regions[n];
	}
	is(failed, 0, "%s: %d registrations at once", name, SCATTERED);
	for (int n = 0; n < SCATTERED; n++)
		failed += regions[n] && deregister_region(regions[n]) != 0;
	is(failed, 0, "%s: all deregistered", name);
	for (int n = 0; n < SCATTERED; n += 40, moved++) {
		char *at = memory + (long)n * step * PAGE;

		if (n % 3 == 0)
			must(madvise(at, PAGE, MADV_DONTNEED) == 0);
		else if (n % 3 == 1)
			must(syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) == 0);
		stale += !lands(&pair, at, PAGE);
	}
	is(stale, 0, "%s: data lands in each of %d, after a change too", name, moved);
}

/* Counts the pages that the program can still map, each a mapping of its own, and unmaps them. */
static int can_map(int most)
{
	static void *mapped[ROOM];
	int count = 0;

	for (; count < most; count++) {
		mapped[count] = mmap(NULL, PAGE, count % 2 ? PROT_READ : PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (mapped[count] == MAP_FAILED)
			break;
	}
	for (int n = 0; n < count; n++)
		must(munmap(mapped[n], PAGE) == 0);
	return count;
}

/* With room for ROOM more mappings. */
static void part(const char *when)
{
	char *memory = pages(SCATTERED * 3), *cut;
	char name[64];
	int before, after, cuts;

	printf("# %s\n", when);
	must(lands(&pair, memory, PAGE) && ibv_flush_relaxed_mr(pair.pd) == 0);
	before = mappings();
	snprintf(name, sizeof(name), "%s, one big mapping", when);
	scattered(name, memory, 3);
	is(can_map(200), 200, "%s: the program can map 200 times more", name);
	is(ibv_flush_relaxed_mr(pair.pd), 0, "%s: flushed", name);
	after = mappings();
	/*
	 * Each of 1200 regions could have left two mappings. If a file is mapped within 2 MiB, some
	 * hundred remain.
	 */
	ok(after <= before + SCATTERED / 2, "%s: %d mappings before, %d after the flush", name, before, after);
	must(munmap(memory, SCATTERED * 3 * PAGE) == 0);

	/* A registration of every second page fails: 2 mappings for 2 pages, up to the limit. */
	cut = pages(2 * SCATTERED);
	cuts = (limit(0) - SPARE - mappings()) / 2;
	must(cuts > 200);
	for (int n = 0; n < cuts && n < SCATTERED; n++)
		must(mprotect(cut + (2 * n + 1) * PAGE, PAGE, PROT_NONE) == 0);
	before = mappings();
	snprintf(name, sizeof(name), "%s, cut up", when);
	scattered(name, cut, 2);
	is(can_map(16), 16, "%s: the program can still map", name);
	is(ibv_flush_relaxed_mr(pair.pd), 0, "%s: flushed", name);
	after = mappings();
	ok(after <= before + SCATTERED / 2, "%s: %d mappings before, %d after the flush, %d allowed", name, before, after,
	   limit(0));
	printf("# bypassed for want of mappings: %llu, hits: %llu, misses: %llu\n",
	       (unsigned long long)stats().bypassed_limit, (unsigned long long)stats().hits,
	       (unsigned long long)stats().misses);
	must(munmap(cut, 2 * SCATTERED * PAGE) == 0);
}

int main(int argc, char **argv)
{
	const char *when = getenv("WHEN_LOWERED");
	int usual = limit(0), status;
	pid_t pid;

	(void)argc;
	if (!when) {
		/* This process restores the limit, whatever happens to the other. */
		if (!getenv("VM") || limit(usual) < 0)
			skip_all("only in the machine of vm/: vm.max_map_count is lowered");
		pid = fork();
		must(pid >= 0);
		if (!pid) {
			must(limit(mappings() + ROOM) > 0);
			with_setting(argv, "WHEN_LOWERED", "before the library is loaded");
		}
		must(waitpid(pid, &status, 0) == pid && limit(usual) > 0);
		return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
	}
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	relaxed_open(&pair);
	if (strstr(when, "under"))
		must(limit(mappings() + ROOM) > 0);
	part(when);
	control(&pair, when, pages(1), PAGE);
	if (strstr(when, "under"))
		return relaxed_close(&pair);
	relaxed_end(&pair);
	must(limit(65530) > 0);
	go_on_with(argv, "WHEN_LOWERED", "under the library");
	return 1;
}
