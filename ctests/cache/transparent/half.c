/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that gets some of its functions from libibverbs by handle, and has others by linking,
 * with the cache on. However a registration ends, only that one ends, and the next region from the
 * cache is good. Tests every combination, mixed in two threads, with data that must land.
 * (handles.c gets all functions by handle.)
 */
#include "../../lib/cache.h"
#include <dlfcn.h>

typedef struct ibv_mr *(*reg_call)(struct ibv_pd *, void *, size_t, int);
typedef struct ibv_mr *(*iova2_call)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
typedef int (*dereg_call)(struct ibv_mr *);
typedef int (*rereg_call)(struct ibv_mr *, int, struct ibv_pd *, void *, size_t, int);

static struct pair pair;

static struct ibv_mr *linked_reg(struct ibv_pd *pd, void *at, size_t length, int access)
{
	return ibv_reg_mr(pd, at, length, access);
}

static struct ibv_mr *linked_iova2(struct ibv_pd *pd, void *at, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, at, length, (uintptr_t)at, (unsigned int)access);
}

static iova2_call handle_iova2;
static int (*handle_dealloc_pd)(struct ibv_pd *);
static int (*handle_close_device)(struct ibv_context *);

/* The provider's own call, which bypasses the library. */
static struct ibv_mr *foreign_reg(struct ibv_pd *pd, void *at, size_t length, int access)
{
	return handle_iova2(pd, at, length, (uintptr_t)at, (unsigned int)access);
}

enum { LINKED, LINKED_IOVA2, BY_DLSYM, BY_DLVSYM, FOREIGN, REGS, DEREGS = 3 };

static struct {
	const char *name;
	reg_call call;
} regs[REGS] = {
	{ "ibv_reg_mr", linked_reg },
	{ "ibv_reg_mr_iova2", linked_iova2 },
	{ "ibv_reg_mr by dlsym", NULL },
	{ "ibv_reg_mr by dlvsym", NULL },
	{ "ibv_reg_mr_iova2 by dlvsym", foreign_reg },
};

static struct {
	const char *name;
	dereg_call dereg;
	rereg_call rereg;
} ends[DEREGS] = {
	{ "linked", ibv_dereg_mr, ibv_rereg_mr },
	{ "by dlsym", NULL, NULL },
	{ "by dlvsym", NULL, NULL },
};

static void take_by_handle(void)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);

	must(handle);
	*(void **)&regs[BY_DLSYM].call = dlsym(handle, "ibv_reg_mr");
	*(void **)&regs[BY_DLVSYM].call = dlvsym(handle, "ibv_reg_mr", "IBVERBS_1.1");
	*(void **)&handle_iova2 = dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	*(void **)&ends[1].dereg = dlsym(handle, "ibv_dereg_mr");
	*(void **)&ends[2].dereg = dlvsym(handle, "ibv_dereg_mr", "IBVERBS_1.1");
	*(void **)&ends[1].rereg = dlsym(handle, "ibv_rereg_mr");
	*(void **)&ends[2].rereg = dlvsym(handle, "ibv_rereg_mr", "IBVERBS_1.1");
	*(void **)&handle_dealloc_pd = dlsym(handle, "ibv_dealloc_pd");
	*(void **)&handle_close_device = dlsym(handle, "ibv_close_device");
	must(regs[BY_DLSYM].call && regs[BY_DLVSYM].call && handle_iova2 && ends[1].dereg && ends[2].dereg &&
	     ends[1].rereg && ends[2].rereg && handle_dealloc_pd && handle_close_device);
	must(ends[1].dereg != ends[0].dereg);
}

static bool works(const struct ibv_mr *mr, char *at, size_t length, int access)
{
	return mr && mr->addr == at && mr->length == length && mr->pd == pair.pd && mr->context == pair.context &&
	       all_lands(&pair, mr, at, length, access & IBV_ACCESS_REMOTE_WRITE);
}

/*
 * One buffer, registered in the one way and ended in the other, while another registration of it
 * goes on; and once more afterwards, by a region that the cache may have kept.
 */
