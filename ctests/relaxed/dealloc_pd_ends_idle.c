/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A domain with a relaxed region in use is busy; one with idle regions only can be deallocated, and
 * they end first. None of them comes back with the next domain, though that may be at the same
 * address.
 */
#include "../lib/observe.h"

static struct pair pair;
static char *memory;

/* Makes one registration, and returns whether the cache served it. */
static struct ibv_mr *registered(struct ibv_pd *pd, char *at, bool *hit)
{
	struct rdmamr_stats before;
	struct ibv_mr *mr = register_by_cache(pd, at, PAGE, LOCAL_AND_REMOTE, &before);

	must(mr);
	*hit = reused(before, stats());
	return mr;
}

static void live(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(pair.context);
	struct ibv_mr *mr;
	bool hit;

	must(pd);
	mr = registered(pd, memory, &hit);
	is(ibv_dealloc_pd(pd), EBUSY, "a region in use: the domain is busy");
	ok(kernel_has_key(pair.context, mr->lkey), "its region is unaffected");
	is(deregister_region(mr), 0, "it is deregistered");
	is(stats().idle, 1, "and idle");
	is(kernel_regions(pair.context), far.others + 1, "which the kernel still has");
	is(ibv_dealloc_pd(pd), 0, "an idle region: the domain is deallocated");
	is(stats().idle, 0, "and the region with it");
	is(stats().flushed_flush, 1, "which is counted");
	is(kernel_regions(pair.context), far.others, "the kernel has none");
}

static void both(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(pair.context);
	struct ibv_mr *used, *idle;
	bool hit;

	must(pd);
	used = registered(pd, memory, &hit);
	idle = registered(pd, memory + 8 * PAGE, &hit);
	must(deregister_region(idle) == 0);
	is(ibv_dealloc_pd(pd), EBUSY, "one in use and one idle: the domain is busy");
	ok(kernel_has_key(pair.context, used->lkey), "the one in use is unaffected");
	idle = registered(pd, memory + 8 * PAGE, &hit);
	ok(idle->pd == pd, "the domain can still be used (%s)", hit ? "the idle one was there" : "anew");
	is(deregister_region(idle), 0, "and left");
	is(deregister_region(used), 0, "the one in use is deregistered");
	is(ibv_dealloc_pd(pd), 0, "the domain is deallocated");
	is(kernel_regions(pair.context), far.others, "the kernel has none");
}

static void plain(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(pair.context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE), *idle;
	bool hit;

	must(pd && mr);
	idle = registered(pd, memory, &hit);
	must(deregister_region(idle) == 0);
	is(ibv_dealloc_pd(pd), EBUSY, "a plain region in use and an idle one: the domain is busy");
	ok(kernel_has_key(pair.context, mr->lkey), "the plain one is unaffected");
	is(ibv_dereg_mr(mr), 0, "it is deregistered");
	is(ibv_dealloc_pd(pd), 0, "the domain is deallocated");
	is(kernel_regions(pair.context), far.others, "the kernel has none");
}

/* The queue pairs hold this domain, whatever its regions do. */
static void held(void)
{
	struct ibv_mr *mr;
	bool hit;

	control(&pair, "the domain of the queue pairs", memory, PAGE);
	is(ibv_dealloc_pd(pair.pd), EBUSY, "queue pairs: the domain is busy");
	either(&pair, "after that", memory, PAGE);
	control(&pair, "after that", memory, PAGE);
	mr = registered(pair.pd, memory, &hit);
	is(ibv_dealloc_pd(pair.pd), EBUSY, "queue pairs and a region: the domain is busy");
	ok(lands_in(&pair, mr, memory, PAGE), "and data lands by that region");
	must(deregister_region(mr) == 0);
}

/* A region of one domain serves that one only, now and when its memory belongs to another domain. */
static void another(void)
{
	struct ibv_pd *pds[2] = { ibv_alloc_pd(pair.context), ibv_alloc_pd(pair.context) }, *last = NULL;
	struct ibv_mr *mr;
	int returned = 0, resurrected = 0, wrong = 0;
	bool hit;

	must(pds[0] && pds[1]);
	mr = registered(pds[0], memory, &hit);
	must(deregister_region(mr) == 0);
	mr = registered(pds[1], memory, &hit);
	ok(!hit && mr->pd == pds[1], "an idle region of another domain does not serve");
	must(deregister_region(mr) == 0);
	mr = registered(pds[0], memory, &hit);
	ok(hit && mr->pd == pds[0], "one of the same domain does");
	must(deregister_region(mr) == 0);
	is(ibv_dealloc_pd(pds[0]), 0, "one domain is deallocated");
	mr = registered(pds[1], memory, &hit);
	ok(hit, "and ends no region of the other");
	must(deregister_region(mr) == 0 && ibv_dealloc_pd(pds[1]) == 0);

	for (int round = 0; round < 50; round++) {
		struct ibv_pd *pd = ibv_alloc_pd(pair.context);

		must(pd);
		returned += pd == last;
		last = pd;
		mr = registered(pd, memory, &hit);
		resurrected += hit;
		wrong += mr->pd != pd || !kernel_has_key(pair.context, mr->lkey) || deregister_region(mr) != 0 ||
			 ibv_dealloc_pd(pd) != 0 || stats().idle != 0;
	}
	is(resurrected, 0, "a new domain finds no region of one that is gone");
	is(wrong, 0, "and each ends its idle region");
	ok(returned > 0, "%d of 50 were at the address of the last", returned);
	is(kernel_regions(pair.context), far.others, "the kernel has none");
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	as_root();
	relaxed_open(&pair);
	memory = pages(16);
	live();
	both();
	plain();
	another();
	held();
	return relaxed_close(&pair);
}
