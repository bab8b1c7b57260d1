/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory of the stand-in of a GPU (plain/gpu_runtime.c, named by CHECK_GPU), which a device of vm/hca
 * (named by CHECK_DEVICE) reaches through a region.
 */
#ifndef CTESTS_GPU_H
#define CTESTS_GPU_H

#include <stdbool.h>
#include <stdint.h>
#include "../plain/gpu_runtime.h"

enum { GPU_SHOWN = 64 };

extern struct gpu {
	gpu_allocate_call allocate;
	gpu_free_call free;
	gpu_remap_call remap;
	gpu_bytes_call bytes;
	gpu_rules_call rules;
	gpu_exports_call exports, exports_by_pcie, retained;
	gpu_other_call other;
	bool is_cuda;
} gpu;

/* Loads the stand-in, or ends the program with the reason why it skips. Returns the device. */
const char *gpu_begin(void);

/*
 * Whether GPU_SHOWN bytes that the device writes through the key are in the GPU's memory, and whether it
 * reads there what the GPU's memory holds.
 */
bool gpu_lands(uint32_t key, uint64_t iova, uint64_t address, bool remote);

#endif
