/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Flushes beside everything else. When a flush returns, the regions that were idle when it was
 * called are no longer registered, whichever threads register, hit or flush at the time. Regions in
 * use are unaffected, and no thread waits for ever.
 */
#include "../lib/observe.h"
#include <pthread.h>

enum { FLUSHES = 300, BIG = 1024 };

static struct pair pair;
static volatile int stop;
static pthread_barrier_t barrier;

/* Hits on memory of its own all the time; now and then checks the data of a region in use. */
struct worker {
	pthread_t thread;
	char *memory;
	int moves, rounds, failed, gone, stale, lost;
};

static void *hits(void *argument)
{
	struct worker *self = argument;

	while (!stop) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, self->memory, PAGE, LOCAL_AND_REMOTE), *again;

		self->rounds++;
		if (!mr) {
			self->failed++;
			continue;
		}
		if (self->moves && self->rounds % 16 == 0)
			self->stale += !lands_in(&pair, mr, self->memory, 64);
		if (self->rounds % 64 == 0)
			self->gone += !kernel_has_key(pair.context, mr->lkey);
		again = ibv_reg_mr_relaxed(pair.pd, self->memory + 100, 10, LOCAL_AND_REMOTE);
		/* A region in use is not replaced, so the second registration shares it. */
		self->lost += !again || again->lkey != mr->lkey;
		self->failed += ibv_dereg_mr_relaxed(mr) != 0 || (again && ibv_dereg_mr_relaxed(again) != 0);
	}
	return NULL;
}

/* Flushes of idle regions of its own, which must be gone when each returns. */
struct flusher {
	pthread_t thread;
	char *memory;
	int failed, left;
};

static void *flushes(void *argument)
{
	struct flusher *self = argument;

	for (int round = 0; round < FLUSHES; round++) {
		uint32_t keys[3];

		for (int n = 0; n < 3; n++) {
			struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, self->memory + n * 2 * PAGE, PAGE,
							       n ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE);

			must(mr);
			keys[n] = mr->lkey;
			must(ibv_dereg_mr_relaxed(mr) == 0);
		}
		self->failed += ibv_flush_relaxed_mr(pair.pd) != 0;
		for (int n = 0; n < 3; n++)
			self->left += kernel_has_key(pair.context, keys[n]);
	}
	return NULL;
}

static void beside_hits(void)
{
	struct worker workers[2] = { { .memory = pages(1), .moves = 1 }, { .memory = pages(1) } };
	struct flusher flushers[2] = { { .memory = pages(6) }, { .memory = pages(6) } };
	uint64_t busy = stats().bypassed_busy;

	for (int n = 0; n < 2; n++)
		must(pthread_create(&workers[n].thread, NULL, hits, &workers[n]) == 0);
	for (int n = 0; n < 2; n++)
		must(pthread_create(&flushers[n].thread, NULL, flushes, &flushers[n]) == 0);
	for (int n = 0; n < 2; n++)
		must(pthread_join(flushers[n].thread, NULL) == 0);
	stop = 1;
	for (int n = 0; n < 2; n++)
		must(pthread_join(workers[n].thread, NULL) == 0);
	/*
	 * On a machine that leaves a changing thread without a processor for milliseconds, a
	 * registration does not wait for the end of the change: the region is its caller's own.
	 */
	busy = stats().bypassed_busy - busy;
	for (int n = 0; n < 2; n++) {
		ok(workers[n].rounds > 0 && workers[n].failed == 0,
		   "thread %d: %d rounds beside the flushes, and no call failed",
		   n, workers[n].rounds);
		is(workers[n].gone, 0, "thread %d: the kernel always had the region in use", n);
		ok((uint64_t)workers[n].lost <= busy && workers[n].lost <= workers[n].rounds / 10,
		   "thread %d: it could be shared, except %d of the %llu times that a change did not end", n,
		   workers[n].lost, (unsigned long long)busy);
		is(workers[n].stale, 0, "thread %d: and data always landed", n);
		is(flushers[n].failed, 0, "flusher %d: no flush failed", n);
		is(flushers[n].left, 0, "flusher %d: regions that were idle before it are not registered after it", n);
	}
}

/* A registration that takes its time, and flushes while it does. */
static void *registers_much(void *argument)
{
	char *memory = argument;
	int good = 1;

	pthread_barrier_wait(&barrier);
	for (int round = 0; round < 20; round++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, memory, BIG * PAGE, LOCAL_AND_REMOTE);

		if (!mr)
			return NULL;
		good = kernel_has_key(pair.context, mr->lkey) && lands_in(&pair, mr, memory + round * PAGE, PAGE) && good;
		good = ibv_dereg_mr_relaxed(mr) == 0 && good;
	}
	stop = 1;
	return good ? argument : NULL;
}

static void beside_registration(void)
{
	char *memory = pages(BIG);
	pthread_t thread;
	void *good;
	int failed = 0, count = 0;

	stop = 0;
	pthread_barrier_init(&barrier, NULL, 2);
	must(pthread_create(&thread, NULL, registers_much, memory) == 0);
	pthread_barrier_wait(&barrier);
	for (; !stop && count < 100000; count++)
		failed += ibv_flush_relaxed_mr(pair.pd) != 0;
	must(pthread_join(thread, &good) == 0);
	ok(good != NULL, "registrations of %d pages beside flushes: each is registered, and data lands", BIG);
	ok(count > 0 && failed == 0, "%d flushes beside registrations, and none failed", count);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	is(kernel_regions(pair.context), far.others, "then the kernel has none");
	must(munmap(memory, BIG * PAGE) == 0);
}

/* A device that has the old key would let the write through. */
static void refusals(void)
{
	char *memory = pages(4);
	struct ibv_mr *used, *mr;
	uint32_t key;

	control(&pair, "alone", memory, PAGE);
	used = ibv_reg_mr_relaxed(pair.pd, memory + 2 * PAGE, PAGE, LOCAL_AND_REMOTE);
	mr = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	must(used && mr);
	key = mr->rkey;
	must(ibv_dereg_mr_relaxed(mr) == 0);
	is(ibv_flush_relaxed_mr(pair.pd), 0, "a flush");
	ok(write_refused(&pair, memory, key), "the device refuses the key that was idle");
	ok(lands_in(&pair, used, memory + 2 * PAGE, PAGE), "data lands by the region in use");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "a flush of nothing");
	is(ibv_dereg_mr_relaxed(used), 0, "it is deregistered");
	must(munmap(memory, 4 * PAGE) == 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	as_root();
	relaxed_open(&pair);
	refusals();
	beside_hits();
	beside_registration();
	return relaxed_close(&pair);
}
