/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * workload PATTERN: registers memory of the stub device in one of the patterns of real programs.
 * bound.py compares the bound of `rdmamr report` with the cache's real effect.
 */
#include "../lib/stub_device.h"
#include <time.h>
#include "../lib/device.h"
#include "../lib/program.h"

enum { LOCAL = IBV_ACCESS_LOCAL_WRITE, REMOTE = LOCAL | IBV_ACCESS_REMOTE_WRITE, BUFFER = 1 << 16 };

static char *buffers(size_t count) { return pages(count * BUFFER / PAGE); }

static void pair(char *at, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), at, BUFFER, access);

	must(mr && ibv_dereg_mr(mr) == 0);
}

/* `rounds` times around `count` buffers. */
static void around(char *memory, int count, int rounds, int access)
{
	for (int n = 0; n < rounds * count; n++)
		pair(memory + (size_t)(n % count) * BUFFER, access);
}

static void ring(void) { around(buffers(16), 16, 250, LOCAL); }
static void once(void) { around(buffers(2000), 2000, 1, LOCAL); }
/* More than RDMAMR_CACHE_MAX_IDLE of them. */
static void too_many(void) { around(buffers(256), 256, 12, LOCAL); }

/* New memory each time, at the address of the last. */
static void unmapped(void)
{
	for (int n = 0; n < 2000; n++) {
		char *memory = buffers(1);

		pair(memory, LOCAL);
		munmap(memory, BUFFER);
	}
}

static void emptied(void)
{
	char *memory = buffers(1);

	for (int n = 0; n < 2000; n++) {
		pair(memory, LOCAL);
		madvise(memory, BUFFER, MADV_DONTNEED);
	}
}

/* Later than RDMAMR_CACHE_LINGER. */
static void late(void)
{
	char *memory = buffers(64);

	for (int round = 0; round < 8; round++) {
		around(memory, 64, 1, REMOTE);
		nanosleep(&(struct timespec){ .tv_nsec = 150000000 }, NULL);
	}
}

int main(int count, char **arguments)
{
	static const struct { const char *name; void (*run)(void); } patterns[] = {
		{ "ring", ring }, { "once", once }, { "too_many", too_many }, { "unmapped", unmapped },
		{ "emptied", emptied }, { "late", late },
	};

	must(count == 2 && !stub_open(STUB_NOTHING));
	for (size_t n = 0; n < sizeof(patterns) / sizeof(*patterns); n++)
		if (!strcmp(arguments[1], patterns[n].name))
			return patterns[n].run(), 0;
	must(!"a pattern");
}
