/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Either call deregisters either kind of region. A second deregistration is EINVAL, never a crash,
 * and never ends another registration: a region that two registrations share outlives the double
 * end of one.
 */
#include "../lib/observe.h"
#include <pthread.h>

typedef int (*end_call)(struct ibv_mr *mr);

static struct pair pair;
static char *memory;

static int by_plain(struct ibv_mr *mr)
{
	return ibv_dereg_mr(mr);
}

static int by_relaxed(struct ibv_mr *mr)
{
	return ibv_dereg_mr_relaxed(mr);
}

static const struct {
	const char *name;
	end_call call;
} ends[2] = { { "ibv_dereg_mr", by_plain }, { "ibv_dereg_mr_relaxed", by_relaxed } };

static struct ibv_mr *relaxed(void)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

static void twice(int first, int second)
{
	struct ibv_mr *mr = relaxed();
	long long idle = (long long)stats().idle;
	int err = ends[first].call(mr);

	is(err, 0, "%s of a relaxed region", ends[first].name);
	is((long long)stats().idle, idle + 1, "it is idle");
	err = ends[second].call(mr);
	is(err, EINVAL, "%s of it after that", ends[second].name);
	err = ends[second].call(mr);
	is(err, EINVAL, "and once more");
	is((long long)stats().idle, idle + 1, "it is idle once");
	control(&pair, "after that", memory, PAGE);
}

static void shared(int first, int second)
{
	struct ibv_mr *one = relaxed(), *other = relaxed();
	long long idle = (long long)stats().idle;
	int err;

	ok(one != other && one->rkey == other->rkey, "two registrations share a region");
	err = ends[first].call(one);
	is(err, 0, "%s of the one", ends[first].name);
	err = ends[second].call(one);
	is(err, EINVAL, "%s of it after that", ends[second].name);
	is((long long)stats().idle, idle, "the region is not idle");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "a flush ends the idle ones");
	ok(lands_in(&pair, other, memory, PAGE), "data lands by the other");
	err = ends[second].call(other);
	is(err, 0, "%s of the other", ends[second].name);
	is(stats().idle, 1, "now it is idle");
}

static void plain(int first, int second)
{
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	long long idle = (long long)stats().idle;
	int regions = kernel_regions(pair.context), err;

	must(mr);
	err = ends[first].call(mr);
	is(err, 0, "%s of a plain region", ends[first].name);
	is(kernel_regions(pair.context), regions - 1, "it is gone at once");
	is((long long)stats().idle, idle, "it is not idle");
	err = ends[second].call(mr);
	is(err, EINVAL, "%s of it after that", ends[second].name);
}

/* Two threads race to deregister one handle: one wins. */
enum { ROUNDS = 200 };
static struct ibv_mr *contested[ROUNDS];
static int verdicts[2][ROUNDS];
static pthread_barrier_t barrier;

static void *contender(void *argument)
{
	long self = (long)argument;

	for (int round = 0; round < ROUNDS; round++) {
		pthread_barrier_wait(&barrier);
		verdicts[self][round] = ends[round % 2].call(contested[round]);
	}
	return NULL;
}

static void race(void)
{
	pthread_t threads[2];
	int wrong = 0;

	for (int round = 0; round < ROUNDS; round++)
		contested[round] = relaxed();
	pthread_barrier_init(&barrier, NULL, 2);
	for (long n = 0; n < 2; n++)
		must(pthread_create(&threads[n], NULL, contender, (void *)n) == 0);
	for (int n = 0; n < 2; n++)
		must(pthread_join(threads[n], NULL) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		int one = verdicts[0][round], other = verdicts[1][round];

		wrong += !((one == 0 && other == EINVAL) || (one == EINVAL && other == 0));
	}
	is(wrong, 0, "two threads that deregister the same: one does, the other gets EINVAL");
	is(stats().idle, 1, "and their region is idle once");
	control(&pair, "after that", memory, PAGE);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	memory = pages(1);
	for (int first = 0; first < 2; first++)
		for (int second = 0; second < 2; second++) {
			must(ibv_flush_relaxed_mr(pair.pd) == 0);
			twice(first, second);
			shared(first, second);
			plain(first, second);
		}
	race();
	return relaxed_close(&pair);
}
