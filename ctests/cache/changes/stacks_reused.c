/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Stacks: a buffer of a function that has returned becomes memory of the next function, and stays
 * registered. The stack of an ended thread is given back to the kernel, inside libc, and is used
 * again at the same address with other pages. A stack that grows by itself grows where other memory
 * may have been.
 */
#include <malloc.h>
#include "../../lib/reuse.h"

enum { BUFFER = 16 * PAGE, SMALL = 1 << 20, LARGE = 64 << 20 };

static struct pair pair;

static char *page_in(char *room)
{
	return (char *)(((uintptr_t)room + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

/* The first call leaves an idle region of its buffer; the second has the same buffer. */
__attribute__((noinline))
static void function(bool again)
{
	char room[BUFFER + PAGE], *buffer = page_in(room);
	static char *was;

	if (!again) {
		was = buffer;
		control(&pair, "a buffer on the stack", buffer, BUFFER);
	} else {
		must(buffer == was);
		still(&pair, "the same buffer in the next call", buffer, BUFFER);
	}
}

/*
 * Each call is deeper than the last, with a buffer of its own that overlaps those of earlier
 * descents.
 */
__attribute__((noinline))
static int descend(int depth, size_t size)
{
	char *room = alloca(size);
	int good;

	memset(room, depth, size);
	good = lands_local(&pair, room, size) && lands(&pair, room, size);
	if (depth > 1)
		good &= descend(depth - 1, size + 1234);
	/* The deeper calls did not touch the memory of this one. */
	memset(room, depth, size);
	return good && lands(&pair, room, size) && room != NULL;
}

static void main_stack(void)
{
	int wrong = 0;

	function(false);
	function(true);
	for (int n = 0; n < 5; n++)
		wrong += !descend(6, 1000 + (size_t)n * 777);
	is(wrong, 0, "buffers at all depths of a recursion: data lands in the current page");
}

/*
 * A thread with its buffer far from the top of its stack, where libc gives the pages back when the
 * thread ends.
 */
struct thread {
	size_t depth;
	char *buffer, *expected;
	bool second;
	const char *name;
};

__attribute__((noinline))
static void *on_stack(void *argument)
{
	struct thread *thread = argument;
	char *room = alloca(thread->depth);

	thread->buffer = page_in(room);
	if (!thread->second) {
		control(&pair, thread->name, thread->buffer, BUFFER);
		return NULL;
	}
	if (thread->buffer != thread->expected)
		return NULL;
	anew(&pair, thread->name, thread->buffer, BUFFER);
	control(&pair, thread->name, thread->buffer, BUFFER);
	return NULL;
}

/*
 * Two threads one after the other on the same stack. libc's choice of an address depends on the
 * other mappings, so the test tries again if the second stack lies elsewhere.
 */
static void recycled(const char *name, size_t stack, size_t depth)
{
	pthread_attr_t attr;
	pthread_t thread;
	bool same = false;

	must(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, stack) == 0);
	for (int tries = 0; tries < 10 && !same; tries++) {
		struct thread first = { .depth = depth, .name = name },
			      second = { .depth = depth, .name = name, .second = true };

		must(pthread_create(&thread, &attr, on_stack, &first) == 0 && pthread_join(thread, NULL) == 0);
		second.expected = first.buffer;
		must(pthread_create(&thread, &attr, on_stack, &second) == 0 && pthread_join(thread, NULL) == 0);
		same = second.buffer == second.expected;
	}
	if (!same)
		skip(name, "libc puts each stack elsewhere");
	must(pthread_attr_destroy(&attr) == 0);
}

/* A stack that the program gives the thread, and unmaps after it. */
static void own_stack(void)
{
	struct thread first = { .depth = SMALL / 2, .name = "a stack of the program's own" }, second = first;
	char *stack = pages(SMALL / PAGE);
	pthread_attr_t attr;
	pthread_t thread;

	must(pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, stack, SMALL) == 0);
	must(pthread_create(&thread, &attr, on_stack, &first) == 0 && pthread_join(thread, NULL) == 0);
	must(munmap(stack, SMALL) == 0);
	fresh_at(stack, SMALL);
	second.second = true;
	second.expected = first.buffer;
	must(pthread_create(&thread, &attr, on_stack, &second) == 0 && pthread_join(thread, NULL) == 0);
	must(second.buffer == second.expected);
	must(pthread_attr_destroy(&attr) == 0);
	must(munmap(stack, SMALL) == 0);
}

/* A mapping that grows downwards when the page below it is touched. */
static void grows_down(void)
{
	enum { ROOM = 8 << 20, SIZE = 4 * PAGE };
	char *all = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *top, *memory, *grown;

	/* The kernel leaves a gap below it, so it needs much free space. */
	must(all != MAP_FAILED && munmap(all, ROOM) == 0);
	top = all + ROOM - PAGE;
	memory = top - SIZE;
	must(mmap(memory, SIZE, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	memset(memory, 1, SIZE);
	control(&pair, "a mapping that grows down", memory, SIZE);
	grown = memory - 2 * PAGE;
	for (char *page = memory - PAGE; page >= grown; page -= PAGE)
		*(volatile char *)page = 1;
	still(&pair, "after it has grown", memory, SIZE);
	anew(&pair, "with the grown part", grown, SIZE + 2 * PAGE);
	control(&pair, "with the grown part", grown, SIZE + 2 * PAGE);
	/* The grown part is discarded, and the stack grows again. */
	must(syscall(SYS_munmap, grown, 2 * PAGE) == 0);
	for (char *page = memory - PAGE; page >= grown; page -= PAGE)
		*(volatile char *)page = 1;
	anew(&pair, "with the part that has grown again", grown, SIZE + 2 * PAGE);
	control(&pair, "with the part that has grown again", grown, SIZE + 2 * PAGE);
	must(munmap(grown, SIZE + 2 * PAGE) == 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	/* A thread's first malloc would map an arena, perhaps where its old stack was. */
	must(mallopt(M_ARENA_MAX, 1) == 1);
	relaxed_open(&pair);
	main_stack();
	/* Too large for libc's cache of stacks: unmapped. */
	recycled("a stack that libc unmaps", LARGE, LARGE / 2);
	/* libc caches it for the next thread, and gives its pages back by madvise. */
	recycled("a stack that libc caches", SMALL, SMALL / 2);
	own_stack();
	grows_down();
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	return relaxed_close(&pair);
}
