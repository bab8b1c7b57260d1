/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times a pair of fi_mr_reg and fi_close on a domain of this library, plain and relaxed, beside
 * libfabric's verbs provider on the same device: with its registration cache off, and on with each
 * of its monitors. The provider reads its monitor from the environment when the process starts, and
 * a process with this library would make the provider's registrations too. So each way has a
 * process of its own, which waits on a pipe for its turn. The layout of a process's memory favours
 * one way or another for as long as the process lives, so all processes start anew after some
 * rounds. All ways call libfabric's inline functions, and request all rights, because the
 * provider's cache registers with all rights in any case.
 *
 * Usage: fabric librdmamr.so.1 DEVICE ADDRESS ROUNDS [--json]
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdmamr.h>
#include <rdmamr/fi_mr.h>
#include <rdmamr/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"
#include "device.h"
#include "median.h"

/* NULL in the processes of the verbs provider, which do not preload the library. */
#pragma weak rdmamr_get_stats
#pragma weak rdmamr_domain_open
#pragma weak ibv_flush_relaxed_mr

#define ACCESS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define MR_MODE (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

enum { LIFE = 20 }; /* the rounds that a process lives */
enum { VERBS_OFF, VERBS_MEMHOOKS, VERBS_USERFAULTFD, PLAIN, RELAXED, RELAXED_THREADS, WAYS };

/* In both caches, nothing that is measured may end by age or size. The limit on the number of
 * regions stays at its default, which suffices. FI_FORK_UNSAFE: libfabric calls no madvise for
 * forks around each registration, since the library calls none either. */
#define VERBS(monitor) { "FI_PROVIDER=verbs", "FI_FORK_UNSAFE=1", "FI_MR_CACHE_MAX_SIZE=68719476736", \
			 "FI_MR_CACHE_MONITOR=" monitor }
#define OURS { "RDMAMR_CACHE_LINGER=3600", "RDMAMR_CACHE_MAX_IDLE_BYTES=64G" }
static const struct way {
	const char *name, *title;
	bool ours, hits; /* hits: a cache serves the pairs, without a call of the kernel */
	char *environment[4];
} ways[WAYS] = {
	[VERBS_OFF] = { "verbs_off", "verbs, cache off", false, false, VERBS("disabled") },
	[VERBS_MEMHOOKS] = { "verbs_memhooks", "verbs, memhooks", false, true, VERBS("memhooks") },
	[VERBS_USERFAULTFD] = { "verbs_userfaultfd", "verbs, userfaultfd", false, true, VERBS("userfaultfd") },
	[PLAIN] = { "plain", "rdmamr, plain", true, false, OURS },
	[RELAXED] = { "relaxed", "rdmamr, relaxed", true, true, OURS },
	[RELAXED_THREADS] = { "relaxed_threads", "rdmamr, relaxed, 2 threads", true, true, OURS },
};

static const struct {
	const char *what;
	int ours, theirs;
	double target; /* 0: no target */
} comparisons[] = {
	{ "plain, beside verbs with its cache off", PLAIN, VERBS_OFF, 0.9 },
	{ "relaxed hit, beside verbs with memhooks", RELAXED, VERBS_MEMHOOKS, 0.7 },
	{ "relaxed hit, beside verbs with userfaultfd", RELAXED, VERBS_USERFAULTFD, 0.7 },
	{ "the same with a second thread, beside memhooks", RELAXED_THREADS, VERBS_MEMHOOKS, 0 },
};
enum { COMPARISONS = sizeof(comparisons) / sizeof(*comparisons) };

/* An order to a process: whether to map new memory first, and how many pairs to make on it. */
struct order {
	size_t length;
	uint32_t regions, warm_up, pairs;
};

/* The answer. The counts include the pairs of the warm-up. */
struct report {
	double ns;           /* of one pair, without the warm-up */
	uint64_t same_key;   /* pairs whose rkey equals that of the last registration of their memory */
	uint64_t hits;       /* by rdmamr_get_stats, in the library's ways */
	uint64_t reg_kernel; /* by rdmamr_get_stats, in the library's ways */
};

