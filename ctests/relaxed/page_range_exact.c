/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A region covers whole pages: buffers of one page share it, its key grants access to exactly the
 * registered pages, and sums that wrap around are refused.
 */
#include "../lib/reuse.h"

static struct pair pair;
static char *memory;

static struct ibv_mr *reg(char *at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, at, length, access);

	must(mr);
	return mr;
}

/* Whether the far end can write there by the key. Checks that the memory agrees with the outcome. */
static bool writes(char *at, size_t length, uint32_t rkey)
{
	char *was = malloc(length);
	int status;
	bool there;

	must(was);
	memcpy(was, at, length);
	fill(far.out, length);
	status = pair_write(&pair, far.mr, far.out, length, (uintptr_t)at, rkey);
	/* On iWARP a write is complete when it is sent; a request behind it is answered later. */
	if (pair.iwarp && status == IBV_WC_SUCCESS)
		status = pair_read(&pair, far.mr, far.in, 8, (uintptr_t)far.out, far.mr->rkey);
	there = !memcmp(at, far.out, length);
	if (status != IBV_WC_SUCCESS) {
		must(!memcmp(at, was, length));
		pair_reconnect(&pair);
	}
	free(was);
	must((status == IBV_WC_SUCCESS) == there);
	return there;
}

static void one_page(int kind)
{
	struct rdmamr_stats before;
	struct ibv_mr *one, *other;

	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	one = reg(memory + PAGE + 200, 100, rights[kind]);
	before = stats();
	other = reg(memory + PAGE + 3000, 100, rights[kind]);
	ok(reused(before, stats()), "two buffers in a page, %s: one region", rights_names[kind]);
	is((long long)(stats().shared - before.shared), 1, "two buffers in a page, %s: which they share",
	   rights_names[kind]);
	ok(one != other && one->lkey == other->lkey && one->rkey == other->rkey,
	   "two buffers in a page, %s: two objects, the same keys", rights_names[kind]);
	ok(one->addr == memory + PAGE + 200 && one->length == 100 && other->addr == memory + PAGE + 3000 &&
	   other->length == 100,
	   "two buffers in a page, %s: each describes its request", rights_names[kind]);
	if (!kind) {
		ok(lands_in(&pair, one, memory + PAGE + 200, 100) &&
		   lands_in(&pair, other, memory + PAGE + 3000, 100),
		   "two buffers in a page: data lands in both");
		ok(writes(memory + PAGE, PAGE, one->rkey), "the key grants the whole page");
		ok(!writes(memory + 2 * PAGE - 32, 64, one->rkey), "and not beyond its end");
		ok(!writes(memory + PAGE - 32, 64, one->rkey), "nor before its start");
	} else {
		ok(lands_by_lkey(&pair, one, memory + PAGE, PAGE),
		   "the local key grants the whole page");
	}
	is(ibv_dereg_mr_relaxed(one), 0, "the first is deregistered");
	ok(kind ? lands_by_lkey(&pair, other, memory + PAGE + 3000, 100) :
		  lands_in(&pair, other, memory + PAGE + 3000, 100), "and the second goes on");
	is(ibv_dereg_mr_relaxed(other), 0, "the second is deregistered");
}

/* A buffer that ends at the end of a page does not reach the next. */
static void edges(void)
{
	static const struct {
		const char *name;
		size_t from, to, first, last; /* requested bytes; pages that the region covers */
	} cases[] = {
		{ "within a page", 100, 200, 0, 1 },
		{ "one byte", PAGE, PAGE + 1, 1, 2 },
		{ "the last byte of a page", 2 * PAGE - 1, 2 * PAGE, 1, 2 },
		{ "across a border", 2 * PAGE - 50, 2 * PAGE + 50, 1, 3 },
		{ "two bytes across a border", 2 * PAGE - 1, 2 * PAGE + 1, 1, 3 },
		{ "a page", 2 * PAGE, 3 * PAGE, 2, 3 },
		{ "a page that starts one off", 1 * PAGE + 1, 2 * PAGE + 1, 1, 3 },
		{ "up to the end of a page", 100, 2 * PAGE, 0, 2 },
	};

	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
		const char *name = cases[n].name;
		char *start = memory + cases[n].first * PAGE, *end = memory + cases[n].last * PAGE;
		size_t length = cases[n].to - cases[n].from;
		struct rdmamr_stats before;
		struct ibv_mr *mr, *pages;

		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		mr = reg(memory + cases[n].from, length, LOCAL_AND_REMOTE);
		ok(mr->addr == memory + cases[n].from && mr->length == length, "%s: describes the request",
		   name);
		ok(writes(start, 8, mr->rkey) && writes(end - 8, 8, mr->rkey),
		   "%s: its pages from the first to the last byte",
		   name);
		ok(!writes(start - 8, 8, mr->rkey) && !writes(end, 8, mr->rkey), "%s: and not one byte more",
		   name);
		before = stats();
		pages = reg(start, (size_t)(end - start), LOCAL_AND_REMOTE);
		ok(reused(before, stats()) && pages->rkey == mr->rkey, "%s: its pages are the same region",
		   name);
		is((long long)(stats().idle_bytes), 0, "%s: which is in use", name);
		must(ibv_dereg_mr_relaxed(mr) == 0 && ibv_dereg_mr_relaxed(pages) == 0);
		is((long long)(stats().idle_bytes), end - start, "%s: and is counted by its pages", name);
	}
}

/* The pages around the buffer are unmapped: nothing else may be pinned. */
static void alone(void)
{
	struct ibv_mr *mr;

	must(munmap(memory, PAGE) == 0 && munmap(memory + 2 * PAGE, PAGE) == 0);
	for (int kind = 0; kind < 2; kind++) {
		ok(lands_with(&pair, memory + PAGE + 10, PAGE - 10, rights[kind]),
		   "a page with nothing around it, up to its end, %s", rights_names[kind]);
		ok(lands_with(&pair, memory + PAGE, PAGE - 10, rights[kind]),
		   "a page with nothing around it, from its start, %s", rights_names[kind]);
		errno = 0;
		mr = ibv_reg_mr_relaxed(pair.pd, memory + PAGE + 10, PAGE, rights[kind]);
		ok(!mr && errno == EFAULT, "beyond its end, %s: is refused (EFAULT)", rights_names[kind]);
		errno = 0;
		mr = ibv_reg_mr_relaxed(pair.pd, memory + PAGE - 1, PAGE, rights[kind]);
		ok(!mr && errno == EFAULT, "before its start, %s: is refused (EFAULT)", rights_names[kind]);
	}
	fresh_at(memory, PAGE);
	fresh_at(memory + 2 * PAGE, PAGE);
}

static void invalid(const char *name, uintptr_t at, size_t length)
{
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr_relaxed(pair.pd, (void *)at, length, LOCAL_AND_REMOTE);
	ok(!mr && errno == EINVAL, "%s: is refused (EINVAL)", name);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	/* A page before and two after the tested ones, for writes that must fail. */
	memory = pages(6);
	memory += PAGE;
	one_page(0);
	one_page(1);
	edges();
	alone();
	invalid("no length", (uintptr_t)memory, 0);
	invalid("a sum that wraps around", (uintptr_t)-100, 200);
	invalid("a sum that is 0", (uintptr_t)-PAGE, PAGE);
	invalid("pages that wrap around", (uintptr_t)-100, 50);
	invalid("the greatest length", (uintptr_t)memory, SIZE_MAX);
	invalid("the greatest length from 0", 0, SIZE_MAX);
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	must(munmap(memory - PAGE, 6 * PAGE) == 0);
	return relaxed_close(&pair);
}
