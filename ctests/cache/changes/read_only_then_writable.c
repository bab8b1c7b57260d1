/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory is registered without a right to write, while its pages are the zero page or shared pages
 * of a file. Then the program writes, which gives it pages of its own, and registers it with the
 * right. The first region must not serve the second registration, and must read the data that the
 * program sees.
 */
#include "../../lib/reuse.h"

enum { COUNT = 8, SIZE = COUNT * PAGE };

static struct pair pair;

static char *untouched(int fd)
{
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0),
			    fd, 0);

	must(memory != MAP_FAILED);
	return memory;
}

/* Whether the device reads, by the region, the data that the program sees. */
static int reads(const struct ibv_mr *mr, char *memory, int access)
{
	int status;

	memset(far.in, 0x55, SIZE);
	if (access & IBV_ACCESS_REMOTE_READ)
		status = pair_read(&pair, far.mr, far.in, SIZE, (uintptr_t)memory, mr->rkey);
	else
		status = pair_write(&pair, mr, memory, SIZE, (uintptr_t)far.in, far.mr->rkey);
	if (pair.iwarp && !status) /* the answer to a read behind a write comes after it */
		status = pair_read(&pair, far.mr, far.out, 8, (uintptr_t)far.in, far.mr->rkey);
	return status_is_good(status, "the device reads") && !memcmp(far.in, memory, SIZE);
}

/* By a registration of its own; `before` has the statistics before it. */
static int reads_anew(char *memory, int access, struct rdmamr_stats *before)
{
	struct ibv_mr *mr = register_by_cache(pair.pd, memory, SIZE, access, before);
	int good;

	must(mr);
	good = reads(mr, memory, access);
	must(deregister_region(mr) == 0);
	return good;
}

/* `first` has no right to write; `second` is the first with it. */
static void upgraded(const char *name, int fd, int first, int second, bool touched, bool kept)
{
	char *memory = untouched(fd);
	struct rdmamr_stats before;
	struct ibv_mr *mr, *writes;

	if (touched)
		must(memory[0] + memory[SIZE - 1] < 1000); /* read only: pages that are shared */
	ok(reads_anew(memory, first, &before), "%s: the device reads what the program sees", name);
	ok(reads_anew(memory, first, &before), "%s: a second time", name);
	ok(kept ? reused(before, stats()) : made_anew(before, stats()), "%s: %s", name,
	   kept ? "by the same region" : "by a region of its own");
	fill(memory, SIZE);
	ok(reads_anew(memory, first, &before), "%s: the device reads the data that the program wrote since", name);

	mr = register_region(pair.pd, memory, SIZE, first);
	must(mr);
	writes = register_by_cache(pair.pd, memory, SIZE, second, &before);
	must(writes);
	ok(made_anew(before, stats()) && writes->lkey != mr->lkey,
	   "%s: the right to write takes another region", name);
	ok(second & IBV_ACCESS_REMOTE_WRITE ? lands_in(&pair, writes, memory, SIZE) :
					      lands_by_lkey(&pair, writes, memory, SIZE),
	   "%s: by that, data lands in the current page", name);
	ok(reads(mr, memory, first), "%s: and the first reads it", name);
	fill(memory, SIZE);
	ok(reads(mr, memory, first), "%s: and reads the program's later data", name);
	is(deregister_region(mr), 0, "%s: the first is deregistered", name);
	is(deregister_region(writes), 0, "%s: and the second", name);
	ok(reads_anew(memory, first, &before), "%s: without the right to write again", name);
	ok(lands_with(&pair, memory, SIZE, second), "%s: with it again", name);
	must(munmap(memory, SIZE) == 0);
}

/* After the program's write a region with the right may exist already: it serves both. */
static void downgraded(void)
{
	char *memory = untouched(-1);
	struct rdmamr_stats before;

	control_with(&pair, "local rights", memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
	ok(reads_anew(memory, 0, &before), "one right less: the device reads what the program sees");
	ok(reused(before, stats()), "one right less: by the region that has it");
	must(munmap(memory, SIZE) == 0);
}

int main(int argc, char **argv)
{
	int exe = open("/proc/self/exe", O_RDONLY);
	const int remote = IBV_ACCESS_REMOTE_READ;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	must(exe >= 0);
	relaxed_open(&pair);
	upgraded("untouched memory, local", -1, 0, IBV_ACCESS_LOCAL_WRITE, false, true);
	upgraded("untouched memory, remote", -1, remote, LOCAL_AND_REMOTE, false, true);
	upgraded("pages of zeros, local", -1, 0, IBV_ACCESS_LOCAL_WRITE, true, true);
	upgraded("pages of zeros, remote", -1, remote, LOCAL_AND_REMOTE, true, true);
	/* A file may be cut, and the library does not see it. */
	upgraded("a file's pages, local", exe, 0, IBV_ACCESS_LOCAL_WRITE, true, false);
	upgraded("a file's pages, remote", exe, remote, LOCAL_AND_REMOTE, true, false);
	downgraded();
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	return relaxed_close(&pair);
}
