/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A stand-in for libcudart.so.12, above gpu_runtime.c: what a program asks of the GPUs, and of memory. */

enum { SUCCESS = 0, MEMORY_TYPE = 2, DEVICE_ORDINAL = 9 };

/* struct cudaPointerAttributes; a type of 0 is memory that CUDA does not know. */
struct attributes {
	int type, device;
	void *device_pointer, *host_pointer;
};

int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer);

/* None is listed. */
int cudaGetDeviceCount(int *count)
{
	*count = 0;
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
