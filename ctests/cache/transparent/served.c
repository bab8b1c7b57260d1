/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Plain calls under RDMAMR_CACHE: reach and addresses of a region, ends in each order, and
 * functions that the program gets from libibverbs by handle. A program sees the same with the cache
 * as without, unless a row says what differs; on "local" remotely accessible memory is as without
 * the cache, to the byte. Each row runs with the cache off, on "local" and on "all".
 */
#include <dlfcn.h>
#include "../../lib/init_attr.h"
#include "../../lib/pair_rows.h"

#define LW IBV_ACCESS_LOCAL_WRITE
#define RW IBV_ACCESS_REMOTE_WRITE

/* Of a row: the rights of its regions, LOCAL_AND_REMOTE or LW. */
static int access_of_row;

/* Whether a registration with this access may be a hit. */
static bool is_cached(int access)
{
	const char *cache = getenv("RDMAMR_CACHE");

	return !strcmp(cache, "all") || (!strcmp(cache, "local") && !(access & ~LW));
}

static struct ibv_mr *checked(struct ibv_mr *mr, struct ibv_pd *pd, char *at, size_t length)
{
	must(mr && mr->addr == at && mr->length == length && mr->pd == pd && mr->context == pd->context);
	return mr;
}

static struct ibv_mr *plain(struct ibv_pd *pd, char *at, size_t length, int access)
{
	return checked(register_region(pd, at, length, access), pd, at, length);
}

/* The same by the cache, if that serves such access. */
static struct ibv_mr *served(struct ibv_pd *pd, char *at, size_t length, int access)
{
	return checked(by_cache(pd, at, length, access), pd, at, length);
}

static bool data_lands(const struct ibv_mr *mr, char *at, size_t length, int access)
{
	return all_lands(&pair, mr, at, length, access & RW);
}

static void flush(void) { must(ibv_flush_relaxed_mr(pair.pd) == 0); }

/* Regions that the cache has kept, beyond those that are in use. */
static int kept(void) { return kernel_regions(pair.context) - far.others; }

/* Without the cache a remote peer reaches the registered bytes, with it their pages, and never more. */
static void reach(void)
{
	char *page = memory + PAGE;
	struct ibv_mr *mr = served(pair.pd, page + 1000, 100, LOCAL_AND_REMOTE);

	ok(lands_in(&pair, mr, page + 1000, 100), "a remote peer reaches the registered bytes");
	if (is_cached(LOCAL_AND_REMOTE))
		ok(lands_in(&pair, mr, page, PAGE), "and the rest of the page, as the documentation says");
	else
		ok(write_refused(&pair, page + 992, mr->rkey) && write_refused(&pair, page + 1100, mr->rkey),
		   "and not one byte before or after");
	ok(write_refused(&pair, page - 8, mr->rkey) && write_refused(&pair, page + PAGE, mr->rkey), "nor the pages around");
	is(ibv_dereg_mr(mr), 0, "deregistered");
}

struct ibv_mr *reg_mr_ex(struct ibv_pd *, struct init_attr *) __asm__("ibv_reg_mr_ex") __attribute__((weak));

/* The three calls that take an iova: one that equals the address is as good as none. */
static struct ibv_mr *at_iova(uint64_t iova, int access)
{
	struct init_attr attr = { .length = PAGE, .access = access, .comp_mask = MASK_ADDR | MASK_IOVA, .iova = iova,
				  .addr = memory };
	switch (row->value) {
	case 0: return ibv_reg_mr_iova(pair.pd, memory, PAGE, iova, access);
	case 1: return ibv_reg_mr_iova2(pair.pd, memory, PAGE, iova, (unsigned int)access);
	}
	must(reg_mr_ex);
	return reg_mr_ex(pair.pd, &attr);
}

static void iovas(void)
{
	const uint64_t other = 0x123456789000;
	struct rdmamr_stats since;
	struct ibv_mr *mr;

	for (int kind = 0; kind < 2; kind++) {
		flush();
		for (int round = 0; round < 2; round++) {
			do {
				since = stats();
				mr = at_iova((uintptr_t)memory, rights[kind]);
				must(mr);
			} while (stats().bypassed_first != since.bypassed_first && ibv_dereg_mr(mr) == 0);
			is(reused(since, stats()), round && is_cached(rights[kind]), "the address, %s, round %d", rights_names[kind], round);
			ok(data_lands(mr, memory, PAGE, rights[kind]), "data lands");
			must(ibv_dereg_mr(mr) == 0);
		}
	}
	/* Over an idle region of the same memory, whose iova is the address. */
	for (int round = 0; !pair.iwarp && round < 2; round++) {
		int idle = kept();

		since = stats();
		mr = at_iova(other, LOCAL_AND_REMOTE);
		must(mr);
		ok(made_anew(since, stats()), "another iova: registered");
		fill(far.out, PAGE);
		ok(pair_write(&pair, far.mr, far.out, PAGE, other, mr->rkey) == IBV_WC_SUCCESS &&
		   !memcmp(memory, far.out, PAGE), "data lands by it");
		is(ibv_dereg_mr(mr), 0, "deregistered");
		is(kept(), idle, "and gone");
	}
}

