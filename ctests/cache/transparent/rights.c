/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The rights that the cache grants. On "local" remotely accessible memory is as without the cache:
 * a region of its own for each registration, to the byte, which ends with its deregistration. On
 * "all" such a region serves again for the same pages and the same access, its rkey grants access
 * to the whole of its pages, and stays valid until the region really ends. Registrations that the
 * cache cannot keep are never shared.
 */
#include "../../lib/cache.h"

#define LW IBV_ACCESS_LOCAL_WRITE
#define RW IBV_ACCESS_REMOTE_WRITE
#define RR IBV_ACCESS_REMOTE_READ
#define RA IBV_ACCESS_REMOTE_ATOMIC

static struct pair pair;
static char *memory; /* of 16 pages */

static const struct {
	const char *name;
	int access;
} remote[] = {
	{ "remote read", RR },
	{ "remote write", LW | RW },
	{ "remote write and read", LW | RW | RR },
	{ "remote atomic", LW | RA },
	{ "all remote rights", LW | RW | RR | RA },
};
enum { REMOTE = sizeof(remote) / sizeof(remote[0]) };

/* One registration and its end. Returns whether the cache served it. */
static bool served(char *at, size_t length, int access, uint32_t *rkey)
{
	struct rdmamr_stats before, after;
	struct ibv_mr *mr = register_by_cache(pair.pd, at, length, access, &before);

	after = stats();
	must(mr);
	must(mr->addr == at && mr->length == length && mr->pd == pair.pd && mr->context == pair.context);
	must(reused(before, after) || made_anew(before, after));
	if (rkey)
		*rkey = mr->rkey;
	must(ibv_dereg_mr(mr) == 0);
	return reused(before, after);
}

/* Regions that this setting has kept, beyond those that are in use. */
static int kept(void)
{
	return kernel_regions(pair.context) - far.others;
}

static void local_ones(void)
{
	static const int access[] = { LW, 0 };

	for (int n = 0; n < 2; n++) {
		const char *name = access[n] ? "local write" : "local read";
		bool on = cache() != OFF;
		struct ibv_mr *whole, *part;
		struct rdmamr_stats before;

		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		ok(!served(memory, 4 * PAGE, access[n], NULL), "%s: the first is registered", name);
		is(kept(), on, "%s: its region is %s", name, on ? "kept" : "gone");
		is(served(memory, 4 * PAGE, access[n], NULL), on, "%s: the second finds it, if there is one", name);
		is(served(memory + PAGE + 100, 50, access[n], NULL), on, "%s: so does a part", name);
		is(served(memory, 4 * PAGE, 0, NULL), on, "%s: and one that only reads", name);
		ok(!served(memory, 5 * PAGE, access[n], NULL), "%s: a longer range is registered", name);

		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		whole = register_by_cache(pair.pd, memory, 4 * PAGE, LW, &before);
		part = register_by_cache(pair.pd, memory + 2 * PAGE, 100, access[n], &before);
		must(whole && part);
		ok(made_anew(before, stats()) && whole->lkey != part->lkey, "%s: a part of a region in use has a key of its own",
		   name);
		ok(whole != part && part->addr == memory + 2 * PAGE && part->length == 100, "%s: and an object", name);
		ok(!part->rkey || write_refused(&pair, memory + 2 * PAGE, part->rkey), "%s: which is no rkey", name);
		ok(!access[n] || lands_by_lkey(&pair, part, memory + 2 * PAGE, 100), "%s: data lands by the part", name);
		is(ibv_dereg_mr(whole), 0, "%s: the whole is deregistered", name);
		ok(!access[n] || lands_by_lkey(&pair, part, memory + 2 * PAGE, 100), "%s: data lands by the part still", name);
		is(ibv_dereg_mr(part), 0, "%s: the part too", name);
	}
}

