/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mremap(2) to a fixed address unmaps the target before it refuses several mappings, and watching a
 * part of a mapping splits it. A thread that maps memory at an unmapped target must not lose it,
 * and must get nothing of a move that succeeds without the library.
 */
#include "../../lib/observe.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>

/* The cache watches a part of this much memory. */
enum { LENGTH = 6 << 20, ROUNDS = 100, MARK = 0x5a, MOVED = 7 };

static struct pair pair;
static char *target;
/* Whether the thread is to take the target, and its state. */
static atomic_bool wanted;
static enum { WAITS, TRIES, HAS } _Atomic taker;

static void *take(void *nothing)
{
	(void)nothing;
	for (;;) {
		bool has = false;

		while (!wanted)
			sched_yield();
		taker = TRIES;
		while (wanted && !has)
			has = syscall(SYS_mmap, target, (long)LENGTH, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0L) == (long)target;
		if (has)
			memset(target, MARK, LENGTH);
		while (wanted)
			sched_yield();
		taker = has ? HAS : WAITS;
	}
	return NULL;
}

/* The byte at an address; -1 if it cannot be read. */
static int there(const char *at)
{
	unsigned char byte;
	struct iovec from = { (void *)at, 1 }, to = { &byte, 1 };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 ? byte : -1;
}

static void move(const char *name, bool one_mapping)
{
	int moved = 0, taken = 0, kept = 0, right = 0;

	for (int round = 0; round < ROUNDS; round++) {
		char *source = new_place(LENGTH), *got;
		struct ibv_mr *mr;
		int err;

		fresh_at(source, LENGTH);
		memset(source, MOVED, LENGTH);
		if (!one_mapping)
			must(mprotect(source + (5 << 20), PAGE, PROT_READ) == 0);
		/* The cache keeps memory that is registered again. */
		for (int time = 0; time < 2; time++) {
			mr = register_region(pair.pd, source + (3 << 20), PAGE, LOCAL_AND_REMOTE);
			must(mr && deregister_region(mr) == 0);
		}
		must(mmap(target, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == target);
		taker = WAITS;
		wanted = true;
		while (taker != TRIES)
			sched_yield();
		got = mremap(source, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, target);
		err = got == MAP_FAILED ? errno : 0;
		wanted = false;
		while (taker == TRIES)
			sched_yield();
		if (!err) {
			moved++;
			right += there(target) == MOVED;
		} else {
			must(err == EFAULT);
		}
		if (taker == HAS) {
			taken++;
			kept += there(target) == MARK && there(target + LENGTH - 1) == MARK;
		}
		munmap(source, LENGTH);
		munmap(target, LENGTH);
	}
	printf("# %s: of %d moves %d succeeded, and the thread took the target of %d\n", name, ROUNDS, moved, taken);
	if (one_mapping) {
		is(moved, ROUNDS, "%s: every move succeeds", name);
		is(taken, 0, "%s: no other thread gets the target", name);
	}
	is(right, moved, "%s: the moved data is at the target", name);
	is(kept, taken, "%s: a mapping that another thread makes there stays", name);
}

int main(int argc, char **argv)
{
	pthread_t thread;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	target = new_place(LENGTH);
	must(pthread_create(&thread, NULL, take, NULL) == 0);
	move("one mapping", true);
	move("several mappings", false);
	relaxed_end(&pair);
	return done_testing();
}
