/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A plug-in that needs CUDA's runtime, or (with -DHIP) HIP's, and brings it into a scope of its own. */
#include <stddef.h>

#ifdef HIP
#define cudaHostRegister hipHostRegister
#endif

int cudaHostRegister(void *addr, size_t size, unsigned int flags);

int pin(void *addr, size_t size, unsigned int flags)
{
	return cudaHostRegister(addr, size, flags);
}