static const char *who = "fabric";

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s: %s\n", who, what, why);
	exit(1);
}

static double now(void) { return clock_of(CLOCK_MONOTONIC); }

/* Whether data came, rather than the end of the pipe. */
static bool read_whole(int fd, void *memory, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t got = read(fd, (char *)memory + done, size - done);

		if (got < 0 && errno != EINTR)
			fail("read", strerror(errno));
		if (got == 0)
			return false;
		done += got > 0 ? (size_t)got : 0;
	}
	return true;
}

static void write_whole(int fd, const void *memory, size_t size)
{
	/* A pipe takes this much in one write. */
	if (write(fd, memory, size) != (ssize_t)size)
		fail("write", strerror(errno));
}

/* ---- A process: its domain, and pairs on it. ---- */

static struct {
	struct order last;
	struct fid_domain *domain;
	struct ibv_pd *pd; /* in the library's ways */
	char *memory;
	size_t mapped;
	uint32_t *sequence; /* the regions in random order */
	uint32_t at;
	uint64_t *keys;
} job;

static struct fid_domain *verbs_domain(const char *device, const char *address)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	int err;

	if (!hints)
		fail("fi_allocinfo", "no memory");
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = ~0ULL;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = MR_MODE;
	hints->domain_attr->name = strdup(device);
	hints->fabric_attr->prov_name = strdup("verbs");
	/* If there is only one address, the provider must be told which. */
	err = fi_getinfo(FI_VERSION(1, 17), address, NULL, FI_SOURCE, hints, &info);
	if (!err)
		err = fi_fabric(info->fabric_attr, &fabric, NULL);
	if (!err)
		err = fi_domain(fabric, info, &domain, NULL);
	if (err)
		fail("the verbs provider", fi_strerror(-err));
	return domain;
}

static struct fid_domain *our_domain(const char *device, uint64_t flags)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof(attr), .api_version = FI_VERSION(1, 17), .mr_mode = MR_MODE, .flags = flags,
	};
	struct fid_domain *domain;
	int err;

	job.pd = domain_of(device);
	if (!job.pd)
		fail(device, "cannot be opened");
	err = rdmamr_domain_open(job.pd, &attr, &domain, NULL);
	if (err)
		fail("rdmamr_domain_open", fi_strerror(-err));
	return domain;
}

static void *sleeper(void *argument)
{
	for (;;)
		pause();
	return argument;
}

static uint64_t pairs(uint32_t count)
{
	uint64_t same_key = 0;

	for (uint32_t n = 0; n < count; n++) {
		uint32_t region = job.sequence[job.at];
		struct fid_mr *mr;
		uint64_t key;
		int err = fi_mr_reg(job.domain, job.memory + region * job.last.length, job.last.length, ACCESS, 0, 0, 0,
				    &mr, NULL);

		if (err)
			fail("fi_mr_reg", fi_strerror(-err));
		key = fi_mr_key(mr);
		same_key += job.keys[region] == key;
		job.keys[region] = key;
		err = fi_close(&mr->fid);
		if (err)
			fail("fi_close", fi_strerror(-err));
		if (++job.at == job.last.regions)
			job.at = 0;
	}
	return same_key;
}

/* Huge pages: a registration's cost depends on the layout of the pages, which would differ from
 * process to process by chance. */