/* Ends in each order. */

static void twice(void)
{
	for (int order = 0; order < 2; order++) {
		struct ibv_mr *first = served(pair.pd, memory, PAGE, access_of_row);
		struct ibv_mr *mrs[2] = { first, plain(pair.pd, memory, PAGE, access_of_row) }, copy = *mrs[!order];

		ok(mrs[0] != mrs[1] && mrs[0]->lkey != mrs[1]->lkey && mrs[0]->handle != mrs[1]->handle, "two objects, two keys");
		is(ibv_dereg_mr(mrs[order]), 0, "the %s ends", order ? "second" : "first");
		is(ibv_dereg_mr(mrs[order]), EINVAL, "to end it once more is EINVAL");
		ok(data_lands(mrs[!order], memory, PAGE, access_of_row) && !memcmp(mrs[!order], &copy, sizeof(copy)),
		   "the other is unchanged");
		is(ibv_dereg_mr(mrs[!order]), 0, "it ends");
		is(ibv_dereg_mr(mrs[!order]), EINVAL, "to end it once more is EINVAL");
	}
}

static int (*handle_dealloc_pd)(struct ibv_pd *), (*handle_close_device)(struct ibv_context *);

/* Devices are closed with an idle region: in order or without the end of the domain, in turn; by handle or not. */
static void devices(void)
{
	int (*dealloc_pd)(struct ibv_pd *) = row->value ? handle_dealloc_pd : ibv_dealloc_pd;
	int (*close_device)(struct ibv_context *) = row->value ? handle_close_device : ibv_close_device;
	int idle = (int)stats().idle;

	for (int round = 0; round < 20; round++) {
		struct ibv_pd *pd = domain_of_device();
		struct ibv_context *context = pd->context;
		struct ibv_mr *mr = served(pd, memory, PAGE, access_of_row);

		ok(was_made() && kernel_has_key(context, mr->lkey), "the device has no region of the last one");
		is(ibv_dereg_mr(mr), 0, "the region is released");
		if (round % 2)
			is(dealloc_pd(pd), 0, "the domain is deallocated");
		is(close_device(context), 0, "the device is closed");
		ok(row->value || (int)stats().idle == idle, "its idle region has ended");
	}
}

/* A provider makes an object of its own for an imported domain or region of the kernel. */
static void *import(const void *object, size_t size)
{
	void *imported = calloc(1, size + 64);

	must(imported);
	return memcpy(imported, object, size);
}

static void imported(void)
{
	struct ibv_pd *pds[2] = { ibv_alloc_pd(pair.context), ibv_alloc_pd(pair.context) }, *pd;
	int live = (int)stats().live;
	struct ibv_mr *mr, *used, *other;

	must(pds[0] && pds[1]);
	pd = import(pds[0], sizeof(*pd));
	mr = served(pd, memory, PAGE, access_of_row);
	used = plain(pd, memory, PAGE, access_of_row);
	must(ibv_dereg_mr(mr) == 0);
	ibv_unimport_pd(pd);
	/* As if the next had got its address. */
	*pd = *pds[1];
	must(ibv_dereg_mr(used) == 0);
	mr = served(pd, memory, PAGE, access_of_row);
	ok(was_made(), "another domain at the address of an imported one has none of its regions");
	must(ibv_dereg_mr(mr) == 0);
	ibv_unimport_pd(pd);
	free(pd);
	ok(ibv_dealloc_pd(pds[0]) == 0 && ibv_dealloc_pd(pds[1]) == 0, "nothing of them is left");

	mr = served(pair.pd, memory, PAGE, access_of_row);
	other = import(mr, sizeof(*mr));
	ibv_unimport_mr(mr);
	is((int)stats().live - live, !is_cached(access_of_row), "an unimported region that was cached is not in use here");
	mr = served(pair.pd, memory, PAGE, access_of_row);
	ok(was_made(), "a region that an importer has left does not serve again");
	must(ibv_dereg_mr(mr) == 0);
	flush();
	is(ibv_dereg_mr(other), 0, "nor is it deregistered here");
	mr = served(pair.pd, memory, PAGE, access_of_row);
	must(ibv_dereg_mr(import(mr, sizeof(*mr))) == 0);
	ibv_unimport_mr(mr);
	mr = served(pair.pd, memory, PAGE, access_of_row);
	ok(was_made(), "a region that an importer has ended does not serve again");
	ok(data_lands(mr, memory, PAGE, access_of_row), "a later registration works");
	must(ibv_dereg_mr(mr) == 0);
	ok(comes((int)stats().live == live), "none is in use");
}

