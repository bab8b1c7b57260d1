/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times relaxed registration on this machine's processor, without a device: the library and its
 * peer alike register with a stub that does nothing (ctests/lib/stub_device.h). The peer is UCX's
 * registration cache, ucs_rcache_get and ucs_rcache_region_put, in the same process, on the same
 * addresses and in turn, so that other load on the machine affects both.
 *
 * Usage: relaxed fenced|unfenced|watched [--json|--quick]
 * fenced:   as the library runs in a process with threads: hits beside a system call and beside
 *           UCX, with warm caches and after other work; misses; the time of an unmap.
 * unfenced: the library takes the process for one that never had a second thread, so it asks no
 *           fence: hits beside UCX.
 * watched:  hits in a process with a second thread beside UCX with its watch.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <math.h>
#include <pthread.h>
#include <rdmamr.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp_version.h>
#include <ucs/memory/rcache.h>
#include <unistd.h>
#include "../ctests/lib/stub_device.h"
#include "median.h"
#include "bench.h"

#pragma weak rdmamr_get_stats

/* Replaces the C library's variable, by which the library sees whether the process ever had a
 * second thread. */
char __libc_single_threaded = 1;

enum { PAGE = 4096, STRIDE = 2 * PAGE, REGIONS = 100000, THREADS = 2, ACCESS = IBV_ACCESS_LOCAL_WRITE };
enum { OURS, PEER, WAYS };

#define WORDS_OF(number) #number
#define WORDS(number) WORDS_OF(number)
/* The UCX that this is compiled for. */
#define UCX "UCX " WORDS(UCP_API_MAJOR) "." WORDS(UCP_API_MINOR)

static enum { TABLE, JSON } format;
static int less = 1; /* divides the number of rounds */
static char *memory;
static ucs_rcache_t *rcache;

static double now(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

static struct rdmamr_stats stats(void)
{
	struct rdmamr_stats stats;

	if (rdmamr_get_stats(&stats, sizeof(stats)))
		die("rdmamr_get_stats");
	return stats;
}

/* ---- The operations: each makes `count` of them, from the thread's place in the order. ---- */

struct job {
	/* No two threads write to one cache line, nor to two that the processor fetches together. */
	_Alignas(256) const uint32_t *order; /* indexes of `size` regions, repeated */
	uint32_t size, at;
	long count;
	int thread;
};

static uint32_t next(struct job *job)
{
	uint32_t index = job->order[job->at];

	if (++job->at == job->size)
		job->at = 0;
	return index;
}

static void relaxed_pairs_with(struct job *job, int access)
{
	for (long n = 0; n < job->count; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + (size_t)next(job) * STRIDE, PAGE, access);

		if (!mr)
			die("ibv_reg_mr_relaxed");
		if (ibv_dereg_mr_relaxed(mr))
			die("ibv_dereg_mr_relaxed");
	}
}

static void relaxed_pairs(struct job *job)
{
	relaxed_pairs_with(job, ACCESS);
}

