/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The machine has eight huge pages of 2 MiB, and the program maps all of them anew each round, by
 * calls of the C library. No idle region holds one of them: each mmap succeeds, as it does without
 * the cache. So does each fork.
 *
 * Runs only in the machine of vm/, where the test may set the number of huge pages.
 */
#include <sys/wait.h>
#include "../../lib/observe.h"

enum { HUGE_PAGES = 8, ROUNDS = 50 };
static const size_t SIZE = (size_t)HUGE_PAGES << 21, HUGE = 1 << 21;
static const char *const SETTING = "/proc/sys/vm/nr_hugepages";

enum way { UNMAPPED, REPLACED, REPLACED_IN_PART };

static long setting(long set)
{
	FILE *file = fopen(SETTING, set >= 0 ? "we" : "re");
	long number = -1;

	must(file);
	if (set >= 0)
		must(fprintf(file, "%ld\n", set) > 0);
	else
		must(fscanf(file, "%ld", &number) == 1);
	must(fclose(file) == 0);
	return number;
}

static char *map_huge(char *at, size_t length)
{
	char *memory = mmap(at, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (at ? MAP_FIXED : 0), -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

/* Registers and deregisters the memory: whole, or page by page. */
static void used(struct ibv_pd *pd, char *memory, bool whole)
{
	size_t each = whole ? SIZE : HUGE;

	for (size_t at = 0; at < SIZE; at += each) {
		struct ibv_mr *mr = register_region(pd, memory + at, each, LOCAL_AND_REMOTE);

		must(mr && deregister_region(mr) == 0);
	}
}

static void rounds(struct ibv_pd *pd, enum way way, bool whole)
{
	static const char *const names[] = { "unmapped and mapped", "replaced by MAP_FIXED", "its second half replaced" };
	char *memory = map_huge(NULL, SIZE);
	int refused = 0;

	must(memory);
	for (int n = 0; n < ROUNDS; n++) {
		char *again = memory;

		memset(memory, n, SIZE);
		used(pd, memory, whole);
		switch (way) {
		case UNMAPPED:
			must(munmap(memory, SIZE) == 0);
			again = map_huge(NULL, SIZE);
			break;
		case REPLACED:
			again = map_huge(memory, SIZE);
			break;
		case REPLACED_IN_PART:
			again = map_huge(memory + SIZE / 2, SIZE / 2) ? memory : NULL;
			break;
		}
		refused += !again;
		if (!again) {
			munmap(memory, SIZE);
			must(ibv_flush_relaxed_mr(pd) == 0);
			again = map_huge(NULL, SIZE);
			must(again);
		}
		memory = again;
	}
	is(refused, 0, "%s, registered %s: none of %d mmaps fails", names[way], whole ? "whole" : "page by page", ROUNDS);
	must(munmap(memory, SIZE) == 0);
}

/*
 * For a pinned page the kernel takes another one at fork. No page is free then, so fork fails if an
 * idle region still holds one.
 */
static void forks(struct ibv_pd *pd)
{
	char *memory = map_huge(NULL, SIZE);
	int refused = 0;

	must(memory);
	memset(memory, 1, SIZE);
	for (int n = 0; n < 10; n++) {
		pid_t pid;

		for (int times = 0; times < 3; times++)
			must(deregister_region(register_region(pd, memory + 4096, 4096, LOCAL_AND_REMOTE)) == 0);
		pid = fork();
		if (!pid)
			_exit(0);
		refused += pid < 0;
		must(pid < 0 || waitpid(pid, NULL, 0) == pid);
	}
	is(refused, 0, "no fork fails beside a small idle region in a huge page");
	must(munmap(memory, SIZE) == 0);
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	long before;

	(void)argc;
	if (!getenv("VM"))
		skip_all("only in the machine of vm/: the number of huge pages is changed");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE_BYTES", "1G");
	context = open_device();
	pd = ibv_alloc_pd(context);
	must(pd);
	before = setting(-1);
	setting(0);
	setting(HUGE_PAGES);
	if (setting(-1) != HUGE_PAGES)
		skip("huge pages", "the machine has no eight huge pages");
	else
		for (enum way way = UNMAPPED; way <= REPLACED_IN_PART; way++)
			for (int whole = 0; whole < 2; whole++)
				rounds(pd, way, whole);
	if (setting(-1) == HUGE_PAGES)
		forks(pd);
	setting(before);
	is(ibv_dealloc_pd(pd), 0, "the domain ends");
	is(ibv_close_device(context), 0, "the device is closed");
	return done_testing();
}
