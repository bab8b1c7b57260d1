/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* mremap changes two places at once: what it moves away from, and what it lands on. Grown where it is, a
 * mapping keeps its pages. By libc, by raw system call, and inside realloc. */
#include "relaxed.h"
#include <malloc.h>

enum { COUNT = 8, HALF = COUNT / 2, SIZE = COUNT * PAGE, BIG = 4 << 20 };

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static struct pair pair;

static void *by_libc(void *from, size_t was, size_t wanted, int flags, void *to)
{
	return mremap(from, was, wanted, flags, to);
}

static void *by_system_call(void *from, size_t was, size_t wanted, int flags, void *to)
{
	return (void *)syscall(SYS_mremap, from, was, wanted, flags, to);
}

static const struct way {
	const char *name;
	void *(*remap)(void *from, size_t was, size_t wanted, int flags, void *to);
} ways[] = { { "mremap", by_libc }, { "its system call", by_system_call } };

/* Two places next to each other, a page of nothing around each. */
static char *place(void)
{
	char *memory = mmap(NULL, SIZE + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED && munmap(memory, SIZE + 2 * PAGE) == 0);
	fresh_at(memory + PAGE, SIZE);
	return memory + PAGE;
}

/* The name of a case, by the way and the kind of region. */
static const char *named(const char *what, const struct way *way, int kind)
{
	static char name[120];

	snprintf(name, sizeof(name), "%s by %s, %s", what, way->name, kind_names[kind]);
	return name;
}

