/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Ends in each order: registrations of the same memory, domains and devices with regions in use and
 * with idle ones, children of fork. A program sees the same with the cache as without.
 */
#include "../../lib/cache.h"
#include <malloc.h>
#include <sys/wait.h>

enum { MANY = 2000 };

static struct pair pair;
static char *memory; /* of 8 pages */

static struct ibv_mr *reg(struct ibv_pd *pd, char *at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, length, access);

	must(mr && mr->addr == at && mr->length == length && mr->pd == pd && mr->context == pd->context);
	return mr;
}

/* The same by the cache, if that serves such access; `before` has the statistics before it. */
static struct ibv_mr *reg_by_cache(struct ibv_pd *pd, char *at, size_t length, int access, struct rdmamr_stats *before)
{
	struct ibv_mr *mr = register_by_cache(pd, at, length, access, before);

	must(mr && mr->addr == at && mr->length == length && mr->pd == pd && mr->context == pd->context);
	return mr;
}

/* The same buffer, registered twice at once, ended in either order. */
static void twice(int kind)
{
	for (int order = 0; order < 2; order++) {
		struct rdmamr_stats before;
		struct ibv_mr *first = reg_by_cache(pair.pd, memory, PAGE, rights[kind], &before);
		struct ibv_mr *mrs[2] = { first, reg(pair.pd, memory, PAGE, rights[kind]) };
		struct ibv_mr copy = *mrs[!order];

		ok(mrs[0] != mrs[1] && mrs[0]->lkey != mrs[1]->lkey && mrs[0]->handle != mrs[1]->handle,
		   "twice, %s: two objects, two keys", rights_names[kind]);
		is(ibv_dereg_mr(mrs[order]), 0, "twice, %s: the %s ends", rights_names[kind], order ? "second" : "first");
		is(ibv_dereg_mr(mrs[order]), EINVAL, "twice, %s: to end it once more is EINVAL", rights_names[kind]);
		ok(all_lands(&pair, mrs[!order], memory, PAGE, !kind) && !memcmp(mrs[!order], &copy, sizeof(copy)),
		   "twice, %s: the other is unchanged", rights_names[kind]);
		is(ibv_dereg_mr(mrs[!order]), 0, "twice, %s: it ends", rights_names[kind]);
		is(ibv_dereg_mr(mrs[!order]), EINVAL, "twice, %s: to end it once more is EINVAL", rights_names[kind]);
	}
}

static void domains(int kind)
{
	struct ibv_pd *pd = ibv_alloc_pd(pair.context), *again;
	struct rdmamr_stats before;
	struct ibv_mr *one, *other;
	int regions;

	must(pd && ibv_flush_relaxed_mr(pair.pd) == 0);
	regions = kernel_regions(pair.context);
	one = reg_by_cache(pd, memory, PAGE, rights[kind], &before);
	other = reg(pd, memory, PAGE, rights[kind]);
	is(ibv_dealloc_pd(pd), EBUSY, "a domain with two regions, %s", rights_names[kind]);
	is(ibv_dereg_mr(one), 0, "one ends, %s", rights_names[kind]);
	is(ibv_dealloc_pd(pd), EBUSY, "a domain with one region, %s", rights_names[kind]);
	ok(kernel_has_key(pair.context, other->lkey), "which is unaffected, %s", rights_names[kind]);
	is(ibv_dereg_mr(other), 0, "it ends, %s", rights_names[kind]);
	/* The refused call has ended the one that was idle. */
	is(kernel_regions(pair.context), regions + is_cached(rights[kind]), "and is cached, if the cache is on, %s", rights_names[kind]);
	is(ibv_dealloc_pd(pd), 0, "a domain with none, %s", rights_names[kind]);
	is(kernel_regions(pair.context), regions, "ends with them, %s", rights_names[kind]);
	again = ibv_alloc_pd(pair.context);
	must(again);
	one = reg_by_cache(again, memory, PAGE, rights[kind], &before);
	ok(made_anew(before, stats()), "the next domain has none of its regions, %s", rights_names[kind]);
	must(ibv_dereg_mr(one) == 0 && ibv_dealloc_pd(again) == 0);
}