static void relaxed_remote_pairs(struct job *job)
{
	relaxed_pairs_with(job, ACCESS | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
}

static ucs_status_t ucx_get(char *addr, ucs_rcache_region_t **region)
{
	return ucs_rcache_get(rcache, addr, PAGE,
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
			      UCS_RCACHE_MIN_ALIGNMENT,
#endif
			      PROT_READ | PROT_WRITE, NULL, region);
}

static void ucx_pairs(struct job *job)
{
	for (long n = 0; n < job->count; n++) {
		ucs_rcache_region_t *region;

		if (ucx_get(memory + (size_t)next(job) * STRIDE, &region) != UCS_OK)
			die("ucs_rcache_get");
		ucs_rcache_region_put(rcache, region);
	}
}

static void nothing(struct job *job)
{
	(void)job;
}

static void system_calls(struct job *job)
{
	for (long n = 0; n < job->count; n++)
		syscall(SYS_getppid);
}

static int uffd = -1;

/* The library's question to the kernel at each hit, about a file of this program. */
static void fences(struct job *job)
{
	for (long n = 0; n < job->count; n++) {
		struct uffdio_writeprotect none = { 0 };

		if (!ioctl(uffd, UFFDIO_WRITEPROTECT, &none) || errno != EINVAL)
			die("UFFDIO_WRITEPROTECT");
	}
}

/* How much two threads slow each other that share nothing: their processors may be two hyperthreads
 * of one core. */
static void additions(struct job *job)
{
	static struct {
		_Alignas(256) _Atomic long sum;
	} own[THREADS];

	for (long n = 0; n < job->count; n++) {
		atomic_fetch_add(&own[job->thread].sum, (long)next(job));
		atomic_fetch_add(&own[job->thread].sum, 1);
	}
}

/* ---- Threads: the second one waits asleep, and both start at once. ---- */

struct run {
	double start, took, cpu;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	void (*work)(struct job *);
	struct job *job;
	_Atomic int ready;
	_Atomic bool finished;
	struct run run;
} second = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

static struct run start_together(void (*work)(struct job *), struct job *job)
{
	struct run run;

	atomic_fetch_add(&second.ready, 1);
	for (int spins = 0; atomic_load(&second.ready) < THREADS; spins++)
		if (spins > 5000)
			sched_yield();
	run.cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
	run.start = now();
	work(job);
	run.took = now() - run.start;
	run.cpu = clock_of(CLOCK_THREAD_CPUTIME_ID) - run.cpu;
	return run;
}

static void *second_thread(void *argument)
{
	pthread_mutex_lock(&second.lock);
	for (;;) {
		while (!second.work)
			pthread_cond_wait(&second.wake, &second.lock);
		second.run = start_together(second.work, second.job);
		second.work = NULL;
		atomic_store(&second.finished, true);
	}
	return argument;
}

static void start_second_thread(void)
{
	pthread_t thread;

	errno = pthread_create(&thread, NULL, second_thread, NULL);
	if (errno)
		die("pthread_create");
}

/* Returns the time of one operation in ns, as one thread sees it. It is negative if two threads did
 * not run side by side all the time, since then they did not contend either. */
static double timed(void (*work)(struct job *), struct job *jobs, int threads)
{
	struct run first;
	double start;

	if (threads == 1) {
		start = now();
		work(&jobs[0]);
		return (now() - start) / (double)jobs[0].count;
	}
	atomic_store(&second.ready, 0);
	atomic_store(&second.finished, false);
	pthread_mutex_lock(&second.lock);
	second.work = work;
	second.job = &jobs[1];
	pthread_cond_signal(&second.wake);
	pthread_mutex_unlock(&second.lock);
	first = start_together(work, &jobs[0]);
	while (!atomic_load(&second.finished))
		sched_yield();
	if (fabs(first.start - second.run.start) > 0.1 * first.took || first.cpu < 0.9 * first.took ||
	    second.run.cpu < 0.9 * second.run.took)
		return -1;
	return (first.took + second.run.took) / 2 / (double)jobs[0].count;
}

/* ---- Reports. ---- */

static void head(const char *title, const char *peer)
{
	if (format == TABLE)
		printf("\n%-52s %9s %9s %7s %7s\n", title, "rdmamr", peer, "ratio", "target");
}

/* A row of two columns of times, round by round. The ratio is the median of the rounds' ratios.
 * Target 0: no target. */
static void report(const char *what, const char *peer, double *times[WAYS], int rounds, double target)
{
	double *ratios = calloc((size_t)rounds, sizeof(double)), ratio;

	if (!ratios)
		die("calloc");
	for (int round = 0; round < rounds; round++)
		ratios[round] = times[OURS][round] / times[PEER][round];
	ratio = median(ratios, rounds);
	free(ratios);
	if (format == JSON) {
		printf("{\"what\":\"%s\",\"rdmamr_ns\":%.1f,\"peer\":\"%s\",\"peer_ns\":%.1f,\"ratio\":%.3f,", what,
		       median(times[OURS], rounds), peer, median(times[PEER], rounds), ratio);
		if (target)
			printf("\"target\":%.2f,\"met\":%s}\n", target, ratio <= target ? "true" : "false");
		else
			printf("\"target\":null,\"met\":null}\n");
	} else if (target) {
		printf("%-52s %9.1f %9.1f %7.3f %7.2f %s\n", what, median(times[OURS], rounds),
		       median(times[PEER], rounds), ratio, target, ratio <= target ? "met" : "MISSED");
	} else {
		printf("%-52s %9.1f %9.1f %7.3f %7s -\n", what, median(times[OURS], rounds),
		       median(times[PEER], rounds), ratio, "-");
	}
	fflush(stdout);
}

static void allocate(double *times[WAYS], int rounds)
{
	for (int way = 0; way < WAYS; way++)
		if (!(times[way] = calloc((size_t)rounds, sizeof(double))))
			die("calloc");
}

static void release(double *times[WAYS])
{
	for (int way = 0; way < WAYS; way++)
		free(times[way]);
}

/* One side of a comparison: an operation, and the number of threads. */
struct side {
	void (*work)(struct job *);
	int threads;
	struct job jobs[THREADS];
};

/* Times two sides in turn, in short rounds. The relaxed pairs must have been hits of the cache. */
static void compare(const char *what, const char *peer, struct side sides[WAYS], int rounds, double target)
{
	int warm_up = 2 + rounds / 10, tries = 5 * rounds, done = -warm_up;
	struct rdmamr_stats before, after;
	double *times[WAYS];
	uint64_t pairs = 0;

	allocate(times, rounds);
	before = stats();
	for (int round = 0; done < rounds && round < warm_up + tries; round++) {
		double time[WAYS];

		/* The sides take turns to go first, so that neither always finds the processor's caches as
		 * the other left them. */
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round) & 1;
			struct side *side = &sides[way];

			time[way] = timed(side->work, side->jobs, side->threads);
			if (side->work == relaxed_pairs || side->work == relaxed_remote_pairs)
				pairs += (uint64_t)(side->jobs[0].count * side->threads);
		}
		if (done < 0) {
			done++;
		} else if (time[OURS] >= 0 && time[PEER] >= 0) {
			for (int way = 0; way < WAYS; way++)
				times[way][done] = time[way];
			done++;
		}
	}
	after = stats();
	if (after.hits - before.hits < pairs - pairs / 1000) {
		fprintf(stderr, "relaxed: %s: of %llu pairs %llu were hits: this did not measure hits (%llu idle; "
			"ended by watermark %llu, linger %llu, pressure %llu, event %llu)\n", what, (unsigned long long)pairs,
			(unsigned long long)(after.hits - before.hits), (unsigned long long)after.idle,
			(unsigned long long)after.flushed_watermark, (unsigned long long)after.flushed_linger,
			(unsigned long long)after.flushed_pressure, (unsigned long long)after.flushed_event);
		exit(1);
	}
	if (done < rounds / 4 || done < 1)
		fprintf(stderr, "relaxed: %s: the machine is too busy for two threads side by side\n", what);
	else
		report(what, peer, times, done, target);
	release(times);
}

