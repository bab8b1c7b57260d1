/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The types and prototypes of include/rdmamr.h as of 0.1. */
#pragma once
#define RDMAMR_H
#include <stddef.h>
#include <stdint.h>
#define RDMAMR_VERSION_MAJOR 0
#define RDMAMR_VERSION_MINOR 1
#define RDMAMR_VERSION_PATCH 0
struct rdmamr_stats {
	uint64_t reg_kernel; uint64_t reg_next; uint64_t reg_failed; uint64_t dereg_kernel; uint64_t dereg_next;
	uint64_t dereg_failed; uint64_t live; uint64_t live_bytes; uint64_t vanished; uint64_t hits; uint64_t misses;
	uint64_t shared; uint64_t idle; uint64_t idle_bytes; uint64_t flushed_flush; uint64_t flushed_watermark;
	uint64_t flushed_linger; uint64_t flushed_pressure; uint64_t flushed_hook; uint64_t flushed_event;
	uint64_t flushed_fence; uint64_t stale_avoided_hook; uint64_t stale_avoided_event; uint64_t stale_avoided_fence;
	uint64_t bypassed_access; uint64_t bypassed_device; uint64_t bypassed_memory; uint64_t bypassed_watch;
	uint64_t bypassed_fork; uint64_t bypassed_limit; uint64_t bypassed_busy; uint64_t bypassed_address;
};
const char *rdmamr_version(void);
int rdmamr_get_stats(struct rdmamr_stats *stats, size_t size);
const char *rdmamr_last_reason(void);