static void remote_ones(void)
{
	bool on = cache() == ALL;

	for (int n = 0; n < REMOTE; n++) {
		const char *name = remote[n].name;
		uint32_t first, second;

		if (pair.iwarp && remote[n].access & RA) {
			skip(name, "iWARP has no atomic operations");
			continue;
		}
		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		ok(!served(memory, 2 * PAGE, remote[n].access, &first), "%s: the first is registered", name);
		is(kept(), on, "%s: its region is %s", name, on ? "kept" : "gone");
		is(served(memory, 2 * PAGE, remote[n].access, &second), on, "%s: the second is %s", name,
		   on ? "served by it" : "registered too");
		is(first == second, on, "%s: by %s key", name, on ? "the same" : "another");
		is(served(memory + 10, 2 * PAGE - 20, remote[n].access, NULL), on, "%s: other bytes of the same pages", name);
		ok(!served(memory, PAGE, remote[n].access, NULL), "%s: a part is registered", name);
		ok(!served(memory, 3 * PAGE, remote[n].access, NULL), "%s: so is a longer range", name);
		ok(!served(memory, 2 * PAGE, LW, NULL), "%s: so are local rights", name);
		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		must(!served(memory, 2 * PAGE, remote[n].access, NULL));
		for (int m = 0; m < REMOTE; m++)
			if (m != n && !(pair.iwarp && remote[m].access & RA)) {
				ok(!served(memory, 2 * PAGE, remote[m].access, NULL), "%s: so is %s", name, remote[m].name);
				must(ibv_flush_relaxed_mr(pair.pd) == 0);
				must(!served(memory, 2 * PAGE, remote[n].access, NULL));
			}
	}
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	served(memory, 2 * PAGE, LW, NULL);
	ok(!served(memory, 2 * PAGE, LW | RW | RR, NULL), "local rights do not serve for remote ones");
}

/*
 * Without the cache a remote peer reaches the registered bytes, with it their pages, and never
 * more.
 */
static void reach(void)
{
	struct rdmamr_stats before;
	struct ibv_mr *mr = register_by_cache(pair.pd, memory + PAGE + 1000, 100, LOCAL_AND_REMOTE, &before);
	bool pages_of_it = cache() == ALL;

	must(mr);
	ok(lands_in(&pair, mr, memory + PAGE + 1000, 100), "a remote peer reaches the registered bytes");
	if (pages_of_it)
		ok(lands_in(&pair, mr, memory + PAGE, PAGE), "and the rest of the page, as the documentation says");
	else
		ok(write_refused(&pair, memory + PAGE + 992, mr->rkey) && write_refused(&pair, memory + PAGE + 1100, mr->rkey),
		   "and not one byte before or after");
	ok(write_refused(&pair, memory + PAGE - 8, mr->rkey) && write_refused(&pair, memory + 2 * PAGE, mr->rkey),
	   "nor the pages around");
	is(ibv_dereg_mr(mr), 0, "deregistered");
}

/* The key of a registration that has ended. */
static void old_keys(void)
{
	struct rdmamr_stats before;
	struct ibv_mr *mr = register_by_cache(pair.pd, memory, PAGE, LOCAL_AND_REMOTE, &before), *again;
	uint32_t key, first;

	must(mr);
	key = first = mr->rkey;
	is(ibv_dereg_mr(mr), 0, "a registration ends");
	if (cache() == ALL) {
		fill(far.out, 8);
		ok(pair_write(&pair, far.mr, far.out, 8, (uintptr_t)memory, key) == IBV_WC_SUCCESS &&
		   !memcmp(memory, far.out, 8), "its key writes until a flush, as the documentation says");
		must(ibv_flush_relaxed_mr(pair.pd) == 0);
	}
	ok(write_refused(&pair, memory, key), "%s: its key is refused", cache() == ALL ? "flushed" : "at once");
	again = register_by_cache(pair.pd, memory, PAGE, LOCAL_AND_REMOTE, &before);
	must(again);
	ok(again->rkey != first && write_refused(&pair, memory, first), "registered again: the old key is refused still");
	key = again->rkey;
	ok(lands_in(&pair, again, memory, PAGE), "registered again: the new one is good");
	is(ibv_dereg_mr(again), 0, "that ends too");
	remap(memory, PAGE);
	ok(comes(!kernel_has_key(pair.context, key)), "its memory is replaced: the region is gone without a flush");
	ok(write_refused(&pair, memory, key), "and its key refused");
}

static void never_kept(const char *name, int access)
{
	struct ibv_mr *mr;

	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	for (int round = 0; round < 2; round++) {
		struct rdmamr_stats before = stats();

		errno = 0;
		mr = ibv_reg_mr(pair.pd, memory, PAGE, access);
		if (!mr) {
			skip_errno(name, "the device or its kernel refuses the access");
			return;
		}
		ok(made_anew(before, stats()), "%s: registered%s", name, round ? " again" : "");
		is(ibv_dereg_mr(mr), 0, "%s: deregistered%s", name, round ? " again" : "");
		is(kept(), 0, "%s: and gone%s", name, round ? " again" : "");
	}
}

/* As rdma-core 59 defines it; older headers lack it. */
struct init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};
enum { MASK_IOVA = 1, MASK_ADDR = 2 };
struct ibv_mr *reg_mr_ex(struct ibv_pd *, struct init_attr *) __asm__("ibv_reg_mr_ex") __attribute__((weak));