/* ---- The parts. ---- */

static uint32_t *random_order(uint32_t size, unsigned int seed)
{
	uint32_t *order = calloc(size, sizeof(*order));

	if (!order)
		die("calloc");
	for (uint32_t n = 0; n < size; n++)
		order[n] = n;
	for (uint32_t n = size - 1; n > 0; n--) {
		uint32_t other = (uint32_t)(((uint64_t)rand_r(&seed) << 16 ^ (uint64_t)rand_r(&seed)) % (n + 1));
		uint32_t swap = order[n];

		order[n] = order[other];
		order[other] = swap;
	}
	return order;
}

static ucs_status_t ucx_register(void *context, ucs_rcache_t *cache, void *argument, ucs_rcache_region_t *region,
				 uint16_t flags)
{
	(void)context, (void)cache, (void)argument, (void)region, (void)flags;
	return UCS_OK;
}

static void ucx_deregister(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region)
{
	(void)context, (void)cache, (void)region;
}

static void ucx_dump(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region, char *text, size_t size)
{
	(void)context, (void)cache, (void)region;
	if (size)
		text[0] = '\0';
}

/* `events` are those that its watch is for: 0 for the lookup alone. */
static void open_ucx(int events)
{
	static const ucs_rcache_ops_t ops = {
		.mem_reg = ucx_register, .mem_dereg = ucx_deregister, .dump_region = ucx_dump,
	};
	ucs_rcache_params_t params = {
		.region_struct_size = sizeof(ucs_rcache_region_t) + 64, /* what a transport stores for a region */
#if UCP_API_VERSION < UCP_VERSION(1, 14)
		.alignment = UCS_RCACHE_MIN_ALIGNMENT,
		.max_alignment = PAGE,
#endif
		.ucm_events = events,
		.ucm_event_priority = 1000,
		.ops = &ops,
		.flags = UCS_RCACHE_FLAG_NO_PFN_CHECK,
		.max_regions = ~0UL, /* without limits, as by default, UCX has no list in the order of last use */
		.max_size = ~0UL,
		.max_unreleased = ~0UL,
	};

	if (ucs_rcache_create(&params, "bench", NULL, &rcache) != UCS_OK)
		die("ucs_rcache_create");
}

