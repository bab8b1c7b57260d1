/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mremap(2) takes one mapping, and to watch part of one makes it several. A program that could move its memory
 * still can, and what it registers where it has come is the memory that it sees.
 */
#include "relaxed.h"

enum { LARGE = 6 << 20 };

static struct pair pair;

static void moves(const char *name, size_t offset, size_t size)
{
	char *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	char *moved;

	must(memory != MAP_FAILED);
	memset(memory, 7, LARGE);
	control(&pair, name, memory + offset, PAGE);
	memory[offset] = 7;
	moved = mremap(memory, LARGE, size, MREMAP_MAYMOVE);
	if (!ok(moved != MAP_FAILED, "%s: mremap to %zu MiB", name, size >> 20)) {
		munmap(memory, LARGE);
		return;
	}
	ok(moved[0] == 7 && moved[offset] == 7, "%s: with what is in it", name);
	lands(&pair, moved + offset, PAGE);
	if (moved != memory)
		anew(&pair, name, moved + offset + PAGE, PAGE);
	must(munmap(moved, size) == 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_RELAXED_LINGER", "100");
	relaxed_open(&pair);
	moves("its first page was registered", 0, 2 * LARGE);
	moves("a page inside", 3 << 20, 2 * LARGE);
	moves("a page inside, and it shrinks", 3 << 20, 5 << 20);
	return relaxed_close(&pair);
}
