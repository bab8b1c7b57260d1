/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stand-in for NVIDIA's library, for rdmamr doctor: a GPU at 0000:19:01.0. CHECK_GPU_SAYS is its
 * answer about dma-bufs: "yes", "no" or "hang".
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, DMA_BUF_SUPPORTED = 124, DEVICE = 7 };

static int says(const char *word)
{
	const char *answer = getenv("CHECK_GPU_SAYS");

	return answer && !strcmp(answer, word);
}

int cuInit(unsigned int flags)
{
	while (says("hang"))
		pause();
	return flags ? INVALID_VALUE : SUCCESS;
}

int cuDeviceGetCount(int *count)
{
	*count = 1;
	return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = DEVICE;
	return ordinal ? INVALID_VALUE : SUCCESS;
}

int cuDeviceGetPCIBusId(char *address, int size, int device)
{
	static const char here[] = "0000:19:01.0";

	if (device != DEVICE || size < (int)sizeof(here))
		return INVALID_VALUE;
	memcpy(address, here, sizeof(here));
	return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	*bytes = (size_t)80 << 30;
	return device == DEVICE ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	if (device != DEVICE || attribute != DMA_BUF_SUPPORTED)
		return INVALID_VALUE;
	*value = says("yes");
	return SUCCESS;
}