static void map_regions(void)
{
	memory = mmap(NULL, (size_t)REGIONS * STRIDE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
}

/* Registers all regions once, in an order that no measurement has: regions that are allocated in
 * the order of the lookups would lie in memory as a processor likes it best. */
static void make_regions(void (*work)(struct job *))
{
	static uint32_t *order;
	struct job job;

	if (!order)
		order = random_order(REGIONS, 5);
	job = (struct job){ .order = order, .size = REGIONS, .count = REGIONS };
	work(&job);
}

static struct side side(void (*work)(struct job *), int threads, const uint32_t *one, const uint32_t *two,
			uint32_t size, long count)
{
	return (struct side){
		.work = work,
		.threads = threads,
		.jobs = { { .order = one, .size = size, .count = count },
			  { .order = two, .size = size, .count = count, .thread = 1 } },
	};
}

static void unfenced(void)
{
	static const uint32_t first[] = { 0 }, other[] = { 500 };
	uint32_t *all[THREADS] = { random_order(REGIONS, 1), random_order(REGIONS, 2) };
	uint32_t *some[THREADS] = { random_order(1000, 3), random_order(1000, 4) };
	int rounds = 2000 / less, long_rounds = 60 / less;
	const long few = 5000;

	map_regions();
	open_ucx(0);
	start_second_thread();
	/* pthread_create has set it to 0. */
	__libc_single_threaded = 1;
	make_regions(relaxed_pairs);
	make_regions(ucx_pairs);

	head("hits, process that never had a second thread, ns", UCX);
	for (int threads = 1; threads <= THREADS; threads++) {
		const char *names[] = { "1 thread, 1 region", "1 thread, 1000 regions in random order",
					"1 thread, 100000 regions in random order", "2 threads, the same region",
					"2 threads, the same 1000 regions", "2 threads, the same 100000 regions",
					"1 thread, 1 region, remote rights", "2 threads, a region each" };
		const char **name = &names[threads == 1 ? 0 : 3];
		const double targets[] = { 0.6, 0.7, 0.9, 0, 0, 0 }, *target = &targets[threads == 1 ? 0 : 3];

		if (threads == 2)
			head("the cache alone: 2 threads, told that it is 1, ns", UCX);
		compare(name[0], UCX, (struct side[]){ side(relaxed_pairs, threads, first, first, 1, few),
							side(ucx_pairs, threads, first, first, 1, few) }, rounds, target[0]);
		compare(name[1], UCX, (struct side[]){ side(relaxed_pairs, threads, some[0], some[1], 1000, few),
							side(ucx_pairs, threads, some[0], some[1], 1000, few) }, rounds,
			target[1]);
		compare(name[2], UCX, (struct side[]){ side(relaxed_pairs, threads, all[0], all[1], REGIONS, REGIONS),
							side(ucx_pairs, threads, all[0], all[1], REGIONS, REGIONS) },
			long_rounds, target[2]);
		if (threads == 1)
			compare(names[6], UCX, (struct side[]){ side(relaxed_remote_pairs, 1, first, first, 1, few),
								 side(ucx_pairs, 1, first, first, 1, few) }, rounds, 0.6);
		else
			compare(names[7], UCX, (struct side[]){ side(relaxed_pairs, 2, first, other, 1, few),
								 side(ucx_pairs, 2, first, other, 1, few) }, rounds, 0);
	}
	head("2 threads on different regions beside 1 thread, ns", "1 thread");
	compare("2 threads, a region each", "1 thread",
		(struct side[]){ side(relaxed_pairs, 2, first, other, 1, few),
				 side(relaxed_pairs, 1, first, first, 1, few) }, rounds, 1.5);
	compare("2 threads that add, each to memory of its own", "1 thread",
		(struct side[]){ side(additions, 2, first, other, 1, few),
				 side(additions, 1, first, first, 1, few) }, rounds, 0);
}

/* ---- Cold: the time of a hit after other work, which has evicted the processor's caches. ---- */

/* The time of one operation after that much other work; the clock itself is warm. */
static double cold_once(void (*work)(struct job *), struct job *job, char *other, size_t size)
{
	double start;

	for (size_t at = 0; at < size; at += 64)
		other[at]++;
	now();
	start = now();
	work(job);
	return now() - start;
}

static void cold(const char *names[3], uint32_t *order, size_t size, int rounds)
{
	enum { HIT, UCX_HIT, CALL, FENCE, NOTHING, OPERATIONS };
	void (*const works[OPERATIONS])(struct job *) = { relaxed_pairs, ucx_pairs, system_calls, fences, nothing };
	char *other = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	double *times[OPERATIONS], *less_call[WAYS], *hit[WAYS], middle[OPERATIONS];
	struct job jobs[OPERATIONS];

	if (other == MAP_FAILED)
		die("mmap");
	for (int n = 0; n < OPERATIONS; n++) {
		if (!(times[n] = calloc((size_t)rounds, sizeof(double))))
			die("calloc");
		jobs[n] = (struct job){ .order = order, .size = 1000, .count = 1 };
	}
	allocate(less_call, rounds);
	allocate(hit, rounds);
	for (int round = 0; round < rounds; round++)
		for (int turn = 0; turn < OPERATIONS; turn++) {
			int n = (round + turn) % OPERATIONS;

			times[n][round] = cold_once(works[n], &jobs[n], other, size);
		}
	munmap(other, size);
	/* Single times vary widely, so the difference of two of them means nothing; that of medians
	 * does. */
	for (int n = 0; n < OPERATIONS; n++)
		middle[n] = median(times[n], rounds);
	less_call[OURS][0] = middle[HIT] - middle[CALL];
	less_call[PEER][0] = middle[UCX_HIT] - middle[NOTHING];
	report(names[0], UCX, less_call, 1, 1);
	hit[OURS][0] = middle[HIT] - middle[NOTHING];
	hit[PEER][0] = middle[CALL] - middle[NOTHING];
	report(names[1], "getppid", hit, 1, 0);
	hit[OURS][0] = middle[FENCE] - middle[NOTHING];
	report(names[2], "getppid", hit, 1, 0);
	release(less_call);
	release(hit);
	for (int n = 0; n < OPERATIONS; n++)
		free(times[n]);
}

/* Small mappings far apart, so that no two share anything that a watch might treat as a whole. */
enum { AREAS = 32 };
#define AREA_STRIDE ((size_t)4 << 20)
static char *const areas = (char *)0x20000000000;

static void map_areas(void)
{
	for (size_t n = 0; n < AREAS; n++) {
		char *area = mmap(areas + n * AREA_STRIDE, PAGE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE, -1, 0);

		if (area != areas + n * AREA_STRIDE)
			die("mmap of an area");
	}
}

static void unmap_areas(void)
{
	for (size_t n = 0; n < AREAS; n++)
		if (syscall(SYS_munmap, areas + n * AREA_STRIDE, PAGE))
			die("munmap of an area");
}

/* Unmapped regions are deregistered some time later: wait, so that this does not fall into the next
 * measurement. Their domain has no other regions. */
static void settle(void)
{
	errno = ibv_flush_relaxed_mr(stub_other_pd());
	if (errno)
		die("ibv_flush_relaxed_mr");
}

static void open_watch(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = (uint64_t)1 << 15 /* UFFD_FEATURE_WP_ASYNC */ };

	uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (uffd >= 0 && ioctl(uffd, UFFDIO_API, &api)) {
		close(uffd);
		uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
		api = (struct uffdio_api){ .api = UFFD_API };
		if (uffd >= 0 && ioctl(uffd, UFFDIO_API, &api))
			die("UFFDIO_API");
	}
	if (uffd < 0)
		die("userfaultfd");
}

