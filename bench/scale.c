/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times a region among many: on this machine's processor, with a stub of the device
 * (ctests/lib/stub_device.h) that costs next to nothing. All regions are alive at once.
 *
 * Usage: scale plain|kept REGIONS THREADS
 *
 * Prints REGIONS, THREADS, the ns of a first registration, of a hit (plain: of a deregistration
 * with the registration after it) and of the last deregistration, the bytes of memory a region, the
 * us of rdmamr_get_stats while all regions are idle, which reads each slot of the cache three
 * times, and the number of regions that the cache did not keep.
 */
#include <pthread.h>
#include <rdmamr.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "../ctests/lib/stub_device.h"
#include "bench.h"

/* A program without the library still links. */
#pragma weak rdmamr_get_stats

enum { PAGE = 4096, STRIDE = 2 * PAGE, MOST_THREADS = 2, WORKS = 3, ACCESS = IBV_ACCESS_LOCAL_WRITE };

static bool kept;
static char *memory;
static struct ibv_mr **mrs;
static uint32_t *order;
static long regions, threads, again;
static pthread_barrier_t barrier;
static double took[MOST_THREADS][WORKS];

static void must(bool good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static void reg(long n)
{
	char *page = memory + (size_t)n * STRIDE;

	mrs[n] = kept ? ibv_reg_mr_relaxed(stub_pd(), page, PAGE, ACCESS) : ibv_reg_mr(stub_pd(), page, PAGE, ACCESS);
	must(mrs[n], "a registration");
}

static void dereg(long n)
{
	must((kept ? ibv_dereg_mr_relaxed(mrs[n]) : ibv_dereg_mr(mrs[n])) == 0, "a deregistration");
}

/* A thread's share of the regions, in one random order for all its steps. */
static void *work(void *argument)
{
	long thread = (long)(intptr_t)argument, first = thread * regions / threads, end = (thread + 1) * regions / threads;
	double start;

	pthread_barrier_wait(&barrier);
	start = clock_of(CLOCK_THREAD_CPUTIME_ID);
	for (long n = first; n < end; n++)
		reg(order[n]);
	took[thread][0] = (clock_of(CLOCK_THREAD_CPUTIME_ID) - start) / (double)(end - first);
	pthread_barrier_wait(&barrier);
	/* The main thread measures the memory here. */
	pthread_barrier_wait(&barrier);
	for (long n = first; kept && n < end; n++)
		dereg(order[n]);
	start = clock_of(CLOCK_THREAD_CPUTIME_ID);
	for (long round = 0; round < again; round++) {
		for (long n = first; n < end; n++) {
			if (!kept)
				dereg(order[n]);
			reg(order[n]);
			if (kept)
				dereg(order[n]);
		}
	}
	took[thread][1] = (clock_of(CLOCK_THREAD_CPUTIME_ID) - start) / (double)(end - first) / (double)again;
	pthread_barrier_wait(&barrier);
	/* The main thread reads the cache's statistics here. */
	pthread_barrier_wait(&barrier);
	start = clock_of(CLOCK_THREAD_CPUTIME_ID);
	if (!kept)
		for (long n = first; n < end; n++)
			dereg(order[n]);
	else if (thread == 0)
		must(ibv_flush_relaxed_mr(stub_pd()) == 0, "ibv_flush_relaxed_mr");
	took[thread][2] = (clock_of(CLOCK_THREAD_CPUTIME_ID) - start) / (double)(kept ? regions : end - first);
	return NULL;
}

static long resident(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long size, pages;

	must(file && fscanf(file, "%ld %ld", &size, &pages) == 2, "statm");
	fclose(file);
	return pages * PAGE;
}

static double mean(int what)
{
	double sum = 0;

	for (long thread = 0; thread < (kept && what == 2 ? 1 : threads); thread++)
		sum += took[thread][what];
	return sum / (double)(kept && what == 2 ? 1 : threads);
}

int main(int argc, char **argv)
{
	pthread_t ids[MOST_THREADS];
	struct rdmamr_stats stats;
	double look = 0;
	unsigned int seed = 5;
	long bytes;

	if (argc != 4 || (threads = atol(argv[3])) < 1 || threads > MOST_THREADS || (regions = atol(argv[2])) < threads) {
		fprintf(stderr, "usage: scale plain|kept REGIONS THREADS\n");
		return 2;
	}
	kept = argv[1][0] == 'k';
	must(stub_open(STUB_NOTHING) == NULL, "the stub of a device");
	memory = mmap(NULL, (size_t)regions * STRIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	mrs = malloc((size_t)regions * sizeof(*mrs));
	order = malloc((size_t)regions * sizeof(*order));
	must(memory != MAP_FAILED && mrs && order, "memory");
	memset(mrs, 0, (size_t)regions * sizeof(*mrs));
	for (long n = 0; n < regions; n++)
		order[n] = (uint32_t)n;
	for (long n = regions - 1; n > 0; n--) {
		long other = (long)(((uint64_t)rand_r(&seed) << 16 ^ (uint64_t)rand_r(&seed)) % (uint64_t)(n + 1));
		uint32_t swap = order[n];

		order[n] = order[other];
		order[other] = swap;
	}
	/* At least a million calls. */
	again = 1000000 / regions + 1;
	pthread_barrier_init(&barrier, NULL, (unsigned int)threads + 1);
	for (long thread = 0; thread < threads; thread++)
		must(pthread_create(&ids[thread], NULL, work, (void *)(intptr_t)thread) == 0, "pthread_create");
	bytes = resident();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	bytes = resident() - bytes;
	must(rdmamr_get_stats(&stats, sizeof(stats)) == 0, "rdmamr_get_stats");
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	for (int round = 0; round < 5; round++) {
		double start = clock_of(CLOCK_THREAD_CPUTIME_ID), took;

		must(rdmamr_get_stats(&stats, sizeof(stats)) == 0, "rdmamr_get_stats");
		took = clock_of(CLOCK_THREAD_CPUTIME_ID) - start;
		look = round && look < took ? look : took;
	}
	pthread_barrier_wait(&barrier);
	for (long thread = 0; thread < threads; thread++)
		pthread_join(ids[thread], NULL);
	printf("%s %ld %ld %.0f %.0f %.0f %.0f %.1f %lld\n", argv[1], regions, threads, mean(0), mean(1), mean(2),
	       (double)bytes / (double)regions, look / 1000, kept ? regions - (long long)stats.misses : 0LL);
	return 0;
}
