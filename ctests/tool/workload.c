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

static char *map(size_t length)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		err(1, "mmap");
	memset(memory, 1, length);
	return memory;
}

static void pair(char *at, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), at, BUFFER, access);

	if (!mr || ibv_dereg_mr(mr))
		errx(1, "a registration fails");
}

/* `rounds` times around `buffers` of them. */
static void around(char *memory, int buffers, int rounds, int access)
{
	for (int n = 0; n < rounds * buffers; n++)
		pair(memory + (size_t)(n % buffers) * BUFFER, access);
}

static void ring(void) { around(map(16 * BUFFER), 16, 250, LOCAL); }
static void once(void) { around(map((size_t)2000 * BUFFER), 2000, 1, LOCAL); }
/* The cache can gain from the third time on. */
static void thrice(void) { around(map(100 * BUFFER), 100, 3, LOCAL); }
/* More than RDMAMR_CACHE_MAX_IDLE of them. */
static void too_many(void) { around(map(256 * BUFFER), 256, 12, LOCAL); }

/* New memory each time, at the address of the last. */
static void unmapped(void)
{
	for (int n = 0; n < 2000; n++) {
		char *memory = map(BUFFER);

		pair(memory, LOCAL);
		munmap(memory, BUFFER);
	}
}

static void emptied(void)
{
	char *memory = map(BUFFER);

	for (int n = 0; n < 2000; n++) {
		pair(memory, LOCAL);
		madvise(memory, BUFFER, MADV_DONTNEED);
	}
}

/* Later than RDMAMR_CACHE_LINGER. */
static void late(void)
{
	char *memory = map(64 * BUFFER);

	for (int round = 0; round < 8; round++) {
		around(memory, 64, 1, REMOTE);
		nanosleep(&(struct timespec){ .tv_nsec = 150000000 }, NULL);
	}
}

static void *one_of_two(void *memory)
{
	around(memory, 1, 2000, LOCAL);
	return NULL;
}

static void two_threads(void)
{
	char *memory = map(2 * BUFFER);
	pthread_t other;

	if (pthread_create(&other, NULL, one_of_two, memory + BUFFER))
		errx(1, "pthread_create");
	one_of_two(memory);
	pthread_join(other, NULL);
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} patterns[] = {
		{ "ring", ring }, { "once", once }, { "thrice", thrice }, { "too_many", too_many }, { "unmapped", unmapped },
		{ "emptied", emptied }, { "late", late }, { "two_threads", two_threads },
	};
	const char *why = stub_open(STUB_NOTHING);

	if (why)
		errx(1, "%s", why);
	if (count != 5)
		errx(2, "usage: workload PATTERN REGISTRATION PAGE DEREGISTRATION");
	stub_take((struct stub_costs){ atol(arguments[2]), atol(arguments[3]), atol(arguments[4]) });
	for (size_t n = 0; n < sizeof(patterns) / sizeof(*patterns); n++)
		if (!strcmp(arguments[1], patterns[n].name))
			return patterns[n].run(), 0;
	errx(2, "no such pattern: %s", arguments[1]);
}