static void devices(int kind)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int wrong = 0, hits = 0, live = (int)stats().live, idle;
	struct rdmamr_stats before;

	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	idle = (int)stats().idle;
	for (int round = 0; round < 20; round++) {
		context = open_device();
		pd = ibv_alloc_pd(context);
		must(pd);
		mr = reg_by_cache(pd, memory, PAGE, rights[kind], &before);
		hits += !made_anew(before, stats());
		wrong += ibv_dereg_mr(mr) != 0;
		wrong += round % 2 && ibv_dealloc_pd(pd) != 0;
		wrong += ibv_close_device(context) != 0;
		wrong += (int)stats().idle != idle;
	}
	is(wrong, 0, "devices are closed with idle regions, with and without their domain, %s", rights_names[kind]);
	is(hits, 0, "and the next has none of them, %s", rights_names[kind]);

	context = open_device();
	pd = ibv_alloc_pd(context);
	must(pd);
	mr = reg_by_cache(pd, memory, PAGE, rights[kind], &before);
	is(ibv_close_device(context), 0, "a device is closed with a region in use, %s", rights_names[kind]);
	is((long long)stats().live, live, "which is not live any more, %s", rights_names[kind]);
	is((long long)stats().idle, idle, "nor idle, %s", rights_names[kind]);
	mr = reg_by_cache(pair.pd, memory, PAGE, rights[kind], &before);
	ok(all_lands(&pair, mr, memory, PAGE, !kind), "the same memory goes on in another, %s", rights_names[kind]);
	must(ibv_dereg_mr(mr) == 0);
}

/* A provider makes an object of its own for an imported domain or region of the kernel. */
static struct ibv_pd *import_pd(const struct ibv_pd *pd)
{
	struct ibv_pd *imported = malloc(sizeof(*imported));

	must(imported);
	*imported = *pd;
	return imported;
}

static struct ibv_mr *import_mr(const struct ibv_mr *mr)
{
	struct ibv_mr *imported = calloc(1, sizeof(*imported) + 64);

	must(imported);
	*imported = *mr;
	return imported;
}

static void imported(int kind)
{
	struct ibv_pd *pds[2] = { ibv_alloc_pd(pair.context), ibv_alloc_pd(pair.context) }, *pd;
	int live = (int)stats().live;
	struct rdmamr_stats before;
	struct ibv_mr *mr, *in_use, *other;

	must(pds[0] && pds[1]);
	pd = import_pd(pds[0]);
	mr = reg_by_cache(pd, memory, PAGE, rights[kind], &before);
	in_use = reg(pd, memory, PAGE, rights[kind]);
	must(ibv_dereg_mr(mr) == 0);
	ibv_unimport_pd(pd);
	/* As if the next had got its address. */
	*pd = *pds[1];
	must(ibv_dereg_mr(in_use) == 0);
	mr = reg_by_cache(pd, memory, PAGE, rights[kind], &before);
	ok(made_anew(before, stats()), "another domain at the address of an imported one has none of its regions, %s", rights_names[kind]);
	must(ibv_dereg_mr(mr) == 0);
	ibv_unimport_pd(pd);
	free(pd);
	is(ibv_dealloc_pd(pds[0]), 0, "nothing of it is left, %s", rights_names[kind]);
	is(ibv_dealloc_pd(pds[1]), 0, "nor of the other, %s", rights_names[kind]);

	mr = reg_by_cache(pair.pd, memory, PAGE, rights[kind], &before);
	other = import_mr(mr);
	ibv_unimport_mr(mr);
	is((int)stats().live - live, !is_cached(rights[kind]), "an unimported region that was cached is not in use here, %s", rights_names[kind]);
	mr = reg_by_cache(pair.pd, memory, PAGE, rights[kind], &before);
	ok(made_anew(before, stats()), "a region that an importer has left does not serve again, %s", rights_names[kind]);
	must(ibv_dereg_mr(mr) == 0 && ibv_flush_relaxed_mr(pair.pd) == 0);
	is(ibv_dereg_mr(other), 0, "nor is it deregistered here, %s", rights_names[kind]);
	mr = reg_by_cache(pair.pd, memory, PAGE, rights[kind], &before);
	must(ibv_dereg_mr(import_mr(mr)) == 0);
	ibv_unimport_mr(mr);
	mr = reg_by_cache(pair.pd, memory, PAGE, rights[kind], &before);
	ok(made_anew(before, stats()), "a region that an importer has ended does not serve again, %s", rights_names[kind]);
	ok(all_lands(&pair, mr, memory, PAGE, !kind), "a later registration works, %s", rights_names[kind]);
	must(ibv_dereg_mr(import_mr(mr)) == 0);
	/* Without the cache that fails, with ENOENT. */
	ibv_dereg_mr(mr);
	mr = reg_by_cache(pair.pd, memory, PAGE, rights[kind], &before);
	ok(made_anew(before, stats()) && all_lands(&pair, mr, memory, PAGE, !kind), "nor does one that was ended twice, %s", rights_names[kind]);
	must(ibv_dereg_mr(mr) == 0);
	ok(comes((int)stats().live == live), "none is in use, %s", rights_names[kind]);
}

