/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Each registration has an object of its own, with the requested address and length, whichever
 * region serves it. The region lives until the last of them is deregistered, in any order.
 */
#include "../lib/reuse.h"

enum { COUNT = 16, SIZE = COUNT * PAGE, MANY = 200 };

static struct pair pair;
static char *memory;

static bool describes(const struct ibv_mr *mr, char *at, size_t length)
{
	return mr && mr->addr == at && mr->length == length && mr->pd == pair.pd &&
	       mr->context == pair.context;
}

/* Parts of a local region: first, last, middle, odd; each a hit with the region's key. */
static void parts(bool in_use)
{
	static const struct {
		const char *name;
		size_t from, length;
	} cases[] = {
		{ "its first page", 0, PAGE },
		{ "its last page", SIZE - PAGE, PAGE },
		{ "pages in the middle", 5 * PAGE, 3 * PAGE },
		{ "odd bytes", 3 * PAGE + 77, 2 * PAGE + 5 },
		{ "its last byte", SIZE - 1, 1 },
		{ "all of it", 0, SIZE },
		{ "all but a byte at each end", 1, SIZE - 2 },
	};
	const char *state = in_use ? "in use" : "idle";
	struct ibv_mr *whole, *mr;
	uint32_t lkey;

	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	whole = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
	must(whole);
	lkey = whole->lkey;
	if (!in_use)
		must(ibv_dereg_mr_relaxed(whole) == 0);
	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
		struct rdmamr_stats before = stats();
		char *at = memory + cases[n].from;

		mr = ibv_reg_mr_relaxed(pair.pd, at, cases[n].length, IBV_ACCESS_LOCAL_WRITE);
		ok(reused(before, stats()) && mr->lkey == lkey, "of a region that is %s, %s: is served by it",
		   state,
		   cases[n].name);
		is((long long)(stats().shared - before.shared), in_use,
		   "of a region that is %s, %s: is counted as %s", state,
		   cases[n].name, in_use ? "shared" : "not shared");
		ok(describes(mr, at, cases[n].length) && (!in_use || mr != whole),
		   "of a region that is %s, %s: describes the request",
		   state, cases[n].name);
		ok(lands_by_lkey(&pair, mr, at, cases[n].length),
		   "of a region that is %s, %s: data lands in the current page",
		   state, cases[n].name);
		is(ibv_dereg_mr_relaxed(mr), 0, "of a region that is %s, %s: deregistered", state,
		   cases[n].name);
	}
	if (in_use) {
		ok(describes(whole, memory, SIZE) && lands_by_lkey(&pair, whole, memory, SIZE),
		   "the region in use is unchanged");
		must(ibv_dereg_mr_relaxed(whole) == 0);
	}
	is((long long)stats().idle, 1, "there was only one region");
}

/* A region does not serve a buffer that reaches beyond it. */
static void not_parts(int kind)
{
	static const struct {
		const char *name;
		size_t from, length;
	} cases[] = {
		{ "a page more at its end", 4 * PAGE, 9 * PAGE },
		{ "a page more at its start", 3 * PAGE, 9 * PAGE },
		{ "a byte more at its end", 4 * PAGE, 8 * PAGE + 1 },
		{ "a byte more at its start", 4 * PAGE - 1, 8 * PAGE },
		{ "half of it", 8 * PAGE, 8 * PAGE },
		{ "the pages after it", 12 * PAGE, PAGE },
		{ "the pages before it", 0, 4 * PAGE },
		{ "a range around it", 0, SIZE },
	};

	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
		char name[100];

		snprintf(name, sizeof(name), "of 8 pages, %s, %s", cases[n].name, rights_names[kind]);
		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		must(lands_with(&pair, memory + 4 * PAGE, 8 * PAGE, rights[kind]));
		anew_with(&pair, name, memory + cases[n].from, cases[n].length, rights[kind]);
	}
}

/*
 * A remote key grants access to its whole region: for a part it would grant more than was
 * requested.
 */