/*
 * A program that gets some of its functions from libibverbs by handle, as NCCL does, and has others by linking.
 * libibverbs' own ibv_reg_mr jumps through its PLT, and the provider calls ibv_cmd_dereg_mr through its own.
 * However a registration ends, only that one ends, and the next region from the cache is good.
 */

typedef int (*rereg_call)(struct ibv_mr *, int, struct ibv_pd *, void *, size_t, int);
enum { LINKED, LINKED_IOVA2, BY_DLSYM, BY_DLVSYM, FOREIGN, REGS, DEREGS = 3 };

static struct ibv_mr *linked_iova2(struct ibv_pd *pd, void *at, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, at, length, (uintptr_t)at, (unsigned int)access);
}

/* The provider's own call, which bypasses the library. */
static struct ibv_mr *(*handle_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static struct ibv_mr *foreign_reg(struct ibv_pd *pd, void *at, size_t length, int access)
{
	return handle_iova2(pd, at, length, (uintptr_t)at, (unsigned int)access);
}

static struct ibv_mr *(*regs[REGS])(struct ibv_pd *, void *, size_t, int) = { (ibv_reg_mr), linked_iova2, NULL, NULL, foreign_reg };
static int (*deregs[DEREGS])(struct ibv_mr *) = { ibv_dereg_mr };
static rereg_call reregs[DEREGS] = { ibv_rereg_mr };

static void take_by_handle(void)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);
	const struct { void *to; const char *name, *version; } calls[] = {
		{ &regs[BY_DLSYM], "ibv_reg_mr", NULL }, { &regs[BY_DLVSYM], "ibv_reg_mr", "IBVERBS_1.1" },
		{ &handle_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8" },
		{ &deregs[1], "ibv_dereg_mr", NULL }, { &deregs[2], "ibv_dereg_mr", "IBVERBS_1.1" },
		{ &reregs[1], "ibv_rereg_mr", NULL }, { &reregs[2], "ibv_rereg_mr", "IBVERBS_1.1" },
		{ &handle_dealloc_pd, "ibv_dealloc_pd", NULL }, { &handle_close_device, "ibv_close_device", NULL },
	};

	must(handle);
	for (size_t n = 0; n < sizeof(calls) / sizeof(calls[0]); n++) {
		void *call = calls[n].version ? dlvsym(handle, calls[n].name, calls[n].version) : dlsym(handle, calls[n].name);

		must(call);
		*(void **)calls[n].to = call;
	}
	/* The module for LD_AUDIT makes them the same. */
	must(getenv("LD_AUDIT") || deregs[1] != deregs[0]);
}

static bool works(const struct ibv_mr *mr, char *at, size_t length, int access)
{
	return mr && mr->addr == at && mr->length == length && mr->pd == pair.pd && mr->context == pair.context &&
	       data_lands(mr, at, length, access);
}

/*
 * Each call with each end: one buffer, registered and ended while another registration of it goes
 * on; and once more afterwards, by a region that the cache may have kept.
 */
static void combinations(void)
{
	int access = access_of_row;
	char *at = memory + 100;

	for (int n = 0; n < REGS * DEREGS * 4; n++) {
		int reg = n / 4 / DEREGS, end = n / 4 % DEREGS;
		struct ibv_mr *bystander = served(pair.pd, at, 2 * PAGE, access), *again;
		struct ibv_mr *mr = regs[reg](pair.pd, at, 2 * PAGE, access);
		struct rdmamr_stats since;

		must(mr);
		about("call %d, end %d", reg, end);
		ok(mr != bystander && mr->lkey != bystander->lkey, "an object and a key of its own");
		ok(works(mr, at, 2 * PAGE, access), "data lands");
		is(deregs[end](mr), 0, "ended");
		ok(works(bystander, at, 2 * PAGE, access), "data lands by the other registration");
		is(ibv_dereg_mr(bystander), 0, "which ends");
		since = stats();
		again = ibv_reg_mr(pair.pd, at, 2 * PAGE, access);
		is(reused(since, stats()), is_cached(access), "registered again, a hit or not");
		ok(works(again, at, 2 * PAGE, access), "data lands by that");
		is(deregs[(end + n) % DEREGS](again), 0, "which ends");
	}
}

