/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times how the cache's watch slows a program's own memory calls, on this machine's processor,
 * without a device (ctests/lib/stub_device.h). Each row has the same calls without registered
 * memory near them beside it, in one process and in turn.
 *
 * Compiled as the suites that have the stand-in (ctests/manifest: stub), run with the library
 * preloaded.
 *
 * Usage: mappings [ROW [ROUNDS [THREADS]]]   ROW is miss, unmap, drop, realloc or limit.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "../ctests/lib/stub_device.h"
#include "median.h"
#include "bench.h"

enum { PAGE = 4096, CHUNK = 2 << 20, ACCESS = IBV_ACCESS_LOCAL_WRITE, AREAS = 32 };
enum { WITH, WITHOUT, WAYS };
#define AREA_STRIDE ((size_t)4 << 20)
static char *const areas = (char *)0x20000000000;

static double now(void) { return clock_of(CLOCK_MONOTONIC); }

static void print(const char *what, double with, double without)
{
	printf("%-64s %10.0f ns %10.0f ns %7.2f\n", what, with, without, with / without);
	fflush(stdout);
}

static char *map_at(void *where, size_t length)
{
	char *memory = mmap(where, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (where ? MAP_FIXED_NOREPLACE : 0), -1, 0);

	if (memory == MAP_FAILED || (where && memory != where))
		die("mmap");
	return memory;
}

static void map_areas(void)
{
	for (size_t n = 0; n < AREAS; n++)
		map_at(areas + n * AREA_STRIDE, PAGE);
}

static void unmap_areas(void)
{
	for (size_t n = 0; n < AREAS; n++)
		if (syscall(SYS_munmap, areas + n * AREA_STRIDE, PAGE))
			die("munmap of an area");
}

static void settle(void)
{
	errno = ibv_flush_relaxed_mr(stub_other_pd());
	if (errno)
		die("ibv_flush_relaxed_mr");
}

static int watch(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		die("userfaultfd");
	return fd;
}

static double misses_once(int way, int uffd)
{
	struct ibv_mr *mrs[AREAS];
	double start, took;

	map_areas();
	start = now();
	for (size_t n = 0; n < AREAS; n++) {
		char *area = areas + n * AREA_STRIDE;

		if (way == WITH) {
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
		if (way == WITH ? ibv_dereg_mr_relaxed(mrs[n]) : ibv_dereg_mr(mrs[n]))
			die("a deregistration");
	unmap_areas();
	settle();
	return took / AREAS;
}

static void idle(size_t n)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_other_pd(), areas + n * AREA_STRIDE, PAGE, ACCESS);

	if (!mr || ibv_dereg_mr_relaxed(mr))
		die("an idle region");
}

static double unmaps_once(int way, bool by_libc)
{
	double start, took;

	map_areas();
	if (way == WITH)
		for (size_t n = 0; n < AREAS; n++)
			idle(n);
	start = now();
	for (size_t n = 0; n < AREAS; n++) {
		char *area = areas + n * AREA_STRIDE;

		if (by_libc && way == WITH ? munmap(area, PAGE) : (int)syscall(SYS_munmap, area, PAGE))
			die("munmap");
	}
	took = now() - start;
	settle();
	return took / AREAS;
}

/* A program of many threads, each of which drops pages of its own, again and again. */
enum { DROPPED = 16, DROPS = 40 };
struct dropper { pthread_t thread; char *memory; pthread_barrier_t *start, *end; int rounds; };

static void *drop(void *argument)
{
	struct dropper *dropper = argument;

	for (int round = 0; round < dropper->rounds; round++) {
		pthread_barrier_wait(dropper->start);
		for (int n = 0; n < DROPS; n++) {
			memset(dropper->memory, n, PAGE);
			if (madvise(dropper->memory, (size_t)DROPPED * PAGE, MADV_DONTNEED))
				die("madvise");
		}
		pthread_barrier_wait(dropper->end);
	}
	return NULL;
}

/* Pages in chunks that each have a registered page, and pages in chunks that have none. */
static void drops(int rounds, int threads, bool idle_regions)
{
	size_t length = ((size_t)threads * DROPPED * PAGE + 2 * CHUNK) & ~((size_t)CHUNK - 1);
	struct dropper *all = calloc((size_t)threads * WAYS, sizeof(*all));
	double *times[WAYS] = { calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double)) };
	pthread_barrier_t start[WAYS], end[WAYS];
	char name[128];

	for (int way = 0; way < WAYS; way++) {
		char *room = map_at(NULL, length + 2 * CHUNK);
		char *memory = (char *)(((uintptr_t)room + CHUNK - 1) & ~((uintptr_t)CHUNK - 1));

		/* The threads' pages begin after the registered page. */
		for (size_t at = 0; way == WITH && at < length; at += CHUNK) {
			struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + at, PAGE, ACCESS);

			if (!mr || (idle_regions && ibv_dereg_mr_relaxed(mr)))
				die("a registration");
		}
		pthread_barrier_init(&start[way], NULL, (unsigned)threads + 1);
		pthread_barrier_init(&end[way], NULL, (unsigned)threads + 1);
		for (int n = 0; n < threads; n++) {
			/* 30 threads have their pages in a chunk. */
			size_t at = (size_t)(n / 30) * CHUNK + (size_t)(n % 30 + 1) * DROPPED * PAGE;
			struct dropper *dropper = &all[way * threads + n];
			pthread_attr_t attr;

			if (at + DROPPED * PAGE > length)
				at %= length - DROPPED * PAGE;
			*dropper = (struct dropper){ .memory = memory + at, .start = &start[way], .end = &end[way],
						     .rounds = rounds };
			pthread_attr_init(&attr);
			pthread_attr_setstacksize(&attr, 64 << 10);
			if (pthread_create(&dropper->thread, &attr, drop, dropper))
				die("pthread_create");
		}
	}
	for (int round = 0; round < rounds; round++)
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round) & 1;
			double began;

			began = now();
			pthread_barrier_wait(&start[way]);
			pthread_barrier_wait(&end[way]);
			times[way][round] = (now() - began) / threads / DROPS;
		}
	for (int n = 0; n < threads * WAYS; n++)
		pthread_join(all[n].thread, NULL);
	snprintf(name, sizeof(name), "%d threads drop pages beside %s memory, each drop", threads,
		 idle_regions ? "idle" : "registered");
	print(name, median(times[WITH], rounds), median(times[WITHOUT], rounds));
}