static void remote_parts(void)
{
	struct ibv_mr *whole, *part;
	struct rdmamr_stats before;

	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	whole = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, LOCAL_AND_REMOTE);
	must(whole);
	before = stats();
	part = ibv_reg_mr_relaxed(pair.pd, memory + 2 * PAGE, PAGE, LOCAL_AND_REMOTE);
	ok(part && made_anew(before, stats()) && part->rkey != whole->rkey,
	   "a part with remote rights has a key of its own");
	must(part);
	ok(lands_in(&pair, part, memory + 2 * PAGE, PAGE), "a part with remote rights: data lands");
	ok(pair_read(&pair, far.mr, far.in, 8, (uintptr_t)memory + 3 * PAGE, part->rkey) != IBV_WC_SUCCESS,
	   "a part with remote rights: a read beyond it is refused");
	pair_reconnect(&pair);
	must(ibv_dereg_mr_relaxed(part) == 0);
	ok(lands_in(&pair, whole, memory, SIZE), "the whole goes on");
	must(ibv_dereg_mr_relaxed(whole) == 0);
}

/*
 * Many of one region: as many objects, one key, one region in the kernel, until the last is gone.
 */
static void many(int kind, bool forwards)
{
	static struct ibv_mr *mrs[MANY];
	int wrong = 0, same = 0, regions;
	struct rdmamr_stats before;

	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	regions = kernel_regions(pair.context);
	before = stats();
	for (int n = 0; n < MANY; n++) {
		mrs[n] = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, rights[kind]);
		must(mrs[n]);
		wrong += !describes(mrs[n], memory,
				    SIZE) || mrs[n]->lkey != mrs[0]->lkey || mrs[n]->rkey != mrs[0]->rkey;
	}
	for (int n = 0; n < MANY; n++) {
		for (int k = 0; k < n; k++)
			same += mrs[n] == mrs[k];
	}
	is(wrong, 0, "%d of one region, %s: the same key", MANY, rights_names[kind]);
	is(same, 0, "%d of one region, %s: no two the same object", MANY, rights_names[kind]);
	is((long long)(stats().hits - before.hits), MANY - 1, "%d of one region, %s: one miss, the rest hits",
	   MANY,
	   rights_names[kind]);
	is((long long)(stats().shared - before.shared), MANY - 1, "%d of one region, %s: which share it",
	   MANY,
	   rights_names[kind]);
	is(kernel_regions(pair.context), regions + 1, "%d of one region, %s: one in the kernel", MANY,
	   rights_names[kind]);
	for (int n = 0; n < MANY - 1; n++) {
		int k = forwards ? n : MANY - 1 - n;

		wrong += ibv_dereg_mr_relaxed(mrs[k]) != 0 || stats().idle != 0;
	}
	is(wrong, 0, "%d of one region, %s: all but one are deregistered, %s first", MANY, rights_names[kind],
	   forwards ? "first" : "last");
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	ok(kind ? lands_by_lkey(&pair, mrs[forwards ? MANY - 1 : 0], memory, SIZE) :
		  lands_in(&pair, mrs[forwards ? MANY - 1 : 0], memory, SIZE),
	   "%d of one region, %s: the last one works, after a flush too", MANY, rights_names[kind]);
	is(ibv_dereg_mr_relaxed(mrs[forwards ? MANY - 1 : 0]), 0, "%d of one region, %s: and is deregistered",
	   MANY,
	   rights_names[kind]);
	is((long long)stats().idle, 1, "%d of one region, %s: now it is idle", MANY, rights_names[kind]);
	control_with(&pair, "afterwards", memory, SIZE, rights[kind]);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	memory = pages(COUNT);
	as_case(parts(false), "parts of an idle region");
	as_case(parts(true), "parts of a region in use");
	not_parts(0);
	not_parts(1);
	as_case(remote_parts(), "parts with remote rights");
	for (int kind = 0; kind < 2; kind++) {
		many(kind, true);
		many(kind, false);
	}
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	must(munmap(memory, SIZE) == 0);
	return relaxed_close(&pair);
}
