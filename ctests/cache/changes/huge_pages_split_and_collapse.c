/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The kernel splits, collapses, merges and moves pages as it likes, but not those that a device has
 * pinned: idle regions stay good through all of it, and do not end needlessly. Also, registering a
 * part of a transparent huge page must not split it.
 */
#include "../../lib/reuse.h"
#include <sys/mman.h>

enum { HUGE = 2 << 20, PART = 64 << 10, COUNT = 8, SIZE = COUNT * PAGE };

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static struct pair pair;

/* Memory of `count` huge pages, aligned to their size. */
static char *aligned(size_t count)
{
	size_t length = (count + 1) * HUGE;
	char *all = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *memory;

	must(all != MAP_FAILED && munmap(all, length) == 0);
	memory = (char *)(((uintptr_t)all + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	fresh_at(memory, count * HUGE);
	return memory;
}

/* KiB of transparent huge pages from there up to `length` on, in any number of mappings. */
static long huge_kib(const char *memory, size_t length)
{
	FILE *smaps = fopen("/proc/self/smaps", "re");
	unsigned long start, end;
	long sum = 0, kib;
	char line[300];
	bool inside = false;

	must(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start < (uintptr_t)memory + length && end > (uintptr_t)memory;
		else if (inside && sscanf(line, "AnonHugePages: %ld", &kib) == 1)
			sum += kib;
	}
	fclose(smaps);
	return sum;
}

static int write_to(const char *path, const char *value)
{
	FILE *file = fopen(path, "we");

	if (!file)
		return -1;
	fputs(value, file);
	return fclose(file);
}

static void part_of_a_huge_page(void)
{
	char *memory = aligned(2);
	long before, other;

	must(madvise(memory, 2 * HUGE, MADV_HUGEPAGE) == 0);
	memset(memory, 1, 2 * HUGE);
	before = huge_kib(memory, 2 * HUGE);
	if (before < 2 * HUGE / 1024) {
		skip("huge pages", "the kernel gave none");
		must(munmap(memory, 2 * HUGE) == 0);
		return;
	}
	control(&pair, "a part of a huge page", memory, PART);
	is(huge_kib(memory, 2 * HUGE), before, "the huge pages are whole after it was registered");
	/* The rest of it is discarded: the kernel splits it, and the part has its pages still. */
	must(syscall(SYS_madvise, memory + HUGE / 2, PAGE, MADV_DONTNEED) == 0);
	still(&pair, "the rest of the huge page discarded", memory, PART);
	other = huge_kib(memory + HUGE, HUGE);
	is(other, HUGE / 1024, "the huge page beside it is whole");
	must(madvise(memory + HUGE / 2, HUGE / 2, MADV_NOHUGEPAGE) == 0); /* splits the mapping as well */
	either(&pair, "the mapping split", memory, PART);
	control(&pair, "in what was a huge page", memory, PART);
	/* The kernel may join them again, or not, since pages are pinned. */
	must(madvise(memory, 2 * HUGE, MADV_HUGEPAGE) == 0);
	printf("# collapse: %s\n",
	       syscall(SYS_madvise, memory, HUGE, MADV_COLLAPSE) ? strerror(errno) : "done");
	still(&pair, "collapsed", memory, PART);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	printf("# collapse after a flush: %s\n",
	       syscall(SYS_madvise, memory, HUGE, MADV_COLLAPSE) ? strerror(errno) : "done");
	control(&pair, "after a flush", memory, PART);
	must(munmap(memory, 2 * HUGE) == 0);
}

/*
 * Nor do regions of other parts of the huge page split it, or a region in use that is older than
 * the huge page.
 */
static void neighbours(void)
{
	char *memory = aligned(1);
	struct rdmamr_stats since;
	struct ibv_mr *old;
	long before;

	must(madvise(memory, HUGE, MADV_HUGEPAGE) == 0);
	memset(memory, 1, HUGE);
	before = huge_kib(memory, HUGE);
	if (before < HUGE / 1024) {
		skip("parts of a huge page", "the kernel gave none");
		must(munmap(memory, HUGE) == 0);
		return;
	}
	for (int n = 0; n < 4; n++)
		control(&pair, "parts of a huge page", memory + n * 3 * PART, PART);
	is(huge_kib(memory, HUGE), before, "the huge page is whole after four parts were registered");
	old = register_by_cache(pair.pd, memory, PART, LOCAL_AND_REMOTE, &since);
	must(old);
	must(syscall(SYS_munmap, memory, HUGE) == 0);
	fresh_at(memory, HUGE);
	must(madvise(memory, HUGE, MADV_HUGEPAGE) == 0);
	memset(memory, 1, HUGE);
	before = huge_kib(memory, HUGE);
	anew(&pair, "a huge page where a region in use was", memory + 3 * PART, PART);
	is(huge_kib(memory, HUGE), before,
	   "a huge page where a region in use was: is whole after a part was registered");
	is(deregister_region(old), 0, "the region in use is deregistered");
	control(&pair, "where a region in use was", memory, PART);
	must(munmap(memory, HUGE) == 0);
}

/* Below an idle region, a huge page replaces a page of a page table. */
static void huge_page_comes(void)
{
	char *memory = aligned(1);

	control(&pair, "before a huge page", memory, PART);
	must(syscall(SYS_madvise, memory, HUGE, MADV_DONTNEED) == 0);
	must(madvise(memory, HUGE, MADV_HUGEPAGE) == 0);
	memset(memory, 1, HUGE);
	printf("# %ld KiB of huge pages\n", huge_kib(memory, HUGE));
	anew(&pair, "a huge page where small ones were", memory, PART);
	must(munmap(memory, HUGE) == 0);
}

static void compacted(void)
{
	char *memory = pages(COUNT);

	control(&pair, "before compaction", memory, SIZE);
	if (write_to("/proc/sys/vm/compact_memory", "1")) {
		skip("compaction", "only root may");
		return;
	}
	still(&pair, "after compaction", memory, SIZE);
	for (int n = 0; n < 3; n++)
		write_to("/proc/sys/vm/compact_memory", "1");
	still(&pair, "after more of it", memory, SIZE);
	must(munmap(memory, SIZE) == 0);
}

/* The number in a file of the kernel. */
static long number_in(const char *path)
{
	FILE *file = fopen(path, "re");
	long number = -1;

	if (file) {
		if (fscanf(file, "%ld", &number) != 1)
			number = -1;
		fclose(file);
	}
	return number;
}

/* The kernel merges pages with the same content, except pinned ones. */
static void merged(void)
{
	char *memory = pages(3 * COUNT), *idle = memory + COUNT * PAGE;
	long scans = number_in("/sys/kernel/mm/ksm/full_scans");

	control(&pair, "before pages are merged", idle, SIZE);
	memset(memory, 7, 3 * SIZE);
	if (write_to("/sys/kernel/mm/ksm/pages_to_scan", "1000") ||
	    write_to("/sys/kernel/mm/ksm/sleep_millisecs", "1") ||
	    madvise(memory, 3 * SIZE, MADV_MERGEABLE) || write_to("/sys/kernel/mm/ksm/run", "1")) {
		skip("merging", "only root may, on a kernel that can");
		return;
	}
	for (int tries = 0; tries < 500 && number_in("/sys/kernel/mm/ksm/full_scans") < scans + 4; tries++)
		usleep(10000);
	printf("# %ld pages are merged\n", number_in("/sys/kernel/mm/ksm/pages_sharing"));
	ok(number_in("/sys/kernel/mm/ksm/full_scans") >= scans + 4, "all pages were looked at");
	either(&pair, "after pages were merged", idle, SIZE);
	/* A merged page is copied before a device gets it. */
	ok(lands(&pair, memory, 3 * SIZE), "merged pages: data lands in the current page");
	control(&pair, "merged pages", memory, 3 * SIZE);
	memset(memory, 8, 3 * SIZE);
	ok(lands(&pair, memory, 3 * SIZE), "merged pages, written again: data lands in the current page");
	must(write_to("/sys/kernel/mm/ksm/run", "2") == 0 && write_to("/sys/kernel/mm/ksm/run", "0") == 0);
	ok(lands(&pair, memory, 3 * SIZE), "all unmerged: data lands in the current page");
	must(munmap(memory, 3 * SIZE) == 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	part_of_a_huge_page();
	neighbours();
	huge_page_comes();
	compacted();
	merged();
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	return relaxed_close(&pair);
}
