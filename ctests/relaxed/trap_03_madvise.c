/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Advice that takes pages away leaves the mapping as it is, with other pages: registered anew. Advice that
 * only moves them, or does not touch those that a device has pinned, may do as it likes as long as data
 * lands. */
#include "relaxed.h"
#include <sys/mman.h>

enum { COUNT = 8 };

/* Younger than the headers of some systems. */
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static struct pair pair;
static char *memory;

static int by_libc(void *at, size_t length, int advice)
{
	return madvise(at, length, advice);
}

static int by_system_call(void *at, size_t length, int advice)
{
	return (int)syscall(SYS_madvise, at, length, advice);
}

/* Other memory for each case: where pages were dropped, nothing is kept for a while. */
static void other_memory(void)
{
	static char *next, *end;

	if (next == end) {
		next = pages(64 * COUNT);
		end = next + 64 * COUNT * PAGE;
	}
	memory = next;
	next += COUNT * PAGE;
}

static const struct way {
	const char *name;
	int (*advise)(void *at, size_t length, int advice);
} ways[] = { { "madvise", by_libc }, { "its system call", by_system_call } };

static void takes_pages(const struct way *way, const char *what, int advice, int first, int count, int kind)
{
	char name[120];

	other_memory();
	if (advice == MADV_DONTNEED_LOCKED)
		must(mlock(memory, COUNT * PAGE) == 0);
	snprintf(name, sizeof(name), "%s, %s of %d of %d pages, %s", way->name, what, count, COUNT,
		 kind_names[kind]);
	control_with(&pair, name, memory, COUNT * PAGE, kinds[kind]);
	must(way->advise(memory + first * PAGE, (size_t)count * PAGE, advice) == 0);
	anew_with(&pair, name, memory, COUNT * PAGE, kinds[kind]);
}

static void in_use(const struct way *way)
{
	struct ibv_mr *old;

	other_memory();
	old = ibv_reg_mr_relaxed(pair.pd, memory, COUNT * PAGE, LOCAL_AND_REMOTE);
	must(old);
	must(way->advise(memory, COUNT * PAGE, MADV_DONTNEED) == 0);
	anew(&pair, "DONTNEED below a region in use", memory, COUNT * PAGE);
	is(ibv_dereg_mr_relaxed(old), 0, "DONTNEED below a region in use: deregistered");
}

/* Pages of shared memory go by REMOVE. Nothing is kept of such memory, so nothing can be stale. */
static void removed(const struct way *way)
{
	memory = mmap(NULL, COUNT * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(memory != MAP_FAILED);
	not_kept(&pair, "shared memory", memory, COUNT * PAGE);
	must(way->advise(memory, COUNT * PAGE, MADV_REMOVE) == 0);
	anew(&pair, "REMOVE", memory, COUNT * PAGE);
	must(munmap(memory, COUNT * PAGE) == 0);
}

/* userfaultfd says nothing of guard pages: only the call of libc is seen. */
static void guarded(void)
{
	char *page;

	other_memory();
	page = memory + 2 * PAGE;
	control(&pair, "GUARD_INSTALL", memory, COUNT * PAGE);
	if (madvise(page, PAGE, GUARD_INSTALL)) {
		skip("GUARD_INSTALL", "Linux 6.13 is the first that has it");
		return;
	}
	must(madvise(page, PAGE, GUARD_REMOVE) == 0);
	anew(&pair, "GUARD_INSTALL and GUARD_REMOVE", memory, COUNT * PAGE);
}

/* What a kernel does not know of is no advice to test. */
static void leaves_pages(const struct way *way, const char *what, int advice)
{
	char name[120];
	int err;

	other_memory();
	snprintf(name, sizeof(name), "%s, %s", way->name, what);
	control(&pair, name, memory, COUNT * PAGE);
	err = way->advise(memory, COUNT * PAGE, advice) ? errno : 0;
	if (err == EINVAL)
		printf("# %s: this kernel refuses it\n", name);
	either(&pair, name, memory, COUNT * PAGE);
	if (advice == MADV_FREE)
		return;
	/* And what is registered after it stays good as well. */
	control(&pair, name, memory, COUNT * PAGE);
}

static void *advise_in_thread(void *way)
{
	must(((const struct way *)way)->advise(memory, COUNT * PAGE, MADV_DONTNEED) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct { const char *name; int advice; } harmless[] = {
		{ "FREE", MADV_FREE }, { "COLD", MADV_COLD }, { "PAGEOUT", MADV_PAGEOUT },
		{ "COLLAPSE", MADV_COLLAPSE }, { "WILLNEED", MADV_WILLNEED }, { "HUGEPAGE", MADV_HUGEPAGE },
		{ "NOHUGEPAGE", MADV_NOHUGEPAGE }, { "POPULATE_WRITE", MADV_POPULATE_WRITE },
	};

	(void)argc;
	with_setting(argv, "RDMAMR_RELAXED_LINGER", "100");
	relaxed_open(&pair);
	for (size_t n = 0; n < 2; n++) {
		for (int kind = 0; kind < 2; kind++) {
			takes_pages(&ways[n], "DONTNEED", MADV_DONTNEED, 0, COUNT, kind);
			takes_pages(&ways[n], "DONTNEED", MADV_DONTNEED, 0, 1, kind);
			takes_pages(&ways[n], "DONTNEED", MADV_DONTNEED, 5, 1, kind);
			takes_pages(&ways[n], "DONTNEED", MADV_DONTNEED, COUNT - 1, 1, kind);
		}
		takes_pages(&ways[n], "DONTNEED_LOCKED", MADV_DONTNEED_LOCKED, 0, COUNT, 0);
		takes_pages(&ways[n], "DONTNEED_LOCKED", MADV_DONTNEED_LOCKED, 3, 1, 0);
		removed(&ways[n]);
		in_use(&ways[n]);
		for (size_t k = 0; k < sizeof(harmless) / sizeof(harmless[0]); k++)
			leaves_pages(&ways[n], harmless[k].name, harmless[k].advice);
	}
	guarded();
	for (size_t n = 0; n < 2; n++) {
		other_memory();
		control(&pair, "in another thread", memory, COUNT * PAGE);
		in_thread(advise_in_thread, (void *)&ways[n]);
		anew(&pair, "DONTNEED in another thread", memory, COUNT * PAGE);
		control(&pair, "after DONTNEED in another thread", memory, COUNT * PAGE);
	}
	/* That of POSIX does nothing at all in glibc. */
	other_memory();
	control(&pair, "posix_madvise", memory, COUNT * PAGE);
	must(posix_madvise(memory, COUNT * PAGE, POSIX_MADV_DONTNEED) == 0);
	either(&pair, "posix_madvise(DONTNEED)", memory, COUNT * PAGE);
	is((long long)stats().flushed_linger, 0, "no region went for its age");
	return relaxed_close(&pair);
}