/* Registers all areas: by the cache, in which none of them is, or plainly, with one ioctl of
 * userfaultfd each. */
static double misses_once(int way)
{
	struct ibv_mr *mrs[AREAS];
	double start, took;

	map_areas();
	start = now();
	for (size_t n = 0; n < AREAS; n++) {
		char *area = areas + n * AREA_STRIDE;

		if (way == OURS) {
			mrs[n] = ibv_reg_mr_relaxed(stub_other_pd(), area, PAGE, ACCESS);
		} else {
			struct uffdio_register watch = {
				.range = { .start = (uintptr_t)area, .len = PAGE }, .mode = UFFDIO_REGISTER_MODE_WP,
			};

			mrs[n] = (ibv_reg_mr)(stub_other_pd(), area, PAGE, ACCESS);
			if (ioctl(uffd, UFFDIO_REGISTER, &watch))
				die("UFFDIO_REGISTER");
		}
		if (!mrs[n])
			die("a registration");
	}
	took = now() - start;
	for (size_t n = 0; n < AREAS; n++)
		if (way == OURS ? ibv_dereg_mr_relaxed(mrs[n]) : ibv_dereg_mr(mrs[n]))
			die("a deregistration");
	unmap_areas();
	settle();
	return took / AREAS;
}

static void misses(void)
{
	struct rdmamr_stats before = stats(), after;
	int rounds = 1000 / less;
	double *times[WAYS];

	allocate(times, rounds);
	for (int round = -20; round < rounds; round++)
		for (int turn = 0; turn < WAYS; turn++) {
			double time = misses_once((turn + round) & 1);

			if (round >= 0)
				times[(turn + round) & 1][round] = time;
		}
	after = stats();
	if (after.misses - before.misses < (uint64_t)rounds * AREAS) {
		fprintf(stderr, "relaxed: %llu misses instead of %d: this did not measure misses\n",
			(unsigned long long)(after.misses - before.misses), rounds * AREAS);
		exit(1);
	}
	head("registration that misses, 4 KiB, ns", "its parts");
	report("a miss, beside ibv_reg_mr and UFFDIO_REGISTER", "ibv_reg_mr + UFFDIO_REGISTER", times, rounds, 1.05);
	release(times);
}

