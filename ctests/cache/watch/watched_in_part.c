/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mremap(2) accepts a single mapping, and watching a part of a mapping splits it. A program that
 * could move its memory still can, and a registration at the new address gets the memory that the
 * program sees there.
 */
#include "../../lib/observe.h"

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
	ok(moved[0] == 7 && moved[offset] == 7, "%s: with its content", name);
	lands(&pair, moved + offset, PAGE);
	if (moved != memory)
		anew(&pair, name, moved + offset + PAGE, PAGE);
	must(munmap(moved, size) == 0);
}

/*
 * Many small regions, one of whose memory has changed when they are flushed: it ends after all the
 * others.
 */
static void one_changed(void)
{
	enum { CHUNK = 2 << 20, COUNT = CHUNK / PAGE / 3 };
	static struct ibv_mr *regions[COUNT];
	char *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	char *chunk, *moved;
	int before = mappings();

	must(memory != MAP_FAILED);
	chunk = (char *)(((uintptr_t)memory + CHUNK - 1) & ~(uintptr_t)(CHUNK - 1));
	for (int n = 0; n < COUNT; n++) {
		regions[n] = register_region(pair.pd, chunk + 3 * n * PAGE, PAGE, LOCAL_AND_REMOTE);
		must(regions[n]);
	}
	for (int n = 0; n < COUNT; n++)
		must(deregister_region(regions[n]) == 0);
	must(madvise(chunk + 300 * PAGE, PAGE, MADV_DONTNEED) == 0);
	/* This makes the cache see the change before the flush. */
	ok(stats().idle >= COUNT - 1, "many small regions are idle");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "they are flushed");
	ok(mappings() <= before + 8, "and leave the memory unsplit: %d mappings before, %d after", before, mappings());
	moved = mremap(memory, LARGE, 2 * LARGE, MREMAP_MAYMOVE);
	ok(moved != MAP_FAILED, "and it can be moved");
	must(munmap(moved == MAP_FAILED ? memory : moved, moved == MAP_FAILED ? LARGE : 2 * LARGE) == 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	moves("its first page was registered", 0, 2 * LARGE);
	moves("a page inside", 3 << 20, 2 * LARGE);
	moves("a page inside, and it shrinks", 3 << 20, 5 << 20);
	one_changed();
	return relaxed_close(&pair);
}
