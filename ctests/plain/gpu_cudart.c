/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A stand-in for libcudart.so.12, above gpu_runtime.c: what a program asks of the GPUs, and of memory. */
#include <stddef.h>
#include <stdio.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, COUNT = 4, MEMORY_TYPE = 2, DEVICE_ORDINAL = 9 };

/* struct cudaPointerAttributes; a type of 0 is memory that CUDA does not know. */
struct attributes {
	int type, device;
	void *device_pointer, *host_pointer;
};

int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer);

int cudaGetDeviceCount(int *count)
{
	*count = COUNT;
	return SUCCESS;
}

int cudaGetDevice(int *device)
{
	*device = 0;
	return SUCCESS;
}

int cudaSetDevice(int device) { return device < COUNT ? SUCCESS : INVALID_VALUE; }

int cudaDeviceGetPCIBusId(char *address, int size, int device)
{
	snprintf(address, (size_t)size, "0000:%02x:00.0", 0x40 + device);
	return SUCCESS;
}

int cudaPointerGetAttributes(struct attributes *of, const void *pointer)
{
	unsigned long long address = (unsigned long long)pointer;

	*of = (struct attributes){ .host_pointer = (void *)pointer };
	if (cuPointerGetAttribute(&of->type, MEMORY_TYPE, address) == SUCCESS) {
		cuPointerGetAttribute(&of->device, DEVICE_ORDINAL, address);
		*of = (struct attributes){ .type = of->type, .device = of->device, .device_pointer = (void *)pointer };
	}
	return SUCCESS;
}

const char *cudaGetErrorString(int error) { return error ? "an error" : "no error"; }
