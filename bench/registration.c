/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times a registration and a deregistration by libibverbs and by this library, in one process and
 * in turn, so that other load on the machine affects both. Run it with the library preloaded: the
 * plain symbols are then the library's, and those looked up in a handle are libibverbs' own. Of
 * libibverbs it calls the leaf ibv_reg_mr_iova2, which spares libibverbs the jump from ibv_reg_mr.
 *
 * Usage: registration DEVICE [--json|--quick]
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdmamr.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "bench.h"
#include "device.h"
#include "median.h"

#pragma weak rdmamr_get_stats

static struct ibv_mr *(*their_reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static int (*their_dereg)(struct ibv_mr *);
enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
enum { THEIRS, OURS, WAYS };

static double now(void) { return clock_of(CLOCK_MONOTONIC) / 1e3; }

struct cost {
	double reg, dereg;
};

static struct cost once(int way, struct ibv_pd *pd, void *memory, size_t length)
{
	double start, registered, end;
	struct ibv_mr *mr;
	int err;

	if (way == THEIRS) {
		start = now();
		mr = their_reg(pd, memory, length, (uintptr_t)memory, ACCESS);
		registered = now();
		if (!mr)
			die("ibv_reg_mr_iova2 of libibverbs");
		err = their_dereg(mr);
		end = now();
	} else {
		start = now();
		mr = (ibv_reg_mr)(pd, memory, length, ACCESS);
		registered = now();
		if (!mr)
			die("ibv_reg_mr");
		err = ibv_dereg_mr(mr);
		end = now();
	}
	if (err) {
		errno = err;
		die("ibv_dereg_mr");
	}
	return (struct cost){ registered - start, end - registered };
}

static void measure(struct ibv_pd *pd, const char *size, size_t length, int rounds, int json)
{
	double *values[WAYS][2], medians[WAYS][2];
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	for (int way = 0; way < WAYS; way++)
		for (int call = 0; call < 2; call++)
			if (!(values[way][call] = calloc((size_t)rounds, sizeof(double))))
				die("calloc");
	for (int round = -2 - rounds / 10; round < rounds; round++) {
		/* The sides take turns to go first, so that neither always finds the processor's caches as
		 * the other left them. */
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round) & 1;
			struct cost cost = once(way, pd, memory, length);

			if (round < 0)
				continue;
			values[way][0][round] = cost.reg;
			values[way][1][round] = cost.dereg;
		}
	}
	for (int way = 0; way < WAYS; way++)
		for (int call = 0; call < 2; call++)
			medians[way][call] = median(values[way][call], rounds);
	if (json)
		printf("{\"bytes\":%zu,\"rounds\":%d,\"libibverbs_reg_us\":%.3f,\"rdmamr_reg_us\":%.3f,"
		       "\"libibverbs_dereg_us\":%.3f,\"rdmamr_dereg_us\":%.3f}\n", length, rounds,
		       medians[THEIRS][0], medians[OURS][0], medians[THEIRS][1], medians[OURS][1]);
	else
		printf("%8s %12.2f %12.2f %8.3f   %12.2f %12.2f %8.3f\n", size,
		       medians[THEIRS][0], medians[OURS][0], medians[OURS][0] / medians[THEIRS][0],
		       medians[THEIRS][1], medians[OURS][1], medians[OURS][1] / medians[THEIRS][1]);
	fflush(stdout);
	munmap(memory, length);
}

static double refused_once(int way, struct ibv_pd *pd, void *memory)
{
	double start = now();
	struct ibv_mr *mr = way == THEIRS ? their_reg(pd, memory, 4096, (uintptr_t)memory, ACCESS) :
					    (ibv_reg_mr)(pd, memory, 4096, ACCESS);

	if (mr) {
		fprintf(stderr, "registration: memory that is not mapped was registered\n");
		exit(1);
	}
	return now() - start;
}

/* Programs find out by failing what a device can do. The process has so many mappings. */
static void measure_refused(struct ibv_pd *pd, size_t mappings, int rounds, int json)
{
	const size_t page = 4096, length = mappings * page;
	double *values[WAYS] = { calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double)) }, medians[WAYS];
	char *memory = mmap(NULL, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED || !values[THEIRS] || !values[OURS])
		die("mmap");
	for (size_t n = 1; n < mappings; n += 2)
		if (mprotect(memory + n * page, page, PROT_READ | PROT_WRITE))
			die("mprotect");
	munmap(memory, page);
	for (int round = -2; round < rounds; round++)
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round) & 1;
			double us = refused_once(way, pd, memory);

			if (round >= 0)
				values[way][round] = us;
		}
	for (int way = 0; way < WAYS; way++)
		medians[way] = median(values[way], rounds);
	if (json)
		printf("{\"refused_mappings\":%zu,\"rounds\":%d,\"libibverbs_reg_us\":%.3f,\"rdmamr_reg_us\":%.3f}\n", mappings, rounds,
		       medians[THEIRS], medians[OURS]);
	else
		printf("refused, beside %5zu mappings %12.2f %12.2f %8.3f\n", mappings, medians[THEIRS], medians[OURS],
		       medians[OURS] / medians[THEIRS]);
	fflush(stdout);
	munmap(memory, length);
}

int main(int argc, char **argv)
{
	int json = argc > 2 && !strcmp(argv[2], "--json");
	int less = argc > 2 && !strcmp(argv[2], "--quick") ? 10 : 1;
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);
	struct rdmamr_stats stats;
	struct ibv_pd *pd;

	if (argc < 2 || !handle || !rdmamr_get_stats) {
		fprintf(stderr, "usage: LD_PRELOAD=librdmamr.so.1 registration DEVICE [--json|--quick]\n");
		return 2;
	}
	*(void **)&their_reg = dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	*(void **)&their_dereg = dlvsym(handle, "ibv_dereg_mr", "IBVERBS_1.1");
	pd = domain_of(argv[1]);
	if (!pd || !their_reg || !their_dereg)
		die(argv[1]);
	if (!json)
		printf("median us     libibverbs       rdmamr    ratio     libibverbs       rdmamr    ratio\n"
		       "    size           ibv_reg_mr                        ibv_dereg_mr\n");
	measure(pd, "4 KiB", 4096, 20000 / less, json);
	measure(pd, "64 KiB", 65536, 10000 / less, json);
	measure(pd, "1 MiB", 1 << 20, 2000 / less, json);
	measure(pd, "64 MiB", 64 << 20, less > 1 ? 20 : 40, json);
	measure_refused(pd, 60, 2000 / less, json);
	measure_refused(pd, 2000, 2000 / less, json);
	measure_refused(pd, 20000, 200 / less, json);
	if (rdmamr_get_stats(&stats, sizeof(stats)) || !stats.reg_kernel || stats.reg_next) {
		fprintf(stderr, "registration: this did not measure the library\n");
		return 1;
	}
	ibv_dealloc_pd(pd);
	return 0;
}