static void combination(int reg, int end, char *at, size_t length, int access)
{
	const char *rights = access & IBV_ACCESS_REMOTE_WRITE ? "remote" : "local";
	int refused = 0, wrong = 0, others = 0, missed = 0, shared = 0;

	for (int round = 0; round < 4; round++) {
		struct rdmamr_stats before;
		struct ibv_mr *bystander = register_by_cache(pair.pd, at, length, access, &before), *mr, *again;

		must(bystander);
		mr = regs[reg].call(pair.pd, at, length, access);
		must(mr);
		shared += mr == bystander || mr->lkey == bystander->lkey;
		wrong += !works(mr, at, length, access);
		refused += ends[end].dereg(mr) != 0;
		others += !works(bystander, at, length, access);
		refused += ibv_dereg_mr(bystander) != 0;
		before = stats();
		again = ibv_reg_mr(pair.pd, at, length, access);
		missed += reused(before, stats()) != is_cached(access);
		others += !works(again, at, length, access);
		refused += ends[(end + round) % DEREGS].dereg(again) != 0;
	}
	ok(!(refused + wrong + others + missed + shared),
	   "%s, ended %s, %s rights: each works, and others are unaffected", regs[reg].name, ends[end].name, rights);
	if (refused + wrong + others + missed + shared)
		printf("# refused %d, no data by it %d, nor by others %d, wrongly not reused %d, with a key of another %d\n",
		       refused, wrong, others, missed, shared);
}

static void combinations(char *memory)
{
	for (int kind = 0; kind < 2; kind++)
		for (int reg = 0; reg < REGS; reg++)
			for (int end = 0; end < DEREGS; end++)
				combination(reg, end, memory + 100, 2 * PAGE, rights[kind]);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	is(kernel_regions(pair.context), far.others, "every combination: the kernel has none of these regions");
}

/* The outcome of an ibv_rereg_mr. */
struct outcome {
	int code, err;
	bool moved, same_keys;
};

static struct outcome change(rereg_call call, struct ibv_mr *mr, int what, char *to, size_t length, int access)
{
	struct ibv_mr was = *mr;
	struct outcome outcome;

	errno = 0;
	outcome.code = call(mr, what, pair.pd, to, length, access);
	outcome.err = outcome.code ? errno : 0;
	outcome.moved = mr->addr == to;
	outcome.same_keys = mr->lkey == was.lkey && mr->rkey == was.rkey && mr->handle == was.handle;
	return outcome;
}

/*
 * A change of one registration must not affect others of the same memory. By handle, libibverbs
 * does not know that a region of the cache can be changed.
 */