static char *map(size_t size, size_t *mapped)
{
	const size_t huge = 2 << 20;
	char *memory, *aligned;

	*mapped = (size + huge - 1) & ~(huge - 1);
	memory = mmap(NULL, *mapped + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap", strerror(errno));
	aligned = memory + (-(uintptr_t)memory & (huge - 1));
	munmap(aligned + *mapped, (size_t)(memory + huge - aligned));
	if (aligned > memory)
		munmap(memory, (size_t)(aligned - memory));
	/* Some kernels have no huge pages; then small ones must do. */
	madvise(aligned, *mapped, MADV_HUGEPAGE);
	memset(aligned, 1, *mapped);
	return aligned;
}

/* Maps new memory and registers each region once, in another order than the measured one. */
static void start_case(const struct order *order)
{
	unsigned int seed = 1;

	/* Regions that ended by themselves later would do so during the next measurement, and be
	 * counted. */
	if (job.pd && ibv_flush_relaxed_mr(job.pd))
		fail("ibv_flush_relaxed_mr", "refused");
	if (job.memory)
		munmap(job.memory, job.mapped);
	free(job.sequence);
	free(job.keys);
	job.last = *order;
	job.at = 0;
	job.memory = map(order->regions * order->length, &job.mapped);
	job.sequence = calloc(order->regions, sizeof(*job.sequence));
	job.keys = calloc(order->regions, sizeof(*job.keys));
	if (!job.sequence || !job.keys)
		fail("calloc", strerror(errno));
	for (uint32_t n = 0; n < order->regions; n++)
		job.sequence[n] = n;
	for (int twice = 0; twice < 2; twice++) {
		for (uint32_t n = order->regions - 1; n > 0; n--) {
			uint32_t other = (uint32_t)rand_r(&seed) % (n + 1), swap = job.sequence[n];

			job.sequence[n] = job.sequence[other];
			job.sequence[other] = swap;
		}
		if (!twice)
			pairs(order->regions);
	}
}

static struct rdmamr_stats stats(bool ours)
{
	struct rdmamr_stats stats = { 0 };

	if (ours && rdmamr_get_stats(&stats, sizeof(stats)))
		fail("rdmamr_get_stats", "refused");
	return stats;
}

static int serve(int number, const char *device, const char *address)
{
	const struct way *way = &ways[number];
	pthread_t thread;
	struct order order;

	who = way->name;
	if (way->ours != !!rdmamr_get_stats || way->ours != !!rdmamr_domain_open)
		fail("the library", way->ours ? "the library is not loaded" : "the library is loaded, and would register for the provider");
	job.domain = way->ours ? our_domain(device, number == PLAIN ? 0 : RDMAMR_DOMAIN_CACHE) :
				 verbs_domain(device, address);
	if (number == RELAXED_THREADS && pthread_create(&thread, NULL, sleeper, NULL))
		fail("pthread_create", "no thread");
	while (read_whole(STDIN_FILENO, &order, sizeof(order))) {
		struct rdmamr_stats before, after;
		struct report report = { 0 };
		double start;

		if (order.length != job.last.length || order.regions != job.last.regions)
			start_case(&order);
		before = stats(way->ours);
		report.same_key = pairs(order.warm_up);
		start = now();
		report.same_key += pairs(order.pairs);
		report.ns = (now() - start) / order.pairs;
		after = stats(way->ours);
		report.hits = after.hits - before.hits;
		report.reg_kernel = after.reg_kernel - before.reg_kernel;
		write_whole(STDOUT_FILENO, &report, sizeof(report));
	}
	return 0;
}

/* ---- The parent: gives turns and collects answers. ---- */

static struct child {
	pid_t pid;
	int to, from;
} children[WAYS];

static void start(int way, char **argv)
{
	const char *peer = getenv("PEER");
	int down[2], up[2];
	char number[12];

	if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC))
		fail("pipe2", strerror(errno));
	children[way] = (struct child){ fork(), down[1], up[0] };
	if (children[way].pid < 0)
		fail("fork", strerror(errno));
	if (children[way].pid == 0) {
		for (int n = 0; n < 4 && ways[way].environment[n]; n++)
			putenv(ways[way].environment[n]);
		unsetenv("FI_PROVIDER_PATH");
		if (ways[way].ours)
			setenv("LD_PRELOAD", argv[1], 1);
		else
			unsetenv("LD_PRELOAD");
		dup2(down[0], STDIN_FILENO);
		dup2(up[1], STDOUT_FILENO);
		snprintf(number, sizeof(number), "%d", way);
		/* A command that runs this program with the newest libfabric. */
		if (!ways[way].ours && peer && *peer)
			execl(peer, peer, argv[0], "--way", number, argv[2], argv[3], NULL);
		else
			execl("/proc/self/exe", argv[0], "--way", number, argv[2], argv[3], NULL);
		fail("execl", strerror(errno));
	}
	close(down[0]);
	close(up[1]);
}