/* Objects cost memory until they end, and all must end. */
static void many(int kind)
{
	static struct ibv_mr *mrs[MANY];
	struct mallinfo2 heap = { 0 };
	struct rdmamr_stats before;
	int wrong = 0, alike = 0, regions;

	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	regions = kernel_regions(pair.context);
	for (int round = 0; round < 3; round++) {
		for (int n = 0; n < MANY; n++) {
			/* The cache serves these if it served one before. */
			mrs[n] = n ? reg(pair.pd, memory + n % PAGE, 8, rights[kind]) :
				     reg_by_cache(pair.pd, memory, 8, rights[kind], &before);
			alike += n && mrs[n] == mrs[n - 1];
		}
		wrong += kernel_regions(pair.context) != regions + MANY;
		/* In another order than that of their registration. */
		for (int n = 0; n < MANY; n++)
			wrong += ibv_dereg_mr(mrs[(n * 7) % MANY]) != 0;
		if (!round)
			heap = mallinfo2();
	}
	is(alike, 0, "%d at once, three times, %s: each has its object", MANY, rights_names[kind]);
	is(wrong, 0, "%d at once, three times, %s: each ends", MANY, rights_names[kind]);
	ok(mallinfo2().uordblks <= heap.uordblks + 65536, "and they leak no memory, %s (%zd bytes)", rights_names[kind],
	   (ssize_t)(mallinfo2().uordblks - heap.uordblks));
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	is(kernel_regions(pair.context), regions, "the kernel has none, %s", rights_names[kind]);
}

static int status_of(pid_t pid)
{
	int status;

	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static struct ibv_mr *in_use, *second;

static int exits(void)
{
	return 0;
}

static int registers(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	int wrong = 0;

	must(pd);
	for (int round = 0; round < 3; round++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

		wrong |= !mr || ibv_dereg_mr(mr) != 0;
	}
	return wrong | (ibv_dealloc_pd(pd) != 0 || ibv_close_device(context) != 0) << 1;
}

/* A child has the parent's file, and can end its regions, but not those of the cache. */
static int ends_one(void)
{
	ibv_dereg_mr(second);
	return 0;
}

static void children(int kind)
{
	static const struct {
		const char *name;
		int (*act)(void);
	} cases[] = {
		{ "exits", exits },
		{ "registers on a device of its own", registers },
		{ "deregisters one of two", ends_one },
	};

	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
		struct rdmamr_stats before;
		struct ibv_mr *idle;
		uint64_t counted;
		pid_t pid;

		in_use = reg_by_cache(pair.pd, memory, PAGE, rights[kind], &before);
		second = reg(pair.pd, memory, PAGE, rights[kind]);
		idle = reg_by_cache(pair.pd, memory + 2 * PAGE, PAGE, rights[kind], &before);
		must(ibv_dereg_mr(idle) == 0);
		counted = stats().idle;
		fflush(stdout);
		pid = fork();
		must(pid >= 0);
		if (!pid) {
			alarm(DEADLOCK);
			exit(cases[n].act());
		}
		is(status_of(pid), 0, "a child %s, %s", cases[n].name, rights_names[kind]);
		ok(all_lands(&pair, in_use, memory, PAGE, !kind), "the parent's region works after that, %s", rights_names[kind]);
		is((long long)stats().idle, (long long)counted, "as many are idle, %s", rights_names[kind]);
		ok(lands_with(&pair, memory + 2 * PAGE, PAGE, rights[kind]), "and serve, %s", rights_names[kind]);
		is(ibv_dereg_mr(in_use), 0, "the parent deregisters, %s", rights_names[kind]);
		if (cases[n].act == ends_one && !is_cached(rights[kind]))
			is(ibv_dereg_mr(second), ENOENT, "and the region that the child has ended is gone, %s", rights_names[kind]);
		else
			is(ibv_dereg_mr(second), 0, "both, %s", rights_names[kind]);
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	cache_open(argv, &pair);
	memory = pages(8);
	for (int kind = 0; kind < 2; kind++) {
		as_case(twice(kind), "RDMAMR_CACHE=%s, %s: registered twice", cache_names[cache()], rights_names[kind]);
		as_case(domains(kind), "RDMAMR_CACHE=%s, %s: domains that end", cache_names[cache()], rights_names[kind]);
		as_case(devices(kind), "RDMAMR_CACHE=%s, %s: devices that are closed", cache_names[cache()], rights_names[kind]);
		as_case(imported(kind), "RDMAMR_CACHE=%s, %s: imported regions", cache_names[cache()], rights_names[kind]);
		as_case(many(kind), "RDMAMR_CACHE=%s, %s: many regions", cache_names[cache()], rights_names[kind]);
		as_case(children(kind), "RDMAMR_CACHE=%s, %s: children", cache_names[cache()], rights_names[kind]);
	}
	must(munmap(memory, 8 * PAGE) == 0);
	return cache_close(argv, &pair);
}
