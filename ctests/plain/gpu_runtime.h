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
	GPU_VMM,	/* cuMemCreate with gpuDirectRDMACapable; hipMemCreate, which ROCm does not export */
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
	GPU_BY_ADDRESS = 1 << 7,    /* the kernel registers the memory by its address, as with nvidia_peermem */
};

#endif
