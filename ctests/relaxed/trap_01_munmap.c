/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory that is unmapped and mapped anew at the same address is other memory: the idle region, and the
 * one that is in use, must not serve it. By libc, by raw system call, in another thread, and inside
 * malloc. */
#include "relaxed.h"
#include <malloc.h>

enum { COUNT = 8, BIG = 8 << 20 };

static struct pair pair;
static char *memory;

static void *by_libc(void *unused)
{
	must(munmap(memory, COUNT * PAGE) == 0);
	fresh_at(memory, COUNT * PAGE);
	return unused;
}

static void *by_system_call(void *unused)
{
	must(syscall(SYS_munmap, memory, COUNT * PAGE) == 0);
	must(syscall(SYS_mmap, memory, COUNT * PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == (long)memory);
	return unused;
}

static void *by_both(void *unused)
{
	must(syscall(SYS_munmap, memory, COUNT * PAGE) == 0);
	fresh_at(memory, COUNT * PAGE);
	return unused;
}

static void *first_page(void *unused)
{
	must(syscall(SYS_munmap, memory, PAGE) == 0);
	fresh_at(memory, PAGE);
	return unused;
}

static void *last_page(void *unused)
{
	must(syscall(SYS_munmap, memory + (COUNT - 1) * PAGE, PAGE) == 0);
	fresh_at(memory + (COUNT - 1) * PAGE, PAGE);
	return unused;
}

static const struct {
	const char *name;
	void *(*change)(void *);
} ways[] = {
	{ "munmap and mmap", by_libc },
	{ "their system calls", by_system_call },
	{ "a system call and mmap", by_both },
	{ "the first page", first_page },
	{ "the last page", last_page },
};

static void idle_region(size_t way, int kind, bool threaded)
{
	char name[100];

	snprintf(name, sizeof(name), "%s%s, %s", ways[way].name, threaded ? " in another thread" : "",
		 kind_names[kind]);
	control_with(&pair, name, memory, COUNT * PAGE, kinds[kind]);
	if (threaded)
		in_thread(ways[way].change, NULL);
	else
		ways[way].change(NULL);
	anew_with(&pair, name, memory, COUNT * PAGE, kinds[kind]);
}

/* The program may unmap memory before it deregisters: the region that it still has is of no use to others. */
static void region_in_use(size_t way)
{
	struct ibv_mr *old = ibv_reg_mr_relaxed(pair.pd, memory, COUNT * PAGE, LOCAL_AND_REMOTE);

	must(old);
	ways[way].change(NULL);
	anew(&pair, "in use while unmapped", memory, COUNT * PAGE);
	is(ibv_dereg_mr_relaxed(old), 0, "in use while unmapped: deregistered afterwards");
	control(&pair, "in use while unmapped, afterwards", memory, COUNT * PAGE);
}

/* The first half alone is unmapped: the region of the other half stays as it is. */
static void neighbour(void)
{
	char *half = memory + COUNT / 2 * PAGE;

	ibv_flush_relaxed_mr(pair.pd);
	control(&pair, "the half that stays", half, COUNT / 2 * PAGE);
	control(&pair, "the half that goes", memory, COUNT / 2 * PAGE);
	must(syscall(SYS_munmap, memory, COUNT / 2 * PAGE) == 0);
	fresh_at(memory, COUNT / 2 * PAGE);
	anew(&pair, "the half that went", memory, COUNT / 2 * PAGE);
	still(&pair, "the half that stayed", half, COUNT / 2 * PAGE);
}

/* A large block is mapped and unmapped by malloc itself, by calls that no symbol stands for. */
static void inside_malloc(void)
{
	struct rdmamr_stats before, after;
	char *block, *again;

	must(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
	block = malloc(BIG);
	must(block);
	control(&pair, "malloc", block, BIG);
	free(block);
	again = malloc(BIG);
	must(again == block);
	before = stats();
	/* It has never been written to, so its pages are new ones whatever the allocator kept. */
	ok(lands(&pair, again, BIG), "malloc, free, malloc: data lands in the page of now");
	after = stats();
	ok(made_anew(before, after), "malloc, free, malloc: registered anew");
	free(again);
}

static void report_layers(void)
{
	struct rdmamr_stats now = stats();

	printf("# withdrawn: by calls %llu, by events %llu, by the fence %llu\n",
	       (unsigned long long)now.stale_avoided_hook,
	       (unsigned long long)now.stale_avoided_event, (unsigned long long)now.stale_avoided_fence);
	ok(now.stale_avoided_hook > 0, "calls of libc were seen as such");
	ok(now.stale_avoided_event > 0, "system calls were reported by userfaultfd");
	is((long long)now.flushed_linger, 0, "no region went for its age");
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_RELAXED_LINGER", "100");
	relaxed_open(&pair);
	memory = pages(COUNT);
	for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
		for (int kind = 0; kind < 2; kind++)
			idle_region(way, kind, false);
	}
	region_in_use(0);
	region_in_use(1);
	neighbour();
	inside_malloc();
	for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++)
		idle_region(way, 0, true);
	report_layers();
	must(munmap(memory, COUNT * PAGE) == 0);
	return relaxed_close(&pair);
}