/* Moved elsewhere; something new comes where it was. */
static void moved(const struct way *way, int kind)
{
	const char *name = named("moved", way, kind);
	char *from = place(), *to = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(to != MAP_FAILED);
	control_with(&pair, name, from, SIZE, kinds[kind]);
	must(way->remap(from, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	fresh_at(from, SIZE);
	anew_with(&pair, named("moved away", way, kind), from, SIZE, kinds[kind]);
	anew_with(&pair, named("moved here", way, kind), to, SIZE, kinds[kind]);
	control_with(&pair, named("after the move, here", way, kind), to, SIZE, kinds[kind]);
	control_with(&pair, named("after the move, there", way, kind), from, SIZE, kinds[kind]);
	must(munmap(from, SIZE) == 0 && munmap(to, SIZE) == 0);
}

/* Onto memory that is registered itself, whole or in part: UCX and Open MPI miss this one. */
static void onto(const struct way *way, int kind)
{
	char *from = place(), *to = place();

	control_with(&pair, named("the target", way, kind), to, SIZE, kinds[kind]);
	must(way->remap(from, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	anew_with(&pair, named("moved onto a registered target", way, kind), to, SIZE, kinds[kind]);

	fresh_at(from, PAGE);
	control_with(&pair, named("the target again", way, kind), to, SIZE, kinds[kind]);
	must(way->remap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + 3 * PAGE) == to + 3 * PAGE);
	anew_with(&pair, named("a page moved into a registered target", way, kind), to, SIZE, kinds[kind]);
	must(munmap(to, SIZE) == 0);
}

/* Its lower half grows to all of the place, where it is. */
static void grown(const struct way *way, int kind)
{
	char *memory = place();
	struct rdmamr_stats before;
	struct ibv_mr *old;

	must(munmap(memory + HALF * PAGE, HALF * PAGE) == 0);
	control_with(&pair, named("half of it", way, kind), memory, HALF * PAGE, kinds[kind]);
	old = ibv_reg_mr_relaxed(pair.pd, memory, HALF * PAGE, kinds[kind]);
	must(old);
	must(way->remap(memory, HALF * PAGE, SIZE, 0, NULL) == memory);
	ok(kind ? lands_by_lkey(&pair, old, memory, HALF * PAGE) : lands_in(&pair, old, memory, HALF * PAGE),
	   "%s: the region in use goes on", named("grown in place", way, kind));
	must(ibv_dereg_mr_relaxed(old) == 0);
	before = stats();
	ok(lands_with(&pair, memory, HALF * PAGE, kinds[kind]),
	   "%s: data of the old part lands in the page of now",
	   named("grown in place", way, kind));
	printf("# the old part was %s\n", reused(before, stats()) ? "used again" : "registered anew");
	anew_with(&pair, named("grown in place, all of it", way, kind), memory, SIZE, kinds[kind]);
	control_with(&pair, named("grown in place, afterwards", way, kind), memory, SIZE, kinds[kind]);
	must(munmap(memory, SIZE) == 0);
}

static void shrunk(const struct way *way, int kind)
{
	char *memory = place();

	control_with(&pair, named("before shrinking", way, kind), memory, SIZE, kinds[kind]);
	must(way->remap(memory, SIZE, HALF * PAGE, 0, NULL) == memory);
	fresh_at(memory + HALF * PAGE, HALF * PAGE);
	anew_with(&pair, named("shrunk, and new memory behind", way, kind), memory, SIZE, kinds[kind]);
	must(munmap(memory, SIZE) == 0);
}

/* The pages go, the mapping stays. */
static void not_unmapped(const struct way *way, int kind)
{
	char *memory = place(), *to;

	control_with(&pair, named("before DONTUNMAP", way, kind), memory, SIZE, kinds[kind]);
	to = way->remap(memory, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	must(to != MAP_FAILED);
	anew_with(&pair, named("moved with DONTUNMAP, there", way, kind), memory, SIZE, kinds[kind]);
	anew_with(&pair, named("moved with DONTUNMAP, here", way, kind), to, SIZE, kinds[kind]);
	must(munmap(memory, SIZE) == 0 && munmap(to, SIZE) == 0);
}

/* A region in use whose pages are moved away, and back. */
static void there_and_back(const struct way *way)
{
	char *memory = place(), *to = place();
	struct ibv_mr *old = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, LOCAL_AND_REMOTE);

	must(old);
	must(way->remap(memory, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	fresh_at(memory, SIZE);
	anew(&pair, named("moved below a region in use", way, 0), memory, SIZE);
	must(way->remap(to, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, memory) == memory);
	/* These are the pages of the region in use again. That it is right again is not for the pool to
	 * find out. */
	ok(lands(&pair, memory, SIZE), "%s: data lands in the page of now", named("and back", way, 0));
	is(ibv_dereg_mr_relaxed(old), 0, "%s: deregistered", named("and back", way, 0));
	must(munmap(memory, SIZE) == 0);
}

/* A large block that has no room to grow is moved inside realloc. */
static void inside_realloc(void)
{
	char *volatile was; /* an address, also after the block is gone from there */
	char *block, *moved_to;
	size_t behind;

	must(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
	block = malloc(BIG);
	must(block);
	was = block;
	behind = ((uintptr_t)block + malloc_usable_size(block) + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
	if (mmap((void *)behind, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
	    MAP_FAILED)
		must(errno == EEXIST);
	control(&pair, "a large block", block, BIG);
	moved_to = realloc(block, 2 * BIG);
	must(moved_to && moved_to != was);
	/* Its first page began with the block's header, so there was one page more than its size. */
	fresh_at(was - 16, BIG + PAGE);
	anew(&pair, "a large block moved by realloc, where it was", was, BIG);
	ok(lands(&pair, moved_to, BIG),
	   "a large block moved by realloc, where it is: data lands in the page of now");
	must(munmap(was - 16, BIG + PAGE) == 0);
	free(moved_to);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_RELAXED_LINGER", "100");
	relaxed_open(&pair);
	for (size_t n = 0; n < 2; n++) {
		for (int kind = 0; kind < 2; kind++) {
			moved(&ways[n], kind);
			onto(&ways[n], kind);
			grown(&ways[n], kind);
			shrunk(&ways[n], kind);
			not_unmapped(&ways[n], kind);
		}
		there_and_back(&ways[n]);
	}
	inside_realloc();
	is((long long)stats().flushed_linger, 0, "no region went for its age");
	return relaxed_close(&pair);
}
