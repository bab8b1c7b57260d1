/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cost [REGIONS [THREAD]]: the ns of fi_mr_reg and fi_close that libfabric's cache serves: the
 * median of rounds over that many regions (64), in random order. With THREAD there is a second
 * thread, which sleeps.
 */
#include "../ctests/fabric/monitor/cached.h"
#include <pthread.h>
#include "bench.h"
#include "median.h"

enum { ROUNDS = 201, PER_ROUND = 2000 };

static double now(void) { return clock_of(CLOCK_MONOTONIC); }

static void *sleeps(void *argument)
{
	pause();
	return argument;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 64;
	char *memory = pages((size_t)count * 2);
	struct fid_domain *domain;
	static double rounds[ROUNDS];
	uint64_t *keys = calloc((size_t)count, sizeof(*keys));
	long misses = 0;
	pthread_t thread;

	if (argc > 2)
		must(pthread_create(&thread, NULL, sleeps, NULL) == 0);
	open_fabric();
	domain = open_domain();
	for (int round = -2; round < ROUNDS; round++) {
		double start = now();

		for (int n = 0; n < PER_ROUND; n++) {
			int which = round < 0 ? n % count : rand() % count;
			struct fid_mr *mr = reg(domain, memory + (size_t)which * 2 * PAGE, PAGE);

			if (round >= 0)
				misses += keys[which] != fi_mr_key(mr);
			keys[which] = fi_mr_key(mr);
			fi_close(&mr->fid);
		}
		if (round >= 0)
			rounds[round] = (now() - start) / PER_ROUND;
	}
	printf("%.0f\n", median(rounds, ROUNDS));
	if (misses)
		fprintf(stderr, "# %ld were not served by the cache\n", misses);
	return 0;
}
