/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory of the stand-in of a GPU (CHECK_GPU), which a device of vm/hca (CHECK_DEVICE) reaches through a region. */
#ifndef CTESTS_GPU_H
#define CTESTS_GPU_H

#include <stdbool.h>
#include <stdint.h>
#include "../plain/gpu_runtime.h"

enum { GPU_SHOWN = 64 };

/* Functions of the stand-in itself. */
extern struct gpu {
	uint64_t (*allocate)(enum gpu_kind kind, size_t size);
	/* As the driver, unmaps the addresses first. The next allocation of that size gets them again. */
	void (*free)(uint64_t address);
	/* Other memory at the same addresses, as cuMemUnmap and cuMemMap. That of managed memory keeps its number. */
	void (*remap)(uint64_t address);
	void *(*bytes)(uint64_t address);
	void (*rules)(int rules);
	/* How many exports have succeeded; how many had the PCIe flag; how often a context is retained. */
	int (*exports)(void), (*exports_by_pcie)(void), (*retained)(void);
	/* Makes a context of another GPU current, or no context. Returns whether that other one is current. CUDA's alone. */
	int (*other)(int current);
	bool is_cuda;
} gpu;

/* Loads the stand-in, or ends the program with the reason why it skips. Returns the device. */
const char *gpu_begin(void);

/* Whether GPU_SHOWN bytes that the device writes and reads by the key are those of the GPU's memory. */
bool gpu_lands(uint32_t key, uint64_t iova, uint64_t address, bool remote);

#endif
