/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The heap gives its end back to the kernel and takes it again at the same address: by brk and sbrk, and
 * inside free and malloc_trim, which no symbol stands for. */
#include "relaxed.h"
#include <malloc.h>

enum { COUNT = 8, SIZE = COUNT * PAGE, BLOCK = 256 << 10 };

static struct pair pair;

/* Three ways to set the end of the heap. */
static void set_by_brk(char *end)
{
	must(brk(end) == 0);
}

static void set_by_sbrk(char *end)
{
	must(sbrk(end - (char *)sbrk(0)) != (void *)-1);
}

static void set_by_system_call(char *end)
{
	must((char *)syscall(SYS_brk, end) == end);
}

static const struct way {
	const char *name;
	void (*set)(char *end);
} ways[] = { { "brk", set_by_brk }, { "sbrk", set_by_sbrk }, { "the system call", set_by_system_call } };

static const char *named(const char *what, const struct way *way, int kind)
{
	static char name[120];

	snprintf(name, sizeof(name), "%s by %s, %s", what, way->name, kind_names[kind]);
	return name;
}

/* Pages at the end of the heap, whose last `gone` go and come. The system call leaves libc's own idea of
 * the end as it was, which is right again afterwards. */
static void end_of_heap(const struct way *way, int gone, int kind)
{
	char *start = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(uintptr_t)(PAGE - 1)), *end = start + SIZE;

	must(brk(end) == 0);
	control_with(&pair, named("the end of the heap", way, kind), start, SIZE, kinds[kind]);
	must(sbrk(0) == end); /* nobody else moved it */
	way->set(end - gone * PAGE);
	way->set(end);
	anew_with(&pair, named(gone == COUNT ? "given back and taken again" : "its last page", way, kind),
		  start,
		  SIZE, kinds[kind]);
	must(sbrk(0) == end);
	must(brk(start) == 0);
}

static void in_use(const struct way *way)
{
	char *start = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(uintptr_t)(PAGE - 1)), *end = start + SIZE;
	struct ibv_mr *old;

	must(brk(end) == 0);
	old = ibv_reg_mr_relaxed(pair.pd, start, SIZE, LOCAL_AND_REMOTE);
	must(old);
	way->set(start);
	way->set(end);
	anew(&pair, named("below a region in use", way, 0), start, SIZE);
	is(ibv_dereg_mr_relaxed(old), 0, "%s: deregistered", named("below a region in use", way, 0));
	must(sbrk(0) == end);
	must(brk(start) == 0);
}

/*
 * A block at the end of its heap, with room elsewhere for what is smaller: nothing comes to lie behind it.
 * What lies right before it is never freed, or the two would become one.
 */
static char *block_at_the_end(void)
{
	char *spare = malloc(BLOCK / 2), *before, *block = malloc(BLOCK);

	do {
		before = block;
		block = malloc(BLOCK);
		must(spare && before && block);
	} while (block - before < BLOCK || block - before > BLOCK + 64);
	free(spare);
	return block;
}

/* A block at the very end of the heap: free itself, or malloc_trim, moves the end down. */
static void end_by_malloc(bool trim)
{
	const char *name = trim ? "malloc_trim at the end of the heap" : "free at the end of the heap";
	char *block, *end, *again;

	must(mallopt(M_TRIM_THRESHOLD, trim ? 1 << 30 : 64 << 10) == 1);
	block = block_at_the_end();
	end = sbrk(0);
	must(block < end && block + BLOCK <= end); /* from the heap, not a mapping of its own */
	control(&pair, name, block, BLOCK);
	free(block);
	if (trim)
		must(malloc_trim(0) == 1);
	must((char *)sbrk(0) < end);
	again = malloc(BLOCK);
	must(again == block);
	anew(&pair, name, again, BLOCK);
	must(mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1);
	free(again);
}

/* A free block with another behind it keeps its place; malloc_trim gives its pages back by madvise. */
static void middle_by_malloc_trim(void)
{
	char *block = block_at_the_end(), *behind = malloc(BLOCK), *again;

	must(behind > block);
	control(&pair, "malloc_trim in the middle", block, BLOCK);
	free(block);
	must(malloc_trim(0) == 1);
	again = malloc(BLOCK);
	must(again == block);
	anew(&pair, "malloc_trim in the middle", again, BLOCK);
	free(behind);
	free(again);
}

/* A thread's heap is no heap of brk: free gives its end back by madvise or by mapping over it. */
static void *heap_of_a_thread(void *unused)
{
	char *block = block_at_the_end(), *again;
	const char *volatile seen = block; /* its memory stays readable */

	must(block > (char *)sbrk(0)); /* a heap of its own */
	must(mallopt(M_TRIM_THRESHOLD, 64 << 10) == 1);
	control(&pair, "free in a thread", block, BLOCK);
	memset(block, 1, BLOCK);
	free(block);
	ok(seen[BLOCK / 2] == 0, "free in a thread gives the pages back");
	again = malloc(BLOCK);
	must(again == block);
	anew(&pair, "free in a thread", again, BLOCK);
	must(mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1);
	free(again);
	return unused;
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_RELAXED_LINGER", "100");
	/* All of this goes to the heap; and it has so much to spare that nothing but the tests moves its
	 * end. */
	must(mallopt(M_MMAP_THRESHOLD, 16 << 20) == 1 && mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1);
	must(mallopt(M_TOP_PAD, 4 << 20) == 1);
	free(malloc(100));
	relaxed_open(&pair);
	for (size_t n = 0; n < sizeof(ways) / sizeof(ways[0]); n++) {
		for (int kind = 0; kind < 2; kind++) {
			end_of_heap(&ways[n], COUNT, kind);
			end_of_heap(&ways[n], 1, kind);
		}
		in_use(&ways[n]);
	}
	must(mallopt(M_TOP_PAD, 0) == 1);
	malloc_trim(0);
	end_by_malloc(true);
	end_by_malloc(false);
	middle_by_malloc_trim();
	in_thread(heap_of_a_thread, NULL);
	is((long long)stats().flushed_linger, 0, "no region went for its age");
	return relaxed_close(&pair);
}
