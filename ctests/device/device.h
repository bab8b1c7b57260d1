/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The device under test, by CHECK_DEVICE and CHECK_ADDRESS, and what the library says of it. */
#ifndef DEVICE_H
#define DEVICE_H

#include <infiniband/verbs.h>
#include <rdmamr.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../tap.h"

/* Absent where a program runs without the library. */
#pragma weak rdmamr_get_stats
#pragma weak rdmamr_last_reason

enum { PAGE = 4096 };
#define LOCAL_AND_REMOTE                                                       \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ)

__attribute__((unused))
static struct ibv_context *open_named(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	must(list);
	for (int n = 0; list[n]; n++)
		if (!strcmp(ibv_get_device_name(list[n]), name))
			context = ibv_open_device(list[n]);
	ibv_free_device_list(list);
	return context;
}

__attribute__((unused))
static struct ibv_context *open_device(void)
{
	const char *name = getenv("CHECK_DEVICE");
	struct ibv_context *context;

	must(name);
	context = open_named(name);
	must(context);
	return context;
}

/* Anonymous memory of whole pages, touched. */
__attribute__((unused))
static char *pages(size_t count)
{
	char *memory = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	must(memory != MAP_FAILED);
	return memory;
}

/* The statistics; all 0 without the library. */
__attribute__((unused))
static struct rdmamr_stats stats(void)
{
	struct rdmamr_stats now = { 0 };

	if (rdmamr_get_stats)
		must(rdmamr_get_stats(&now, sizeof(now)) == 0);
	return now;
}

/* The regions that the kernel knows of the open file, by its own count; -1 where it cannot say. */
int kernel_regions(struct ibv_context *context);

#endif
