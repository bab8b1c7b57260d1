/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times relaxed registration end to end, on a real device: a pair of registration and
 * deregistration that hits, beside libibverbs' own pair and this library's plain one, in one
 * process and in turn. It also times a registration that misses, beside its parts: a plain
 * registration and one ioctl of userfaultfd. Run it with the library preloaded; registration.c says
 * how it calls libibverbs' own functions.
 *
 * Usage: relaxed_device DEVICE [--json|--quick]
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <rdmamr.h>
#include <rdmamr/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "bench.h"
#include "device.h"
#include "median.h"

#pragma weak rdmamr_get_stats
#pragma weak ibv_reg_mr_relaxed
#pragma weak ibv_dereg_mr_relaxed
#pragma weak ibv_flush_relaxed_mr

static struct ibv_mr *(*their_reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static int (*their_dereg)(struct ibv_mr *);
enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
enum { THEIRS, PLAIN, RELAXED, WAYS };
/* A relaxed pair that hits is shorter than a reading of the clock: so many at a time. */
enum { HITS = 100 };

static struct ibv_pd *pd;
static bool json;

static double now(void) { return clock_of(CLOCK_MONOTONIC) / 1e3; }

static char *map(size_t length)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static struct ibv_mr *reg(int way, void *memory, size_t length)
{
	struct ibv_mr *mr = way == THEIRS ? their_reg(pd, memory, length, (uintptr_t)memory, ACCESS) :
			    way == PLAIN  ? (ibv_reg_mr)(pd, memory, length, ACCESS) :
					    ibv_reg_mr_relaxed(pd, memory, length, ACCESS);

	if (!mr)
		die("a registration");
	return mr;
}

static void dereg(int way, struct ibv_mr *mr)
{
	errno = way == THEIRS ? their_dereg(mr) : way == PLAIN ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr);
	if (errno)
		die("a deregistration");
}

/* The time of one pair, in us. */
static double pair(int way, void *memory, size_t length)
{
	int count = way == RELAXED ? HITS : 1;
	double start = now();

	for (int n = 0; n < count; n++)
		dereg(way, reg(way, memory, length));
	return (now() - start) / count;
}

static struct rdmamr_stats stats(void)
{
	struct rdmamr_stats stats;

	if (rdmamr_get_stats(&stats, sizeof(stats)))
		die("rdmamr_get_stats");
	return stats;
}

static void hits(const char *size, size_t length, int rounds)
{
	double *values[WAYS], medians[WAYS];
	char *memory = map(length);
	struct rdmamr_stats before, after;
	int warm_up = 2 + rounds / 10;

	for (int way = 0; way < WAYS; way++)
		if (!(values[way] = calloc((size_t)rounds, sizeof(double))))
			die("calloc");
	dereg(RELAXED, reg(RELAXED, memory, length));
	before = stats();
	for (int round = -warm_up; round < rounds; round++)
		/* The ways take turns to go first, so that none always finds the processor's caches as
		 * another left them. */
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round + warm_up) % WAYS;
			double time = pair(way, memory, length);

			if (round >= 0)
				values[way][round] = time;
		}
	after = stats();
	if (after.hits - before.hits != (uint64_t)(warm_up + rounds) * HITS) {
		fprintf(stderr, "relaxed_device: %s: %llu hits of %d: this did not measure hits\n", size,
			(unsigned long long)(after.hits - before.hits), (warm_up + rounds) * HITS);
		exit(1);
	}
	for (int way = 0; way < WAYS; way++)
		medians[way] = median(values[way], rounds);
	if (json)
		printf("{\"what\":\"hit\",\"bytes\":%zu,\"rounds\":%d,\"libibverbs_us\":%.3f,\"plain_us\":%.3f,"
		       "\"relaxed_us\":%.3f}\n", length, rounds, medians[THEIRS], medians[PLAIN], medians[RELAXED]);
	else
		printf("%8s %12.2f %12.2f %12.3f %12.0f %12.0f\n", size, medians[THEIRS], medians[PLAIN],
		       medians[RELAXED], medians[THEIRS] / medians[RELAXED], medians[PLAIN] / medians[RELAXED]);
	fflush(stdout);
	for (int way = 0; way < WAYS; way++)
		free(values[way]);
	if (ibv_flush_relaxed_mr(pd))
		die("ibv_flush_relaxed_mr");
	munmap(memory, length);
}

static int our_watch(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = (uint64_t)1 << 15 /* UFFD_FEATURE_WP_ASYNC */ };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
		close(fd);
		fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
		api = (struct uffdio_api){ .api = UFFD_API };
		if (fd >= 0 && ioctl(fd, UFFDIO_API, &api))
			die("UFFDIO_API");
	}
	if (fd < 0)
		die("userfaultfd");
	return fd;
}

/* Registers fresh memory, which no userfaultfd watches: by the cache, or plainly, with one ioctl of
 * userfaultfd. The mapping has no neighbours, so it is watched alone. Returns less than 0 if
 * another userfaultfd watches the memory. */
