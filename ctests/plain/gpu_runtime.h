/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stand-in for the runtime of a GPU, libcuda.so.1 or (with -DROCM) libhsa-runtime64.so.1. The memory
 * of its GPU is a memfd, which /dev/udmabuf exports as a dma-buf (Linux 6.12 of Debian has it). The
 * program has an address for it that it cannot touch, as with CUDA.
 */
#ifndef CTESTS_GPU_RUNTIME_H
#define CTESTS_GPU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

enum gpu_kind {
	GPU_PLAIN,	/* cudaMalloc: it belongs to a context */
	GPU_POOL,	/* cudaMallocAsync: to none */
	GPU_VMM,	/* cuMemCreate with gpuDirectRDMACapable */
	GPU_INCAPABLE,	/* without */
	GPU_TWO_HANDLES, /* two of them behind each other, as PyTorch's expandable segments */
	GPU_MANAGED,	/* cudaMallocManaged */
};

enum gpu_rule {
	GPU_HAS_DMA_BUF = 1 << 0,   /* the driver's module exports dma-bufs */
	GPU_TAKES_PARTS = 1 << 1,   /* an export may be of a part of an allocation */
	GPU_TAKES_WHOLES = 1 << 2,  /* or of a whole one */
	GPU_NEEDS_CONTEXT = 1 << 3, /* the calling thread must have a current context of this GPU */
	GPU_IS_COHERENT = 1 << 4,   /* and takes the flag that maps by PCIe */
	GPU_REFUSES_PCIE = 1 << 5,  /* an older driver, which does not know that flag */
	GPU_FREES_QUIETLY = 1 << 6, /* memory that was freed stays mapped in the program, as small allocations do */
};

/* Functions of the stand-in itself, found by dlsym. */
typedef uint64_t (*gpu_allocate_call)(enum gpu_kind kind, size_t size);
/* As the driver, unmaps the addresses first. The next allocation of that size gets them again. */
typedef void (*gpu_free_call)(uint64_t address);
/* Other memory at the same addresses, as cuMemUnmap and cuMemMap. */
typedef void (*gpu_remap_call)(uint64_t address);
typedef void *(*gpu_bytes_call)(uint64_t address);
typedef void (*gpu_rules_call)(int rules);
/* How many exports have succeeded, of a whole allocation if `whole`; how many had the PCIe flag. */
typedef int (*gpu_exports_call)(void);
/* Makes a context of another GPU current, or no context. Returns whether that other one is current. */
typedef int (*gpu_other_call)(int current);

#endif