static double unmaps_once(bool by_libc, bool watched)
{
	double start, took;

	map_areas();
	if (watched)
		for (size_t n = 0; n < AREAS; n++) {
			struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_other_pd(), areas + n * AREA_STRIDE, PAGE, ACCESS);

			if (!mr || ibv_dereg_mr_relaxed(mr))
				die("a region to unmap");
		}
	start = now();
	for (size_t n = 0; n < AREAS; n++) {
		char *area = areas + n * AREA_STRIDE;

		if (by_libc ? munmap(area, PAGE) : (int)syscall(SYS_munmap, area, PAGE))
			die("munmap");
	}
	took = now() - start;
	settle();
	return took / AREAS;
}

static void unmaps(void)
{
	static const struct {
		const char *what;
		bool by_libc, watched;
		double target;
	} kinds[] = {
		{ "munmap of memory that is not watched", true, false, 1.05 },
		{ "munmap of memory of an idle region", true, true, 0 },
		{ "the same by a raw system call", false, true, 0 },
	};
	int rounds = 1000 / less;
	double *times[WAYS];

	head("munmap, 4 KiB, ns", "raw system call");
	for (size_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++) {
		allocate(times, rounds);
		for (int round = -20; round < rounds; round++)
			for (int turn = 0; turn < WAYS; turn++) {
				int way = (turn + round) & 1;
				double time = way == OURS ? unmaps_once(kinds[kind].by_libc, kinds[kind].watched) :
							    unmaps_once(false, false);

				if (round >= 0)
					times[way][round] = time;
			}
		report(kinds[kind].what, "munmap, raw", times, rounds, kinds[kind].target);
		release(times);
	}
}

