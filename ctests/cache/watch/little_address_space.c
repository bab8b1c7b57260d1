/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process with little address space: RLIMIT_AS or RLIMIT_DATA leaves a few MiB, or
 * mlockall(MCL_FUTURE) makes each mapping resident. The cache starts small, in less than a MiB, and
 * serves; it grows with the regions as far as the limit allows, and a registration that does not
 * fit is a plain one.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"
#include "../../lib/stub_device.h"

enum { ROOM = 1 << 20, MANY = 10000, ROUNDS = 40, MANY_ROOM = 24 << 20, RIGHT = 0, NO_REGION = 1, NOT_REUSED = 2, TOO_LARGE = 3, REFUSED = 77 };

static bool relaxed;

static struct ibv_mr *reg(char *memory)
{
	return relaxed ? ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE) :
			 ibv_reg_mr(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
}

static int dereg(struct ibv_mr *mr)
{
	return relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr);
}

/* A number of /proc/self/status in bytes. */
static long status_of(const char *field)
{
	FILE *file = fopen("/proc/self/status", "re");
	char line[256];
	long value = -1;

	must(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, field, strlen(field)))
			value = atol(line + strlen(field) + 1) * 1024;
	fclose(file);
	must(value >= 0);
	return value;
}

/*
 * The uses of a page until one is reused: for plain calls the third, or a later one if the cache
 * could not keep a region before. The library then tries again to get a thread, after a second at
 * most.
 */
static int used_again(char *memory)
{
	for (int time = 0; time < ROUNDS; time++) {
		long before = stub_registered();
		struct ibv_mr *mr = reg(memory);

		if (!mr)
			return NO_REGION;
		must(dereg(mr) == 0);
		if (stub_registered() == before)
			return RIGHT;
		if (time > ROUNDS / 2)
			usleep(100000);
	}
	return NOT_REUSED;
}

static int limited(int which, const char *field, long room)
{
	char *memory = pages(1), *many = pages(MANY);
	long now = status_of(field), reused = 0;
	struct rlimit limit = { (rlim_t)(now + room), (rlim_t)(now + room) };
	int outcome;

	must(setrlimit(which, &limit) == 0);
	outcome = used_again(memory);
	printf("# %s grew by %ld KiB\n", field, (status_of(field) - now) >> 10);
	if (outcome != RIGHT || room != MANY_ROOM)
		return outcome;
	/*
	 * The library remembers 8192 ranges, so with this many plain ones some are forgotten in
	 * between.
	 */
	for (int time = 0; time < ROUNDS && reused <= MANY / 10 * 9; time++) {
		long before = stub_registered();

		for (int n = 0; n < MANY; n++) {
			struct ibv_mr *mr = reg(many + (size_t)n * PAGE);

			if (!mr)
				return NO_REGION;
			must(dereg(mr) == 0);
		}
		reused = MANY - (stub_registered() - before);
	}
	printf("# %ld of %d reused, %s grew by %ld KiB\n", reused, MANY, field, (status_of(field) - now) >> 10);
	return reused > MANY / 10 * 9 ? RIGHT : NOT_REUSED;
}

/* More regions than fit: each registration works. */
static int until_full(int which, const char *field)
{
	char *many = pages(MANY);
	struct ibv_mr **regions = mmap(NULL, MANY * sizeof(*regions), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long now;
	struct rlimit limit;
	int outcome = NOT_REUSED;

	must(regions != MAP_FAILED);
	/* The memory that the C library needs for the objects of plain regions. */
	must(mallopt(M_TRIM_THRESHOLD, 64 << 20) == 1 && mallopt(M_MMAP_THRESHOLD, 16 << 20) == 1);
	spare_in_heap(8 << 20);
	now = status_of(field);
	limit = (struct rlimit){ (rlim_t)(now + ROOM), (rlim_t)(now + ROOM) };
	must(setrlimit(which, &limit) == 0);
	for (int time = 0; time < 3; time++) {
		for (int n = 0; n < MANY; n++) {
			regions[n] = reg(many + (size_t)n * PAGE);
			if (!regions[n]) {
				printf("# region %d: errno %d\n", n, errno);
				return NO_REGION;
			}
		}
		for (int n = 0; n < MANY; n++)
			must(dereg(regions[n]) == 0);
	}
	/* The regions that fit are reused. */
	for (int n = 0; n < MANY; n++) {
		long before = stub_registered();
		struct ibv_mr *mr = reg(many + (size_t)n * PAGE);

		if (!mr)
			return NO_REGION;
		must(dereg(mr) == 0);
		if (stub_registered() == before)
			outcome = RIGHT;
	}
	return outcome;
}

static int locked(void)
{
	char *memory = pages(1);
	struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
	long now;
	int outcome;

	setrlimit(RLIMIT_MEMLOCK, &none);
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		return REFUSED;
	now = status_of("VmRSS:");
	outcome = used_again(memory);
	printf("# VmRSS: grew by %ld KiB\n", (status_of("VmRSS:") - now) >> 10);
	if (outcome == RIGHT && status_of("VmRSS:") - now > ROOM)
		return TOO_LARGE;
	return outcome;
}

static const struct part {
	const char *name, *words;
} parts[] = {
	{ "as", "RLIMIT_AS leaves 1 MiB: regions are reused" },
	{ "data", "RLIMIT_DATA leaves 1 MiB: regions are reused" },
	{ "lock", "after mlockall(MCL_FUTURE) at most 1 MiB becomes resident, and regions are reused" },
	{ "as-many", "RLIMIT_AS leaves 24 MiB: 10000 regions are reused" },
	{ "as-full", "RLIMIT_AS leaves 1 MiB, and 10000 regions are in use at once: each registration works" },
	{ "data-full", "the same with RLIMIT_DATA" },
};

static int run(const char *part)
{
	int which = strncmp(part, "as", 2) ? RLIMIT_DATA : RLIMIT_AS;
	const char *field = which == RLIMIT_AS ? "VmSize:" : "VmData:";

	if (!strcmp(part, "lock"))
		return locked();
	if (strstr(part, "full"))
		return until_full(which, field);
	return limited(which, field, strstr(part, "many") ? MANY_ROOM : ROOM);
}

int main(int argc, char **argv)
{
	static const char *const cached[] = { "RDMAMR_CACHE=all", "RDMAMR_CACHE_LINGER=1000000", NULL };
	static const char *const alone[] = { "RDMAMR_CACHE_LINGER=1000000", NULL };
	const char *why = stub_open(STUB_NOTHING);

	if (why)
		skip_all(why);
	if (argc > 1) {
		relaxed = !strncmp(argv[1], "relaxed ", 8);
		return run(strchr(argv[1], ' ') + 1);
	}
	for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++)
		for (int way = 0; way < 2; way++) {
			char argument[64];
			int outcome;

			snprintf(argument, sizeof(argument), "%s %s", way ? "relaxed" : "plain", parts[n].name);
			outcome = once_more(argument, way ? alone : cached);
			if (outcome == REFUSED)
				skip(parts[n].words, "this process may not lock its memory");
			else
				is(outcome, RIGHT, "%s calls: %s", way ? "relaxed" : "plain", parts[n].words);
		}
	return done_testing();
}