static long high_water_kib(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	char line[256];
	long kib = -1;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "VmHWM: %ld", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib;
}

static void reset_high_water(void)
{
	FILE *file = fopen("/proc/self/clear_refs", "we");

	if (file) {
		fputs("5", file);
		fclose(file);
	}
}

static void reallocs(int rounds)
{
	size_t size = (size_t)512 << 20;
	double *times[WAYS] = { calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double)) };
	long most[WAYS] = { 0 };

	for (int round = 0; round < rounds; round++)
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round) & 1;
			char *block = malloc(size), *next;
			double began;

			if (!block)
				die("malloc");
			memset(block, 1, size);
			if (way == WITH) {
				struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), block + size / 2, 1 << 20, ACCESS);

				if (!mr || ibv_dereg_mr_relaxed(mr))
					die("a registration");
			}
			reset_high_water();
			began = now();
			next = realloc(block, size + size / 8);
			times[way][round] = now() - began;
			if (!next)
				die("realloc");
			if (high_water_kib() > most[way])
				most[way] = high_water_kib();
			free(next);
		}
	print("realloc of 512 MiB, a part of which was registered", median(times[WITH], rounds),
	      median(times[WITHOUT], rounds));
	printf("%-64s %9ld KiB %9ld KiB\n", "  memory at most", most[WITH], most[WITHOUT]);
}

static double mean_miss(int count)
{
	double sum = 0;

	for (int n = 0; n < count; n++) {
		double began;
		struct ibv_mr *mr;

		map_at(areas, PAGE);
		began = now();
		mr = ibv_reg_mr_relaxed(stub_other_pd(), areas, PAGE, ACCESS);
		sum += now() - began;
		if (!mr || ibv_dereg_mr_relaxed(mr) || munmap(areas, PAGE))
			die("a miss");
	}
	return sum / count;
}

static int mappings(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	int count = 0;

	for (int byte; file && (byte = getc(file)) != EOF;)
		count += byte == '\n';
	if (file)
		fclose(file);
	return count;
}

/* Makes so many mappings that the cache has room for `room` more. */
static void limit(int misses, int room)
{
	FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
	int most = 0, cuts;
	double with;
	char *memory, name[64];

	if (!file || fscanf(file, "%d", &most) != 1)
		die("vm.max_map_count");
	fclose(file);
	cuts = most - 2 * room - mappings();
	if (cuts < 0)
		die("too many mappings");
	memory = mmap(NULL, (size_t)(cuts + 1) * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int n = 0; n < cuts; n += 2)
		if (syscall(SYS_mprotect, memory + (size_t)n * PAGE, PAGE, PROT_READ | PROT_WRITE))
			die("mprotect");
	snprintf(name, sizeof(name), "a miss with room for %d mappings (%d of %d), mean", room, mappings(), most);
	with = mean_miss(misses);
	munmap(memory, (size_t)(cuts + 1) * PAGE);
	settle();
	mean_miss(misses);
	print(name, with, mean_miss(misses));
}

static void in_turn(const char *what, int rounds, double (*once)(int way, int argument), int argument)
{
	double *times[WAYS] = { calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double)) };

	for (int round = -20; round < rounds; round++)
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round) & 1;
			double time = once(way, argument);

			if (round >= 0)
				times[way][round] = time;
		}
	print(what, median(times[WITH], rounds), median(times[WITHOUT], rounds));
}

static double unmaps(int way, int by_libc)
{
	return unmaps_once(way, by_libc);
}

int main(int argc, char **argv)
{
	const char *row = argc > 1 ? argv[1] : NULL, *why = stub_open(STUB_NOTHING);
	int rounds = argc > 2 ? atoi(argv[2]) : 0, threads = argc > 3 ? atoi(argv[3]) : 0;

	if (why)
		return fprintf(stderr, "mappings: %s\n", why), 1;
	if (!row || !strcmp(row, "miss"))
		in_turn("a miss, beside ibv_reg_mr and UFFDIO_REGISTER", rounds ? rounds : 1000, misses_once, watch());
	if (!row || !strcmp(row, "unmap")) {
		in_turn("munmap of memory of an idle region, beside the raw system call", rounds ? rounds : 1000, unmaps, true);
		in_turn("the same by a raw system call", rounds ? rounds : 1000, unmaps, false);
	}
	if (!row || !strcmp(row, "drop"))
		for (int n = threads ? threads : 8; n <= (threads ? threads : 500); n = n == 8 ? 64 : n == 64 ? 500 : n + 10000) {
			drops(rounds ? rounds : 20, n, false);
			drops(rounds ? rounds : 20, n, true);
		}
	if (!row || !strcmp(row, "realloc"))
		reallocs(rounds ? rounds : 3);
	if (!row || !strcmp(row, "limit"))
		limit(rounds ? rounds : 3000, threads ? threads : 60);
	return 0;
}
