/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A plug-in that needs CUDA's runtime, or (build.mk: hip_plugin) HIP's, and brings it into a scope of its own. */
#include <stddef.h>

int cudaHostRegister(void *addr, size_t size, unsigned int flags);

int pin(void *addr, size_t size, unsigned int flags) { return cudaHostRegister(addr, size, flags); }
