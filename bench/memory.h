/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory to register, and the time. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "bench.h"

#define HUGE_PAGE ((size_t)2 << 20)

/* In ms. */
static double now(void) { return clock_of(CLOCK_MONOTONIC) / 1e6; }

/* Memory in huge pages or in small ones. */
static char *map(size_t length, bool huge, char **mapping)
{
	char *memory = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	*mapping = memory;
	memory += -(uintptr_t)memory % HUGE_PAGE;
	if (madvise(memory, length, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
		die("madvise");
	return memory;
}

/* The host of a virtual machine may have no page behind memory before its first use, and again
 * after it is freed. This memory has just been in use, and the next mapping gets it. */
static void back(size_t length)
{
	char *mapping, *memory = map(length, true, &mapping);

	memset(memory, 1, length);
	munmap(mapping, length + HUGE_PAGE);
}

#endif
