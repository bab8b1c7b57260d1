/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times registrations in a program that has called ibv_fork_init: the number of its mappings before
 * and after many of them, and the time of one registration with its deregistration. Run it without
 * and with the library.
 *
 * Usage: fork_init DEVICE [REGIONS]
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "bench.h"
#include "device.h"

enum { PAGE = 4096 };

static double now(void) { return clock_of(CLOCK_MONOTONIC) / 1e3; }

static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int c, lines = 0;

	if (!maps)
		die("/proc/self/maps");
	while ((c = getc(maps)) != EOF)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 10000, before, after;
	struct ibv_mr **regions;
	struct ibv_pd *pd;
	double time;
	char *memory;

	if (argc < 2 || count < 1 || ibv_fork_init())
		die("usage: fork_init DEVICE [REGIONS]: ibv_fork_init");
	pd = domain_of(argv[1]);
	if (!pd)
		die(argv[1]);
	/* Each region is a page. The page behind it is in no region, so that no two regions adjoin. */
	memory = mmap(NULL, (size_t)count * 2 * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	regions = calloc((size_t)count, sizeof(*regions));
	if (memory == MAP_FAILED || !regions)
		die("memory");

	before = mappings();
	time = -now();
	for (int n = 0; n < count; n++)
		if (!(regions[n] = ibv_reg_mr(pd, memory + (size_t)n * 2 * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE)))
			die("ibv_reg_mr");
	time += now();
	after = mappings();
	time -= now();
	for (int n = 0; n < count; n++)
		if (ibv_dereg_mr(regions[n]))
			die("ibv_dereg_mr");
	time += now();
	printf("%d regions after ibv_fork_init: %d mappings before, %d after, %.2f us each\n", count, before, after,
	       time / count);
	return 0;
}
