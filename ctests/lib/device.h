/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The device under test, named by CHECK_DEVICE and CHECK_ADDRESS, and the library's statistics. */
#ifndef CTESTS_DEVICE_H
#define CTESTS_DEVICE_H

#include <infiniband/verbs.h>
#include <rdmamr.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "memory.h"
#include "tap.h"

/* NULL if the program runs without the library. */
#pragma weak rdmamr_get_stats
#pragma weak rdmamr_last_reason
#pragma weak rdmamr_set_cache_limits

#define LOCAL_AND_REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/* Opens the device of that name; NULL if there is none. */
struct ibv_context *open_named(const char *name);

/* Opens the device that CHECK_DEVICE names. */
struct ibv_context *open_device(void);

/* A domain of it. */
struct ibv_pd *domain_of_device(void);

/* A function of libibverbs itself, as NCCL and brpc get it by handle. */
void *of_libibverbs(const char *name, const char *version);

/* The statistics; all 0 without the library. */
struct rdmamr_stats stats(void);

/* The number of regions of the open file, by the kernel's count; -1 if it does not report that. */
int kernel_regions(struct ibv_context *context);

#endif