static void stop(int way)
{
	int status;

	close(children[way].to);
	close(children[way].from);
	if (waitpid(children[way].pid, &status, 0) < 0 || status)
		fail(ways[way].title, "its process has failed");
}

static struct report ask(int way, const struct order *order)
{
	struct report report;

	write_whole(children[way].to, order, sizeof(*order));
	if (!read_whole(children[way].from, &report, sizeof(report)))
		fail(ways[way].title, "its process has ended");
	return report;
}

/* A case, measured in all ways, with its results. */
static struct {
	const char *size;
	size_t length;
	uint32_t regions;
	struct {
		double *times;
		uint64_t pairs, same_key, hits, reg_kernel; /* of all rounds */
	} results[WAYS];
} cases[] = {
	{ "4 KiB", 4096, 1, { { 0 } } },   { "4 KiB", 4096, 512, { { 0 } } },
	{ "64 KiB", 65536, 1, { { 0 } } }, { "64 KiB", 65536, 512, { { 0 } } },
	{ "1 MiB", 1 << 20, 1, { { 0 } } }, { "1 MiB", 1 << 20, 512, { { 0 } } },
};
enum { CASES = sizeof(cases) / sizeof(*cases) };

static bool nearly_all(uint64_t part, uint64_t whole)
{
	return part <= whole && whole - part <= whole / 1000;
}

/* Whether the ways measured what they claim. The library's ways must. The kernel may refuse a
 * monitor of libfabric, and its cache is then off. */
static bool was_as_said(int number, int way)
{
	uint64_t all = cases[number].results[way].pairs, same_key = cases[number].results[way].same_key;
	uint64_t hits = cases[number].results[way].hits, reg_kernel = cases[number].results[way].reg_kernel;
	bool by_key = ways[way].hits ? nearly_all(same_key, all) : same_key <= all / 10;
	bool by_count = !ways[way].ours || nearly_all(ways[way].hits ? hits : reg_kernel, all);

	if (by_key && by_count)
		return true;
	fprintf(stderr, "fabric: %s, %s, %u regions: of %llu pairs %llu had the rkey of the last time, with %llu hits and "
		"%llu registrations counted: this did not measure %s\n", ways[way].title, cases[number].size,
		cases[number].regions, (unsigned long long)all, (unsigned long long)same_key, (unsigned long long)hits,
		(unsigned long long)reg_kernel, ways[way].hits ? "hits" : "registrations");
	if (ways[way].ours)
		exit(1);
	return false;
}

/* Runs rounds `from` to `to` of a case: all ways in turn, some milliseconds each. */
static void measure(int number, int from, int to)
{
	size_t length = cases[number].length;
	uint32_t regions = cases[number].regions;
	/* Pairs that call the kernel take some hundred times as long. */
	struct order registrations = { length, regions, 5, length > 65536 ? 20 : 60 };
	struct order hits = { length, regions, 1024, 8192 };
	const int warm_up = 2;

	for (int round = from - warm_up; round < to; round++)
		/* The first way changes from round to round, so that none always follows the end of a
		 * round. */
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round + warm_up) % WAYS;
			const struct order *order = ways[way].hits ? &hits : &registrations;
			struct report report = ask(way, order);

			cases[number].results[way].pairs += order->warm_up + order->pairs;
			cases[number].results[way].same_key += report.same_key;
			cases[number].results[way].hits += report.hits;
			cases[number].results[way].reg_kernel += report.reg_kernel;
			if (round >= from)
				cases[number].results[way].times[round] = report.ns;
		}
	for (int way = 0; way < WAYS; way++)
		if (ways[way].ours)
			was_as_said(number, way);
}

/* ---- Reports. ---- */

static bool json;