/* Hits in a process with threads. */
static void beside_ucx(const char *watch, int rounds)
{
	static const uint32_t first[] = { 0 };
	uint32_t *some = random_order(1000, 3);
	const long few = 2000;
	char names[2][60];

	snprintf(names[0], sizeof(names[0]), "1 region: fenced, UCX %s", watch);
	snprintf(names[1], sizeof(names[1]), "1000 regions: fenced, UCX %s", watch);
	compare(names[0], UCX, (struct side[]){ side(relaxed_pairs, 1, first, first, 1, few),
						side(ucx_pairs, 1, first, first, 1, few) }, rounds, 0);
	compare(names[1], UCX, (struct side[]){ side(relaxed_pairs, 1, some, some, 1000, few),
						side(ucx_pairs, 1, some, some, 1000, few) }, rounds, 0);
	free(some);
}

/* UCX's watch patches code of its own into munmap, so this runs in a process of its own. */
static void watched(void)
{
	map_regions();
	start_second_thread();
	make_regions(relaxed_pairs);
	open_ucx(UCM_EVENT_VM_UNMAPPED);
	make_regions(ucx_pairs);
	head("reg + dereg that hits, fenced, ns", UCX " with its watch");
	beside_ucx("with its watch", 1000 / less);
}

static void fenced(void)
{
	static const uint32_t first[] = { 0 }, other[] = { 500 };
	uint32_t *some[THREADS] = { random_order(1000, 3), random_order(1000, 4) };
	uint32_t *all[THREADS] = { random_order(REGIONS, 1), random_order(REGIONS, 2) };
	int rounds = 1000 / less, long_rounds = 60 / less;
	const long few = 2000;

	map_regions();
	start_second_thread();
	make_regions(relaxed_pairs);
	open_ucx(0);
	make_regions(ucx_pairs);
	open_watch();
	head("reg + dereg that hits, fenced, ns", "getppid");
	compare("1 region, another thread (asleep): fenced", "getppid",
		(struct side[]){ side(relaxed_pairs, 1, first, first, 1, few),
				 side(system_calls, 1, first, first, 1, few) }, rounds, 1.65);
	compare("1000 regions in random order: fenced", "getppid",
		(struct side[]){ side(relaxed_pairs, 1, some[0], some[0], 1000, few),
				 side(system_calls, 1, first, first, 1, few) }, rounds, 1.8);
	compare("100000 regions in random order: fenced", "getppid",
		(struct side[]){ side(relaxed_pairs, 1, all[0], all[0], REGIONS, REGIONS),
				 side(system_calls, 1, first, first, 1, REGIONS) }, long_rounds, 2.3);
	compare("the fence's system call alone", "getppid",
		(struct side[]){ side(fences, 1, first, first, 1, few),
				 side(system_calls, 1, first, first, 1, few) }, rounds, 0);
	head("reg + dereg that hits, fenced, ns", UCX " without its watch");
	beside_ucx("without its watch", rounds);
	head("2 threads at once, fenced, ns", UCX);
	compare("2 threads, the same region: fenced", UCX,
		(struct side[]){ side(relaxed_pairs, 2, first, first, 1, few),
				 side(ucx_pairs, 2, first, first, 1, few) }, rounds, 1.3);
	compare("2 threads, a region each: fenced", UCX,
		(struct side[]){ side(relaxed_pairs, 2, first, other, 1, few),
				 side(ucx_pairs, 2, first, other, 1, few) }, rounds, 1.3);
	compare("2 threads, the same 1000 regions: fenced", UCX,
		(struct side[]){ side(relaxed_pairs, 2, some[0], some[1], 1000, few),
				 side(ucx_pairs, 2, some[0], some[1], 1000, few) }, rounds, 1.3);
	compare("2 threads, the same 100000 regions: fenced", UCX,
		(struct side[]){ side(relaxed_pairs, 2, all[0], all[1], REGIONS, REGIONS),
				 side(ucx_pairs, 2, all[0], all[1], REGIONS, REGIONS) }, long_rounds, 1.3);
	compare("2 threads, the fence's system call alone", "1 thread",
		(struct side[]){ side(fences, 2, first, other, 1, few),
				 side(fences, 1, first, first, 1, few) }, rounds, 0);
	head("cold, 1000 regions, fenced, ns", "peer");
	cold((const char *[]){ "1 MiB of work between: a hit less getppid", "1 MiB of work between: a hit",
			       "1 MiB of work between: the fence's system call" },
	     some[0], (size_t)1 << 20, 20000 / less);
	cold((const char *[]){ "8 MiB of work between: a hit less getppid", "8 MiB of work between: a hit",
			       "8 MiB of work between: the fence's system call" },
	     some[0], (size_t)8 << 20, 4000 / less);
	misses();
	unmaps();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = { { "fenced", fenced }, { "unfenced", unfenced }, { "watched", watched } };
	void (*run)(void) = NULL;
	const char *why;

	for (int n = 2; n < argc; n++) {
		format = !strcmp(argv[n], "--json") ? JSON : format;
		less = !strcmp(argv[n], "--quick") ? 10 : less;
	}
	for (size_t n = 0; argc > 1 && n < sizeof(parts) / sizeof(*parts); n++)
		run = strcmp(argv[1], parts[n].name) ? run : parts[n].run;
	if (!run || !rdmamr_get_stats || !ibv_reg_mr_relaxed) {
		fprintf(stderr, "usage: LD_PRELOAD=librdmamr.so.1 relaxed fenced|unfenced|watched [--json|--quick]\n");
		return 2;
	}
	if (!getenv("RDMAMR_CACHE_MAX_IDLE")) {
		fprintf(stderr, "relaxed: this needs the settings of bench/relaxed\n");
		return 2;
	}
	why = stub_open(STUB_NOTHING);
	if (why)
		die(why);
	run();
	errno = ibv_flush_relaxed_mr(stub_pd());
	if (errno)
		die("ibv_flush_relaxed_mr");
	if (stub_registered() != stub_deregistered() || stats().idle) {
		fprintf(stderr, "relaxed: the flush left regions behind: %ld registered, %ld deregistered, %llu idle\n",
			stub_registered(), stub_deregistered(), (unsigned long long)stats().idle);
		return 1;
	}
	return 0;
}
