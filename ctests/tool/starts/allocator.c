/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * allocator: a program with an allocator of its own, whose blocks are aligned to 4 bytes as Electric
 * Fence's may be; FIRST is the first block, or NULL if a constructor makes it ready. The dynamic
 * linker allocates its entries of files from it. Loads a library.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char memory[64 << 20], *next = FIRST;

__attribute__((constructor)) static void make_ready(void)
{
	next = next ? next : memory + 4;
}

void *malloc(size_t size)
{
	char *block = next + 16;

	memcpy(block - sizeof(size), &size, sizeof(size));
	next = block + (size + 15) / 16 * 16;
	return block;
}

void free(void *block)
{
	(void)block;
}

void *calloc(size_t count, size_t size)
{
	return memset(malloc(count * size), 0, count * size);
}

void *realloc(void *block, size_t size)
{
	char *larger = malloc(size);
	size_t had;

	if (!block)
		return larger;
	memcpy(&had, (char *)block - sizeof(had), sizeof(had));
	return memcpy(larger, block, had < size ? had : size);
}

int main(void)
{
	printf("loaded: %d\n", dlopen("libm.so.6", RTLD_NOW) != NULL);
	return 4;
}