/* The three calls that take an iova: one that equals the address is as good as none. */
static struct ibv_mr *at_iova(int call, uint64_t iova, int access)
{
	struct init_attr attr = { .length = PAGE, .access = access, .comp_mask = MASK_ADDR | MASK_IOVA, .iova = iova,
				  .addr = memory };
	switch (call) {
	case 0: return ibv_reg_mr_iova(pair.pd, memory, PAGE, iova, access);
	case 1: return ibv_reg_mr_iova2(pair.pd, memory, PAGE, iova, (unsigned int)access);
	}
	must(reg_mr_ex);
	return reg_mr_ex(pair.pd, &attr);
}

/* A call with the address as the iova, by the cache. */
static struct ibv_mr *at_address(int call, int access, struct rdmamr_stats *before)
{
	struct ibv_mr *mr;

	do {
		*before = stats();
		mr = at_iova(call, (uintptr_t)memory, access);
		must(mr);
	} while (stats().bypassed_first != before->bypassed_first && ibv_dereg_mr(mr) == 0);
	return mr;
}

static void iovas(void)
{
	static const char *const calls[] = { "ibv_reg_mr_iova", "ibv_reg_mr_iova2", "ibv_reg_mr_ex" };
	const uint64_t other = 0x123456789000;

	for (int call = 0; call < 3; call++) {
		for (int kind = 0; kind < 2; kind++) {
			struct rdmamr_stats before;
			struct ibv_mr *mr;

			must(ibv_flush_relaxed_mr(pair.pd) == 0);
			for (int round = 0; round < 2; round++) {
				mr = at_address(call, rights[kind], &before);
				is(reused(before, stats()), round && is_cached(rights[kind]), "%s of the address, %s%s",
				   calls[call], rights_names[kind], round ? ", again" : "");
				ok(all_lands(&pair, mr, memory, PAGE, !kind), "%s of the address, %s: data lands", calls[call],
				   rights_names[kind]);
				must(ibv_dereg_mr(mr) == 0);
			}
		}
		if (pair.iwarp)
			continue;
		/* Over an idle region of the same memory, whose iova is the address. */
		for (int round = 0; round < 2; round++) {
			struct rdmamr_stats before = stats();
			struct ibv_mr *mr = at_iova(call, other, LOCAL_AND_REMOTE);
			int idle = kept();

			must(mr);
			ok(made_anew(before, stats()), "%s of another iova: registered", calls[call]);
			fill(far.out, PAGE);
			ok(pair_write(&pair, far.mr, far.out, PAGE, other, mr->rkey) == IBV_WC_SUCCESS &&
			   !memcmp(memory, far.out, PAGE), "%s of another iova: data lands by it", calls[call]);
			is(ibv_dereg_mr(mr), 0, "%s of another iova: deregistered", calls[call]);
			is(kept(), idle - 1, "%s of another iova: and gone", calls[call]);
		}
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	cache_open(argv, &pair);
	memory = pages(16);
	as_case(local_ones(), "RDMAMR_CACHE=%s, local rights", cache_names[cache()]);
	as_case(remote_ones(), "RDMAMR_CACHE=%s, remote rights", cache_names[cache()]);
	as_case(reach(), "RDMAMR_CACHE=%s, reach of a region", cache_names[cache()]);
	as_case(old_keys(), "RDMAMR_CACHE=%s, keys after the last use", cache_names[cache()]);
	as_case(never_kept("zero-based", LOCAL_AND_REMOTE | IBV_ACCESS_ZERO_BASED), "RDMAMR_CACHE=%s, never cached: %s", cache_names[cache()], "zero-based");
	as_case(never_kept("memory windows", LOCAL_AND_REMOTE | IBV_ACCESS_MW_BIND), "RDMAMR_CACHE=%s, never cached: %s", cache_names[cache()], "memory windows");
	as_case(never_kept("on demand", LOCAL_AND_REMOTE | IBV_ACCESS_ON_DEMAND), "RDMAMR_CACHE=%s, never cached: %s", cache_names[cache()], "on demand");
	as_case(never_kept("huge pages", LW | IBV_ACCESS_HUGETLB), "RDMAMR_CACHE=%s, never cached: %s", cache_names[cache()], "huge pages");
	as_case(iovas(), "RDMAMR_CACHE=%s, other addresses", cache_names[cache()]);
	must(munmap(memory, 16 * PAGE) == 0);
	return cache_close(argv, &pair);
}
