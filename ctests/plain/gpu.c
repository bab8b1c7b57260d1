/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A stand-in for an old libcuda.so.1: the memory at GPU_MEMORY counts as the GPU's, without access as with CUDA. */
#include <errno.h>
#include <stdint.h>

#define GPU_MEMORY 0x600000000000

int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer)
{
	errno = 99;
	if (attribute != 2 || pointer < GPU_MEMORY || pointer >= GPU_MEMORY + (1 << 20))
		return 1;
	*(unsigned int *)data = 2;
	return 0;
}