static void row(int number, int comparison, double ours, double theirs)
{
	const char *what = comparisons[comparison].what;
	double target = comparisons[comparison].target, ratio = ours / theirs;

	if (json) {
		printf("{\"bytes\":%zu,\"regions\":%u,\"way\":\"%s\",\"rdmamr_ns\":%.1f,\"peer\":\"%s\",\"peer_ns\":%.1f,"
		       "\"ratio\":%.3f,", cases[number].length, cases[number].regions,
		       ways[comparisons[comparison].ours].name, ours, ways[comparisons[comparison].theirs].name, theirs,
		       ratio);
		if (target)
			printf("\"target\":%.2f,\"met\":%s}\n", target, ratio <= target ? "true" : "false");
		else
			printf("\"target\":null,\"met\":null}\n");
	} else if (target) {
		printf("%-52s %9.1f %9.1f %7.3f %7.2f %s\n", what, ours, theirs, ratio, target,
		       ratio <= target ? "met" : "MISSED");
	} else {
		printf("%-52s %9.1f %9.1f %7.3f %7s\n", what, ours, theirs, ratio, "-");
	}
}

static void report(int number, int rounds)
{
	double medians[WAYS];
	bool valid[WAYS];

	for (int way = 0; way < WAYS; way++) {
		valid[way] = was_as_said(number, way);
		medians[way] = median(cases[number].results[way].times, rounds);
	}
	if (!json)
		printf("\n%7s, %3u region%-33s %9s %9s %7s %7s\n", cases[number].size, cases[number].regions,
		       cases[number].regions > 1 ? "s in random order" : "", "rdmamr", "verbs", "ratio", "target");
	for (int n = 0; n < COMPARISONS; n++)
		if (valid[comparisons[n].theirs])
			row(number, n, medians[comparisons[n].ours], medians[comparisons[n].theirs]);
}

static void report_counts(void)
{
	printf("\nCounts: pairs with the rkey that the same memory had before, which a cache therefore served;\n"
	       "by rdmamr_get_stats, the cache's hits and the kernel's registrations. The verbs processes ran without the library.\n"
	       "%-30s %12s %12s %12s %14s\n", "", "pairs", "same rkey", "hits", "reg_kernel");
	for (int way = 0; way < WAYS; way++) {
		unsigned long long all = 0, same_key = 0, hits = 0, reg_kernel = 0;

		for (int number = 0; number < CASES; number++) {
			all += cases[number].results[way].pairs;
			same_key += cases[number].results[way].same_key;
			hits += cases[number].results[way].hits;
			reg_kernel += cases[number].results[way].reg_kernel;
		}
		if (ways[way].ours)
			printf("%-30s %12llu %12llu %12llu %14llu\n", ways[way].title, all, same_key, hits, reg_kernel);
		else
			printf("%-30s %12llu %12llu %12s %14s\n", ways[way].title, all, same_key, "-", "-");
	}
}

int main(int argc, char **argv)
{
	struct utsname system;
	int rounds;

	if (argc == 5 && !strcmp(argv[1], "--way"))
		return serve(atoi(argv[2]), argv[3], argv[4]);
	rounds = argc >= 5 ? atoi(argv[4]) : 0;
	json = argc > 5 && !strcmp(argv[5], "--json");
	if (rounds < 1 || uname(&system)) {
		fprintf(stderr, "usage: fabric librdmamr.so.1 DEVICE ADDRESS ROUNDS [--json]\n");
		return 2;
	}
	for (int number = 0; number < CASES; number++)
		for (int way = 0; way < WAYS; way++)
			if (!(cases[number].results[way].times = calloc((size_t)rounds, sizeof(double))))
				fail("calloc", strerror(errno));
	for (int from = 0; from < rounds; from += LIFE) {
		int to = from + LIFE < rounds ? from + LIFE : rounds;

		for (int way = 0; way < WAYS; way++)
			start(way, argv);
		for (int number = 0; number < CASES; number++)
			measure(number, from, to);
		for (int way = 0; way < WAYS; way++)
			stop(way);
	}
	if (!json)
		printf("A pair of fi_mr_reg and fi_close, ns: medians of %d rounds, all ways in turn\n"
		       "Linux %s, device %s, libfabric %u.%u\n", rounds, system.release, argv[2],
		       FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
	for (int number = 0; number < CASES; number++)
		report(number, rounds);
	if (!json)
		report_counts();
	return 0;
}