static double miss_once(int way, size_t length, int uffd)
{
	char *const place = (char *)0x20000000000;
	struct uffdio_register watch = {
		.range = { .start = (uintptr_t)place, .len = length }, .mode = UFFDIO_REGISTER_MODE_WP,
	};
	struct ibv_mr *mr;
	double start, took;
	bool is_taken;

	if (mmap(place, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE,
		 -1, 0) != place)
		die("mmap");
	start = now();
	mr = reg(way, place, length);
	is_taken = way == PLAIN && ioctl(uffd, UFFDIO_REGISTER, &watch);
	took = now() - start;
	if (is_taken && errno != EBUSY)
		die("UFFDIO_REGISTER");
	dereg(way, mr);
	munmap(place, length);
	return is_taken ? -1 : took;
}

static double miss(int way, size_t length, int uffd)
{
	/* Another userfaultfd that watches the memory for a moment is no reason to end. */
	for (int tries = 0; tries < 100; tries++) {
		double took = miss_once(way, length, uffd);

		if (took >= 0)
			return took;
		usleep(1000);
	}
	errno = EBUSY;
	die("UFFDIO_REGISTER");
	return -1;
}

static void misses(const char *size, size_t length, int rounds)
{
	double *values[WAYS], *ratios = calloc((size_t)rounds, sizeof(double)), ratio;
	struct rdmamr_stats before, after;
	int uffd = our_watch();

	for (int way = 0; way < WAYS; way++)
		if (!ratios || !(values[way] = calloc((size_t)rounds, sizeof(double))))
			die("calloc");
	before = stats();
	for (int round = -2 - rounds / 10; round < rounds; round++)
		for (int turn = 0; turn < 2; turn++) {
			int way = (turn + round) & 1 ? RELAXED : PLAIN;
			double time = miss(way, length, uffd);

			if (round >= 0)
				values[way][round] = time;
		}
	after = stats();
	close(uffd);
	if (after.misses - before.misses < (uint64_t)rounds) {
		fprintf(stderr, "relaxed_device: %s: %llu misses of %d: this did not measure misses\n", size,
			(unsigned long long)(after.misses - before.misses), rounds);
		exit(1);
	}
	for (int round = 0; round < rounds; round++)
		ratios[round] = values[RELAXED][round] / values[PLAIN][round];
	ratio = median(ratios, rounds);
	if (json)
		printf("{\"what\":\"miss\",\"bytes\":%zu,\"rounds\":%d,\"plain_and_watch_us\":%.3f,\"relaxed_us\":%.3f,"
		       "\"ratio\":%.3f,\"target\":1.05}\n", length, rounds, median(values[PLAIN], rounds),
		       median(values[RELAXED], rounds), ratio);
	else
		printf("%8s %29.2f %13.2f %12.3f %12s\n", size, median(values[PLAIN], rounds),
		       median(values[RELAXED], rounds), ratio, ratio <= 1.05 ? "<= 1.05" : "> 1.05");
	fflush(stdout);
	for (int way = 0; way < WAYS; way++)
		free(values[way]);
	free(ratios);
}

int main(int argc, char **argv)
{
	int less = argc > 2 && !strcmp(argv[2], "--quick") ? 10 : 1;
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);

	json = argc > 2 && !strcmp(argv[2], "--json");
	if (argc < 2 || !handle || !rdmamr_get_stats || !ibv_reg_mr_relaxed) {
		fprintf(stderr, "usage: LD_PRELOAD=librdmamr.so.1 relaxed_device DEVICE [--json|--quick]\n");
		return 2;
	}
	/* Nothing that is measured may end by age or size. The library reads its settings when it is
	 * loaded. */
	if (!getenv("RDMAMR_CACHE_LINGER")) {
		if (!setenv("RDMAMR_CACHE_LINGER", "3600", 1) && !setenv("RDMAMR_CACHE_MAX_IDLE_BYTES", "1G", 1))
			execv("/proc/self/exe", argv);
		die("execv");
	}
	*(void **)&their_reg = dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	*(void **)&their_dereg = dlvsym(handle, "ibv_dereg_mr", "IBVERBS_1.1");
	pd = domain_of(argv[1]);
	if (!pd || !their_reg || !their_dereg)
		die(argv[1]);
	if (!json)
		printf("median us     libibverbs       rdmamr       rdmamr          times faster than\n"
		       "    size       reg+dereg    reg+dereg  relaxed hit   libibverbs        plain\n");
	hits("4 KiB", 4096, 5000 / less);
	hits("1 MiB", 1 << 20, 500 / less);
	hits("64 MiB", 64 << 20, less > 1 ? 10 : 20);
	if (!json)
		printf("median us   ibv_reg_mr+UFFDIO_REGISTER  relaxed miss        ratio       target\n");
	misses("4 KiB", 4096, 2000 / less);
	misses("1 MiB", 1 << 20, 500 / less);
	if (ibv_flush_relaxed_mr(pd) || ibv_dealloc_pd(pd)) {
		fprintf(stderr, "relaxed_device: the end\n");
		return 1;
	}
	return 0;
}
