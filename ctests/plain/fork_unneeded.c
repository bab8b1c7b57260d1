/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ibv_fork_init on a kernel that copies registered pages for a child: as with rdma-core 52 and
 * later, it returns 0 at any time and marks no memory, so no mapping is split and the cache serves
 * the program. A child has the memory that its parent registered, and the device accesses the
 * parent's pages only.
 */
#include "../lib/reuse.h"

enum { MANY = 10000, LENGTH = 4 * PAGE };

static struct pair pair;

static void splits_nothing(void)
{
	static struct ibv_mr *regions[MANY];
	char *memory = pages(2 * MANY);
	int before = mappings(), most;

	for (int n = 0; n < MANY; n++) {
		regions[n] = ibv_reg_mr(pair.pd, memory + (size_t)n * 2 * PAGE, PAGE, LOCAL_AND_REMOTE);
		must(regions[n]);
	}
	most = mappings();
	/* The library and the C library make some mappings of their own. */
	ok(most - before < 100, "%d registrations apart split no mapping (%d mappings before, %d after)", MANY, before, most);
	is(ibv_fork_init(), 0, "ibv_fork_init after a registration");
	for (int n = 0; n < MANY; n++)
		must(ibv_dereg_mr(regions[n]) == 0);
}

static void tell(int to)
{
	must(write(to, "", 1) == 1);
}

static void hear(int from)
{
	char byte;

	must(read(from, &byte, 1) == 1);
}

/* The child reads and writes the memory while the device writes to the parent's. */
static void child_has_memory(void)
{
	char *memory = pages(LENGTH / PAGE), was[LENGTH];
	int to_child[2], to_parent[2];
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, memory, LENGTH, LOCAL_AND_REMOTE);
	pid_t pid;

	must(mr && pipe(to_child) == 0 && pipe(to_parent) == 0);
	fill(memory, LENGTH);
	memcpy(was, memory, LENGTH);
	pid = must_fork();
	if (!pid) {
		int wrong = memcmp(memory, was, LENGTH) != 0;

		memset(memory, 'c', LENGTH);
		tell(to_parent[1]);
		hear(to_child[0]);
		for (int n = 0; n < LENGTH; n++)
			wrong |= (memory[n] != 'c') << 1;
		_exit(wrong);
	}
	hear(to_parent[0]);
	ok(memcmp(memory, was, LENGTH) == 0, "the parent has its own after the child has written");
	ok(lands_in(&pair, mr, memory, LENGTH), "the device reads and writes the parent's memory");
	tell(to_child[1]);
	is(child_status(pid), 0, "the child has its parent's registered memory, and its own copy afterwards");
	must(ibv_dereg_mr(mr) == 0);
}

/* Registers the same memory three times. Returns whether the third alone was a hit. */
static int is_served(void)
{
	char *memory = pages(1);
	struct ibv_mr *mr;

	for (int n = 0; n < 3; n++) {
		mr = ibv_reg_mr(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
		must(mr && ibv_dereg_mr(mr) == 0);
	}
	printf("# hits %lld, bypassed_fork %lld\n", (long long)stats().hits, (long long)stats().bypassed_fork);
	return stats().hits == 1 && stats().bypassed_fork == 0;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		must(strcmp(argv[1], "calls") != 0 || ibv_fork_init() == 0);
		pair_open(&pair);
		return !is_served();
	}
	is(ibv_fork_init(), 0, "ibv_fork_init before everything else");
	relaxed_open(&pair);
	splits_nothing();
	child_has_memory();
	relaxed_end(&pair);
	is(once_more("calls", (const char *[]){ "RDMAMR_CACHE=all", NULL }), 0, "the cache serves a program that calls it");
	is(once_more("sets", (const char *[]){ "RDMAMR_CACHE=all", "RDMAV_FORK_SAFE=1", NULL }), 0,
	   "and one with RDMAV_FORK_SAFE set, for which libibverbs calls it");
	return done_testing();
}
