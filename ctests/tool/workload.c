/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * workload PATTERN REGISTRATION PAGE DEREGISTRATION: registers memory of the stub device in one of
 * the patterns of real programs. A registration costs REGISTRATION ns and PAGE ns a page, and a
 * deregistration DEREGISTRATION ns. ctests/tool/bound.py compares the bound of `rdmamr report` with the
 * cache's real effect.
 */
#include "../lib/stub_device.h"
#include <err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LOCAL = IBV_ACCESS_LOCAL_WRITE, REMOTE = LOCAL | IBV_ACCESS_REMOTE_WRITE, BUFFER = 1 << 16 };

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static char *map(size_t length, int flags)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		err(1, "mmap");
	memset(memory, 1, length);
	return memory;
}

static struct ibv_mr *reg(char *at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), at, length, access);

	if (!mr)
		err(1, "ibv_reg_mr");
	return mr;
}

static void dereg(struct ibv_mr *mr)
{
	if (ibv_dereg_mr(mr))
		errx(1, "ibv_dereg_mr");
}

static void pair(char *at, size_t length, int access)
{
	dereg(reg(at, length, access));
}

/* `rounds` times around `buffers` of them. */
static long around(int buffers, int rounds, int access, int flags)
{
	char *memory = map((size_t)buffers * BUFFER, flags);
	long began = now();

	for (int n = 0; n < rounds * buffers; n++)
		pair(memory + (size_t)(n % buffers) * BUFFER, BUFFER, access);
	return now() - began;
}

static long ring(void) { return around(16, 250, LOCAL, MAP_PRIVATE); }
static long remote_ring(void) { return around(16, 250, REMOTE, MAP_PRIVATE); }
static long shared(void) { return around(16, 250, LOCAL, MAP_SHARED); }
static long once(void) { return around(2000, 1, LOCAL, MAP_PRIVATE); }
static long twice(void) { return around(1000, 2, LOCAL, MAP_PRIVATE); }
/* The cache can gain from the third time on. */
static long thrice(void) { return around(100, 3, LOCAL, MAP_PRIVATE); }
/* More than RDMAMR_CACHE_MAX_IDLE of them. */
static long too_many(void) { return around(256, 12, LOCAL, MAP_PRIVATE); }

/* One of four is registered again. */
static long mixed(void)
{
	char *memory = map((size_t)4096 * BUFFER / 4, MAP_PRIVATE);
	long began = now();

	for (int n = 0; n < 3000; n++)
		pair(memory + (n % 4 ? (size_t)n * (BUFFER / 4) : 0), BUFFER / 4, LOCAL);
	return now() - began;
}

/* New memory each time, at the address of the last. */
static long unmapped(void)
{
	long began = now();

	for (int n = 0; n < 2000; n++) {
		char *memory = map(BUFFER, MAP_PRIVATE);

		pair(memory, BUFFER, LOCAL);
		munmap(memory, BUFFER);
	}
	return now() - began;
}

static long emptied(void)
{
	char *memory = map(BUFFER, MAP_PRIVATE);
	long began = now();

	for (int n = 0; n < 2000; n++) {
		pair(memory, BUFFER, LOCAL);
		madvise(memory, BUFFER, MADV_DONTNEED);
	}
	return now() - began;
}

/* Later than RDMAMR_CACHE_LINGER. */
static long late(void)
{
	char *memory = map(64 * BUFFER, MAP_PRIVATE);
	long began, took = 0;

	for (int round = 0; round < 8; round++) {
		began = now();
		for (int n = 0; n < 64; n++)
			pair(memory + (size_t)n * BUFFER, BUFFER, REMOTE);
		took += now() - began;
		nanosleep(&(struct timespec){ .tv_nsec = 150000000 }, NULL);
	}
	return took;
}

static void *one_of_two(void *memory)
{
	for (int n = 0; n < 2000; n++)
		pair(memory, BUFFER, LOCAL);
	return NULL;
}

static long two_threads(void)
{
	char *memory = map(2 * BUFFER, MAP_PRIVATE);
	long began = now();
	pthread_t other;

	if (pthread_create(&other, NULL, one_of_two, memory + BUFFER))
		errx(1, "pthread_create");
	one_of_two(memory);
	pthread_join(other, NULL);
	/* The time of both. */
	return 2 * (now() - began);
}

/* The same memory eight times at once. */
static long at_once(void)
{
	char *memory = map(BUFFER, MAP_PRIVATE);
	long began = now();

	for (int round = 0; round < 300; round++) {
		struct ibv_mr *mrs[8];

		for (int n = 0; n < 8; n++)
			mrs[n] = reg(memory, BUFFER, LOCAL);
		for (int n = 0; n < 8; n++)
			dereg(mrs[n]);
	}
	return now() - began;
}

/* Parts of a larger region, which the cache has. */
static long parts(void)
{
	char *memory = map(64 * BUFFER, MAP_PRIVATE);
	long began = now();

	pair(memory, 64 * BUFFER, LOCAL);
	pair(memory, 64 * BUFFER, LOCAL);
	for (int n = 0; n < 3000; n++)
		pair(memory + (size_t)(n % 64) * BUFFER, BUFFER, LOCAL);
	return now() - began;
}

/* Buffers of the C library, which maps them anew each time. */
static long freed(void)
{
	long began = now();

	for (int n = 0; n < 60; n++) {
		char *memory = malloc(40 << 20);

		memset(memory, 1, BUFFER);
		pair(memory, BUFFER, LOCAL);
		free(memory);
	}
	return now() - began;
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		long (*run)(void);
	} patterns[] = {
		{ "ring", ring }, { "remote_ring", remote_ring }, { "shared", shared }, { "once", once },
		{ "twice", twice }, { "thrice", thrice }, { "too_many", too_many }, { "mixed", mixed }, { "unmapped", unmapped },
		{ "emptied", emptied }, { "late", late }, { "two_threads", two_threads },
		{ "at_once", at_once }, { "parts", parts }, { "freed", freed },
	};
	const char *why = stub_open(STUB_NOTHING);

	if (why)
		errx(1, "%s", why);
	if (count != 5)
		errx(2, "usage: workload PATTERN REGISTRATION PAGE DEREGISTRATION");
	stub_take((struct stub_costs){ atol(arguments[2]), atol(arguments[3]), atol(arguments[4]) });
	for (size_t n = 0; n < sizeof(patterns) / sizeof(*patterns); n++)
		if (!strcmp(arguments[1], patterns[n].name)) {
			printf("%ld\n", patterns[n].run());
			return 0;
		}
	errx(2, "no such pattern: %s", arguments[1]);
}
