/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stand-in for CUDA's runtime, libcudart.so.12, or (build.mk: amdhip) for HIP's, libamdhip64.so.6: its
 * cudaHostRegister or hipHostRegister populates the memory page by page on one thread, as CUDA's driver does.
 * With CHECK_HELPED it waits a moment at each page until another thread has begun to populate the memory from
 * its end, and fails if that has not begun at the middle.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int cudaHostRegister(void *addr, size_t size, unsigned int flags)
{
	volatile char *memory = addr;
	unsigned char is_there = 0;

	if (flags & 0x100)
		return 1;
	for (size_t at = 0; at < size; at += 4096) {
		memory[at] = memory[at];
		if (!getenv("CHECK_HELPED") || is_there & 1)
			continue;
		if (at > size / 2 || mincore((char *)addr + size - 4096, 4096, &is_there))
			return 2;
		usleep(1000);
	}
	errno = 77;
	return 0;
}