/* The result of an ibv_rereg_mr, with its errno. */
static int change(rereg_call call, struct ibv_mr *mr, int what, char *to, int access)
{
	int code;

	errno = 0;
	code = call(mr, what, pair.pd, to, PAGE, access);
	return code ? code * 1000 - errno : 0;
}

/*
 * ibv_rereg_mr of one registration (row->value: what) must not affect others of the same memory. By
 * handle, libibverbs does not know that a region of the cache can be changed.
 */
static void changed(void)
{
	int what = (int)row->value, want;
	int access = what & IBV_REREG_MR_CHANGE_ACCESS ? LOCAL_AND_REMOTE : 0;
	char *to = what & IBV_REREG_MR_CHANGE_TRANSLATION ? memory + 4 * PAGE : memory;
	struct ibv_mr *reference = foreign_reg(pair.pd, memory, PAGE, LW);
	struct rdmamr_stats now;

	must(reference);
	want = change(reregs[2], reference, what, to, access);
	must(deregs[2](reference) == 0);
	for (int n = 0; n < REGS * DEREGS; n++) {
		int reg = n / DEREGS, end = n % DEREGS;
		struct ibv_mr *bystander = served(pair.pd, memory, PAGE, LW);
		struct ibv_mr *mr = regs[reg](pair.pd, memory, PAGE, LW), was;

		must(mr);
		was = *mr;
		about("call %d, end %d", reg, end);
		is(change(reregs[end], mr, what, to, access), want, "the result is libibverbs'");
		if (want)
			ok(!memcmp(mr, &was, sizeof(was)) && works(mr, memory, PAGE, LW),
			   "a refusal leaves it unchanged");
		else
			ok(works(mr, to, PAGE, access ? access : LW), "data lands");
		ok(works(bystander, memory, PAGE, LW) && (bystander->rkey == 0 || write_refused(&pair, memory, bystander->rkey)),
		   "the other registration is unchanged");
		is(deregs[end](mr), 0, "ended");
		is(deregs[(end + 1) % DEREGS](bystander), 0, "the other too");
	}
	about("%s", "");
	flush();
	now = stats();
	is((long)now.reg_kernel, (long)(now.dereg_kernel + now.ended_elsewhere + now.live + now.idle),
	   "each registration is counted as ended once");
}

#define IN(cache, words, act, ...) { "RDMAMR_CACHE=" cache ", " words, act, __VA_ARGS__, .flags = ROOT, .settings = "RDMAMR_CACHE=" cache }
#define EACH(words, act, ...) IN("off", words, act, __VA_ARGS__), IN("local", words, act, __VA_ARGS__), IN("all", words, act, __VA_ARGS__)
/* With remote rights and with local ones. */
#define BOTH(words, act, value) EACH(words ", remote rights", act, value, "remote"), EACH(words ", local rights", act, value, "local")
static const struct row rows[] = {
	EACH("reach of a region", reach, 0),
	EACH("an iova, ibv_reg_mr_iova", iovas, 0),
	EACH("an iova, ibv_reg_mr_iova2", iovas, 1),
	EACH("an iova, ibv_reg_mr_ex", iovas, 2),
	BOTH("registered twice", twice, 0),
	BOTH("devices that are closed", devices, 0),
	BOTH("imported regions", imported, 0),
	BOTH("by handle, each call with each end", combinations, 0),
	EACH("by handle, a change of access", changed, IBV_REREG_MR_CHANGE_ACCESS),
	EACH("by handle, a change of translation", changed, IBV_REREG_MR_CHANGE_TRANSLATION),
	EACH("by handle, a change by an unknown flag", changed, 1 << 6),
	EACH("by handle, devices that are closed", devices, 1, "local"),
};

static void around(void)
{
	access_of_row = row->of && !strcmp(row->of, "local") ? LW : LOCAL_AND_REMOTE;
	take_by_handle();
	on_pair();
}

RUN_ROWS("CHECK_CALLS=plain RDMAMR_CACHE_LINGER=" FOREVER, around)
