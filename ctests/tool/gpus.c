/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stand-in for NVIDIA's library, for rdmamr doctor: a GPU at 0000:19:01.0. CHECK_GPU_SAYS is its
 * answer about dma-bufs: "yes", "no" or "hang". Each function fails if an argument is wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DMA_BUF_SUPPORTED = 124, DEVICE = 7 };

static int says(const char *word)
{
	return !strcmp(getenv("CHECK_GPU_SAYS"), word);
}

int cuInit(unsigned int flags)
{
	while (says("hang"))
		pause();
	return flags != 0;
}

int cuDeviceGetCount(int *count)
{
	*count = 1;
	return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = DEVICE;
	return ordinal != 0;
}

int cuDeviceGetPCIBusId(char *address, int size, int device)
{
	return snprintf(address, (size_t)size, "0000:19:01.0") >= size || device != DEVICE;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	*bytes = (size_t)80 << 30;
	return device != DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = says("yes");
	return attribute != DMA_BUF_SUPPORTED || device != DEVICE;
}