static void changed(char *memory, int what, const char *name)
{
	char *to = what & IBV_REREG_MR_CHANGE_TRANSLATION ? memory + 4 * PAGE : memory;
	int access = what & IBV_REREG_MR_CHANGE_ACCESS ? LOCAL_AND_REMOTE : 0;
	struct ibv_mr *reference = foreign_reg(pair.pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	struct rdmamr_stats now;
	struct outcome want;

	must(reference);
	want = change(ends[2].rereg, reference, what, to, PAGE, access);
	must(ends[2].dereg(reference) == 0);
	printf("# ibv_rereg_mr, %s: %d %s\n", name, want.code, want.code ? strerrorname_np(want.err) : "");
	for (int reg = 0; reg < REGS; reg++)
		for (int end = 0; end < DEREGS; end++) {
			struct rdmamr_stats before;
			struct ibv_mr *bystander = register_by_cache(pair.pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE, &before);
			struct ibv_mr *mr = regs[reg].call(pair.pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
			struct outcome got;

			must(bystander && mr);
			got = change(ends[end].rereg, mr, what, to, PAGE, access);
			if (got.code != want.code || got.err != want.err || got.moved != want.moved)
				printf("# it is %d %s\n", got.code, got.code ? strerrorname_np(got.err) : "");
			ok(got.code == want.code && got.err == want.err && got.moved == want.moved,
			   "%s of %s, %s: the outcome is libibverbs'", name, regs[reg].name, ends[end].name);
			if (got.code)
				ok(got.same_keys && works(mr, mr->addr, mr->length, IBV_ACCESS_LOCAL_WRITE),
				   "%s of %s, %s: a refusal leaves it unchanged, with its keys", name, regs[reg].name,
				   ends[end].name);
			else
				ok(works(mr, to, PAGE, access ? access : IBV_ACCESS_LOCAL_WRITE),
				   "%s of %s, %s: data lands", name, regs[reg].name, ends[end].name);
			ok(works(bystander, memory, PAGE, IBV_ACCESS_LOCAL_WRITE) &&
			   (bystander->rkey == 0 || write_refused(&pair, memory, bystander->rkey)),
			   "%s of %s, %s: the other registration is unchanged", name, regs[reg].name, ends[end].name);
			is(ends[end].dereg(mr), 0, "%s of %s, %s: ended", name, regs[reg].name, ends[end].name);
			is(ends[(end + 1) % DEREGS].dereg(bystander), 0, "%s of %s, %s: the other too", name, regs[reg].name,
			   ends[end].name);
		}
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	is(kernel_regions(pair.context), far.others, "%s: the kernel has none of these regions", name);
	now = stats();
	is((long)now.reg_kernel, (long)(now.dereg_kernel + now.ended_elsewhere + now.live + now.idle),
	   "%s: each registration is counted as ended once", name);
}

enum { THREADS = 2, SLOTS = 6, STEPS = 400, SLOT_PAGES = 4 };

struct worker {
	pthread_t thread;
	unsigned int seed;
	char *own;
	struct ibv_mr *mrs[SLOTS];
	int access[SLOTS];
	long registered, checked, remapped, wrong_data, wrong_calls;
};

static pthread_mutex_t traffic = PTHREAD_MUTEX_INITIALIZER;
static char *common;

static unsigned int chance(struct worker *worker, unsigned int of)
{
	return (unsigned int)rand_r(&worker->seed) % of;
}

static void check(struct worker *worker, int slot)
{
	struct ibv_mr *mr = worker->mrs[slot];

	pthread_mutex_lock(&traffic);
	worker->wrong_data += !works(mr, mr->addr, mr->length, worker->access[slot]);
	pthread_mutex_unlock(&traffic);
	worker->checked++;
}

static void end(struct worker *worker, int slot)
{
	int err = ends[chance(worker, DEREGS)].dereg(worker->mrs[slot]);

	if (err)
		printf("# ibv_dereg_mr: %s\n", strerror(err));
	worker->wrong_calls += err != 0;
	worker->mrs[slot] = NULL;
}

/* In one call: between an unmap and a map another thread's malloc could take the place. */
static void replace(char *memory, size_t length, bool past_the_library)
{
	int access = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE;
	void *at = past_the_library ? (void *)syscall(SYS_mmap, memory, length, access, flags, -1, 0) :
				      mmap(memory, length, access, flags, -1, 0);

	must(at == memory);
}

/* New pages for the worker's own memory, when none of it is registered. */
static void remap_own(struct worker *worker)
{
	for (int slot = 0; slot < SLOTS; slot++)
		if (worker->mrs[slot] && (char *)worker->mrs[slot]->addr >= worker->own &&
		    (char *)worker->mrs[slot]->addr < worker->own + SLOT_PAGES * PAGE)
			end(worker, slot);
	replace(worker->own, SLOT_PAGES * PAGE, chance(worker, 2));
	worker->remapped++;
}

static void *work(void *argument)
{
	struct worker *worker = argument;

	for (int step = 0; step < STEPS; step++) {
		int slot = (int)chance(worker, SLOTS), reg = (int)chance(worker, REGS);
		/* Few addresses, so that regions are shared and reused. */
		size_t from = chance(worker, 2) * PAGE + chance(worker, 2) * 64;
		char *at = (chance(worker, 2) ? common : worker->own) + from;

		if (!chance(worker, 12)) {
			remap_own(worker);
			continue;
		}
		if (worker->mrs[slot]) {
			check(worker, slot);
			end(worker, slot);
			continue;
		}
		worker->access[slot] = rights[chance(worker, 2)];
		worker->mrs[slot] = regs[reg].call(pair.pd, at, PAGE * (1 + chance(worker, 2)), worker->access[slot]);
		worker->registered++;
		if (!worker->mrs[slot]) {
			printf("# %s: %s\n", regs[reg].name, strerror(errno));
			worker->wrong_calls++;
		} else if (chance(worker, 2)) {
			check(worker, slot);
		}
	}
	for (int slot = 0; slot < SLOTS; slot++)
		if (worker->mrs[slot]) {
			check(worker, slot);
			end(worker, slot);
		}
	return NULL;
}

static void mixed(void)
{
	struct rdmamr_stats before = stats();
	struct worker workers[THREADS] = { 0 };
	long registered = 0, wrong_data = 0, wrong_calls = 0, remapped = 0;

	common = pages(SLOT_PAGES);
	for (int n = 0; n < THREADS; n++) {
		workers[n].own = pages(SLOT_PAGES);
		workers[n].seed = 17 + (unsigned int)n;
		must(pthread_create(&workers[n].thread, NULL, work, &workers[n]) == 0);
	}
	for (int n = 0; n < THREADS; n++) {
		must(pthread_join(workers[n].thread, NULL) == 0);
		registered += workers[n].registered;
		wrong_data += workers[n].wrong_data;
		wrong_calls += workers[n].wrong_calls;
		remapped += workers[n].remapped;
		must(munmap(workers[n].own, SLOT_PAGES * PAGE) == 0);
	}
	show(before, stats());
	is(wrong_calls, 0, "%d threads, %ld registrations, in every way: each call has succeeded", THREADS, registered);
	is(wrong_data, 0, "%d threads, %ld times new pages: data was always in the right place", THREADS, remapped);
	ok((stats().hits > before.hits) == (cache() != OFF), "regions were reused if the cache is on (%lld times)",
	   (long long)(stats().hits - before.hits));
	must(munmap(common, SLOT_PAGES * PAGE) == 0);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	is(kernel_regions(pair.context), far.others, "the kernel has none of their regions");
}

/* The domain and the device of idle regions may end by handle as well. */
static void owners_by_handle(char *memory)
{
	struct ibv_context *context, *closed = NULL;
	struct rdmamr_stats before;
	struct ibv_mr *mr;
	struct ibv_pd *pd;
	int wrong = 0, dead = 0, returned = 0;

	pd = ibv_alloc_pd(pair.context);
	must(pd);
	mr = register_by_cache(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE, &before);
	must(mr && ibv_dereg_mr(mr) == 0);
	is(handle_dealloc_pd(pd), 0, "a domain without regions in use is deallocated by handle");

	for (int round = 0; round < 20; round++) {
		context = open_device();
		pd = ibv_alloc_pd(context);
		must(pd);
		returned += context == closed;
		closed = context;
		mr = register_by_cache(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE, &before);
		must(mr);
		dead += stats().hits != before.hits || !kernel_has_key(context, mr->lkey);
		wrong += ibv_dereg_mr(mr) != 0;
		/*
		 * In turn, so that the next device finds either one that was closed in order, or one that
		 * was just closed.
		 */
		if (round % 2)
			wrong += handle_dealloc_pd(pd) != 0;
		wrong += handle_close_device(context) != 0;
	}
	is(dead, 0, "a device is closed by handle: the next has none of its regions (%d of 20 were at its address)", returned);
	is(wrong, 0, "and each call has succeeded");
}

int main(int argc, char **argv)
{
	char *memory;

	(void)argc;
	cache_open(argv, &pair);
	take_by_handle();
	memory = pages(8);
	as_case(combinations(memory), "RDMAMR_CACHE=%s, each call with each end", cache_names[cache()]);
	as_case(changed(memory, IBV_REREG_MR_CHANGE_ACCESS, "a change of access"), "RDMAMR_CACHE=%s, %s", cache_names[cache()], "a change of access");
	as_case(changed(memory, IBV_REREG_MR_CHANGE_TRANSLATION, "a change of translation"), "RDMAMR_CACHE=%s, %s", cache_names[cache()], "a change of translation");
	as_case(changed(memory, 1 << 6, "a change by an unknown flag"), "RDMAMR_CACHE=%s, %s", cache_names[cache()], "a change by an unknown flag");
	as_case(mixed(), "RDMAMR_CACHE=%s, mixed in two threads", cache_names[cache()]);
	as_case(owners_by_handle(memory), "RDMAMR_CACHE=%s, owners that end by handle", cache_names[cache()]);
	must(munmap(memory, 8 * PAGE) == 0);
	return cache_close(argv, &pair);
}
