/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * realloc grows a large block of the C library by an mremap inside the C library, which accepts a
 * single mapping only. The watch of registered memory splits mappings. With registered memory in
 * the block, or beside it, realloc must still move the pages and not copy them, the data must be
 * unchanged, and a registration at the new address must get the memory of the new address.
 *
 * A copy touches each page of a new block, and the kernel counts that. The device is the stand-in
 * (stub_device.h).
 */
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { MIB = 1 << 20, SIZE = 64 * MIB, PAGES = SIZE / PAGE, FEW = PAGES / 8 };

static char *block_of(size_t size)
{
	char *block = malloc(size);

	must(block);
	for (size_t at = 0; at < size; at += PAGE)
		block[at] = (char)(at / PAGE + 1);
	return block;
}

static int wrong_pages(const char *block, size_t size)
{
	int wrong = 0;

	for (size_t at = 0; at < size; at += PAGE)
		wrong += block[at] != (char)(at / PAGE + 1);
	return wrong;
}

static struct ibv_mr *registered(char *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

static void idle(char *memory, size_t length)
{
	for (int round = 0; round < 2; round++)
		must(ibv_dereg_mr_relaxed(registered(memory, length)) == 0);
}

/* Two times, since the first leaves the block in another place. */
static char *grown(char *block, size_t from)
{
	for (int time = 1; time <= 2; time++) {
		size_t size = from + (size_t)time * 4 * MIB;
		long before = faults(), more;
		char *next = realloc(block, size);
		struct ibv_mr *mr;

		must(next);
		more = faults() - before;
		ok(more < FEW, "realloc %d touches few pages: %ld of %d", time, more, PAGES);
		is(wrong_pages(next, from), 0, "realloc %d leaves the data", time);
		block = next;
		idle(block + 20 * MIB, MIB);
		mr = registered(block + 20 * MIB, MIB);
		ok(stub_lands(mr), "after realloc %d a registration has the memory of the new place", time);
		must(ibv_dereg_mr_relaxed(mr) == 0);
		/* stub_lands() has written to one page. */
		block[20 * MIB] = (char)(20 * MIB / PAGE + 1);
	}
	return block;
}

static void a_part(void)
{
	char *block = block_of(SIZE);

	idle(block + SIZE / 2, MIB);
	free(grown(block, SIZE));
}

static void in_use(void)
{
	char *block = block_of(SIZE);
	struct ibv_mr *mr = registered(block + SIZE / 2, MIB);

	block = grown(block, SIZE);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	free(block);
}

static void many_parts(void)
{
	char *block = block_of(SIZE);

	for (size_t at = MIB; at < SIZE; at += 7 * MIB)
		idle(block + at, 3 * PAGE);
	free(grown(block, SIZE));
}

/*
 * A region lies across a boundary of 2 MiB, the unit of the watch, and another in one of the two
 * units. The watch of both units ends, whichever region the cache finds first.
 */
static void across_and(int other)
{
	char *block = block_of(SIZE), *boundary = (char *)(((uintptr_t)block + SIZE / 2) & ~(uintptr_t)(2 * MIB - 1));

	idle(boundary - PAGE, 2 * PAGE);
	idle(boundary + other * PAGE, PAGE);
	free(grown(block, SIZE));
}

static void across_and_below(void)
{
	across_and(-9);
}

static void across_and_above(void)
{
	across_and(9);
}

static void all_of_it(void)
{
	char *block = block_of(SIZE);

	idle(block, SIZE);
	free(grown(block, SIZE));
}

static void beside(void)
{
	char *block = block_of(SIZE), *other = block_of(4 * MIB), *third = block_of(SIZE);

	idle(other, 4 * MIB);
	idle(other + 3 * MIB, PAGE);
	block = grown(block, SIZE);
	third = grown(third, SIZE);
	free(other);
	free(block);
	free(third);
}

/* A region so large that its watch outlives it. */
static void ended(void)
{
	char *block = block_of(SIZE);

	idle(block + SIZE / 2, 16 * MIB);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	free(grown(block, SIZE));
}

/* A call changes a page of a large region. The rest of the region stays watched. */
static void changed_in_part(void)
{
	char *block = block_of(SIZE), *changed = block + 20 * MIB;
	struct ibv_mr *mr = registered(block + MIB, 40 * MIB);

	must(madvise(changed - (uintptr_t)changed % PAGE, PAGE, MADV_DONTNEED) == 0);
	*changed = (char)(20 * MIB / PAGE + 1);
	block = grown(block, SIZE);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	free(block);
}

/* Without growth the region stays as it is. */
static void same_size(void)
{
	char *block = block_of(SIZE);
	uint64_t hits;

	idle(block + SIZE / 2, MIB);
	hits = stats().hits;
	must((block = realloc(block, SIZE - 100)) != NULL);
	idle(block + SIZE / 2, MIB);
	is((long long)(stats().hits - hits), 2, "realloc that changes no mapping leaves the region");
	free(block);
}

static bool watches_are_kept_apart(void)
{
	int one = open_userfaultfd(0), other = open_userfaultfd(0);
	char *memory = pages(1);
	struct uffdio_register watch = { .range = { (uintptr_t)memory, PAGE }, .mode = UFFDIO_REGISTER_MODE_WP };
	bool apart = one >= 0 && other >= 0 && ioctl(one, UFFDIO_REGISTER, &watch) == 0 &&
		     ioctl(other, UFFDIO_UNREGISTER, &watch.range) != 0;

	must(close(one) == 0 && close(other) == 0 && munmap(memory, PAGE) == 0);
	return apart;
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "a part of the block was registered", a_part },
	{ "a part of the block is registered", in_use },
	{ "many parts of the block were registered", many_parts },
	{ "a region across a boundary and one below were registered", across_and_below },
	{ "a region across a boundary and one above were registered", across_and_above },
	{ "all of the block was registered", all_of_it },
	{ "memory beside the block was registered", beside },
	{ "a large region in the block has ended", ended },
	{ "a large region in the block has changed in part", changed_in_part },
	{ "the size stays", same_size },
};

enum { CASES = sizeof(cases) / sizeof(cases[0]) };

/* One case, in a process of its own. The parent continues the report. */
static int run(int n)
{
	const char *why = stub_open(STUB_PIN);

	tap_count = n;
	case_begin("%s", cases[n].name);
	/* The kernel counts each touched page, unless it is huge. */
	must(!why && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
	/* Each block is a mapping of its own; and no line of the report is in such a block. */
	must(mallopt(M_MMAP_THRESHOLD, MIB) == 1);
	if ((cases[n].run == ended || cases[n].run == changed_in_part) && !watches_are_kept_apart())
		skip(cases[n].name, "before Linux 6.16 a watch without a region stays");
	else
		cases[n].run();
	return case_end() ? 0 : 1;
}

/*
 * Each case is the first of its process: once memory may be watched without a region, each growth
 * ends the watch of all the block, known or not.
 */
int main(int argc, char **argv)
{
	const char *why;

	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (argc > 1)
		return run(atoi(argv[1]));
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	idle(pages(1), PAGE);
	if (!stats().hits)
		skip_all("no memory can be watched here");
	for (int n = 0; n < CASES; n++) {
		char number[12];
		int result;

		snprintf(number, sizeof(number), "%d", n);
		result = once_more(number, NULL);
		tap_count = n + (result <= 1);
		if (result > 1)
			is(result, 0, "%s: the process ends by itself", cases[n].name);
	}
	return done_testing();
}
