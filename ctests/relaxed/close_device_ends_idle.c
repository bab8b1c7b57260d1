/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A device that is closed ends its idle regions, and is busy while one is in use. None of them is
 * found when another context or domain has the old address, and another open of the same device
 * keeps its own. Freed memory is overwritten (MALLOC_PERTURB_), so that a use of it shows.
 */
#include "../lib/observe.h"

static struct pair pair;
static char *memory;
static long pins; /* of the pair, to which the count must return */

static struct ibv_mr *registered(struct ibv_pd *pd, char *at, bool *hit)
{
	struct rdmamr_stats before = stats();
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pd, at, PAGE, LOCAL_AND_REMOTE);

	must(mr);
	*hit = reused(before, stats());
	return mr;
}

static void idle_ones(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pds[2] = { ibv_alloc_pd(context), ibv_alloc_pd(context) };
	struct rdmamr_stats before = stats();
	struct ibv_mr *mr;
	bool hit;

	must(pds[0] && pds[1]);
	for (int n = 0; n < 6; n++) {
		mr = registered(pds[n % 2], memory + n * 2 * PAGE, &hit);
		must(ibv_dereg_mr_relaxed(mr) == 0);
	}
	is(stats().idle, 6, "six idle regions in two domains");
	is(pinned() - pins, 6, "six pinned pages");
	is(ibv_dealloc_pd(pds[0]), 0, "a domain is deallocated");
	is(stats().idle, 3, "with its three regions");
	is(ibv_close_device(context), 0, "the device is closed with the other domain");
	is(stats().idle, 0, "nothing is idle");
	is(stats().flushed_flush - before.flushed_flush, 6, "all six are counted");
	is(pinned(), pins, "nothing is pinned");
	is(stats().ended_elsewhere, before.ended_elsewhere, "none has ended elsewhere");
}

static void used_ones(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct rdmamr_stats before = stats();
	struct ibv_mr *used, *again, *idle;
	bool hit;

	must(pd);
	used = registered(pd, memory, &hit);
	again = registered(pd, memory, &hit);
	ok(hit && again != used, "two registrations share a region");
	idle = registered(pd, memory + 4 * PAGE, &hit);
	must(ibv_dereg_mr_relaxed(idle) == 0);
	is(ibv_close_device(context), EBUSY, "a device with regions in use is busy, as a domain is");
	ok(kernel_has_key(context, used->lkey), "the region is unaffected");
	is(ibv_dereg_mr_relaxed(used), 0, "one of its registrations ends");
	is(ibv_close_device(context), EBUSY, "it is still in use");
	is(ibv_dereg_mr_relaxed(again), 0, "the other ends");
	is(ibv_close_device(context), 0, "now the device is closed, with its domain");
	is(pinned(), pins, "nothing is pinned");
	is(stats().idle, 0, "nothing is idle");
	is((long long)stats().live, (long long)before.live, "none of its regions is live");
	is(stats().ended_elsewhere, before.ended_elsewhere, "and none has ended elsewhere");
	control(&pair, "the same memory, in the device that is open", memory, PAGE);
	remap(memory, 16 * PAGE);
	anew(&pair, "that memory, mapped anew", memory, PAGE);
}

static void apart(void)
{
	struct ibv_context *contexts[2] = { open_device(), open_device() };
	struct ibv_pd *pds[2] = { ibv_alloc_pd(contexts[0]), ibv_alloc_pd(contexts[1]) };
	struct ibv_mr *mr;
	bool hit;

	must(pds[0] && pds[1]);
	mr = registered(pds[0], memory, &hit);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	mr = registered(pds[1], memory, &hit);
	ok(!hit && mr->context == contexts[1], "an idle region of another open of the device does not serve");
	must(ibv_dereg_mr_relaxed(mr) == 0);
	must(ibv_dealloc_pd(pds[0]) == 0);
	is(ibv_close_device(contexts[0]), 0, "one of the two is closed");
	mr = registered(pds[1], memory, &hit);
	ok(hit && kernel_has_key(contexts[1], mr->lkey), "the other keeps its own");
	must(ibv_dereg_mr_relaxed(mr) == 0 && ibv_dealloc_pd(pds[1]) == 0);
	is(ibv_close_device(contexts[1]), 0, "the other is closed");
	is(pinned(), pins, "nothing is pinned");
}

static void addresses_come_back(void)
{
	struct ibv_context *last_context = NULL;
	struct ibv_pd *last_pd = NULL;
	int contexts = 0, domains = 0, resurrected = 0, wrong = 0;

	for (int round = 0; round < 30; round++) {
		struct ibv_context *context = open_device();
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_mr *mr;
		bool hit;

		must(pd);
		contexts += context == last_context;
		domains += pd == last_pd;
		last_context = context;
		last_pd = pd;
		mr = registered(pd, memory, &hit);
		resurrected += hit;
		wrong += mr->context != context || mr->pd != pd || !kernel_has_key(context, mr->lkey);
		wrong += ibv_dereg_mr_relaxed(mr) != 0;
		wrong += round % 2 && ibv_dealloc_pd(pd) != 0;
		wrong += ibv_close_device(context) != 0 || stats().idle != 0 || pinned() != pins;
	}
	is(resurrected, 0, "a device that is opened finds no region of one that was closed");
	is(wrong, 0, "and each ends its own");
	ok(contexts + domains > 0, "of 30, %d contexts and %d domains were at the address of the last", contexts,
	   domains);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "MALLOC_PERTURB_", "165");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	as_root();
	relaxed_open(&pair);
	memory = pages(16);
	pins = pinned();
	idle_ones();
	apart();
	addresses_come_back();
	used_ones();
	return relaxed_close(&pair);
}
