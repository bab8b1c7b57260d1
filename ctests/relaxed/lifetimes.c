/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The end of relaxed regions: by either call of deregistration, by a flush, by a change of the memory, with the
 * domain, with the device. A remote key ends with a flush, not with the deregistration. A domain or a device with
 * a region in use is busy; one with idle regions ends them first, and none comes back with the next one, though
 * that may be at the same address (MALLOC_PERTURB_ overwrites freed memory). A second deregistration is EINVAL.
 */
#include "../lib/pair_rows.h"

static void flushes(struct ibv_pd *pd) { is(ibv_flush_relaxed_mr(pd), 0, "flushed"); }
static struct ibv_mr *registered(struct ibv_pd *pd, char *at) { return by_cache(pd, at, PAGE, LOCAL_AND_REMOTE); }

static uint32_t old_key(void)
{
	struct ibv_mr *mr = registered(pair.pd, memory);
	uint32_t key = mr->rkey;

	let_go(mr);
	return key;
}

/* Leaves an idle region. */
static void idle_in(struct ibv_pd *pd, char *at)
{
	struct ibv_mr *mr = registered(pd, at);

	must(mr->pd == pd && kernel_has_key(pair.context, mr->lkey));
	let_go(mr);
}

/* Keys. */

static void key_by_flush(void)
{
	struct ibv_mr *used = reg_with(memory + 4 * PAGE, PAGE, LOCAL_AND_REMOTE), *mr;
	struct ibv_pd *other = ibv_alloc_pd(pair.context);
	struct rdmamr_stats before;
	uint32_t key, new_key;

	must(other);
	idle_in(other, memory);
	key = old_key();
	fill(far.out, 8);
	ok(pair_write(&pair, far.mr, far.out, 8, (uintptr_t)memory, key) == IBV_WC_SUCCESS && !memcmp(memory, far.out, 8),
	   "until a flush the old key writes");
	before = stats();
	flushes(pair.pd);
	is((long long)(stats().flushed_flush - before.flushed_flush), 1, "the one idle region of the domain has ended");
	ok(write_refused(&pair, memory, key), "the old key does not write");
	ok(lands_in(&pair, used, memory + 4 * PAGE, PAGE), "the region in use is untouched");
	flushes(pair.pd);
	mr = registered(other, memory);
	ok(was_hit(), "the other domain's is reused");
	let_go(mr);
	mr = registered(pair.pd, memory);
	new_key = mr->rkey;
	ok(new_key != key && write_refused(&pair, memory, key), "registered again: the old key does not write");
	ok(lands_in(&pair, mr, memory, PAGE), "the new one does");
	flushes(pair.pd);
	ok(lands_in(&pair, mr, memory, PAGE), "and after a flush while it is in use");
	let_go(mr);
	flushes(pair.pd);
	ok(write_refused(&pair, memory, new_key), "deregistered and flushed: it does not");
	let_go(used);
	is(ibv_dealloc_pd(other), 0, "the other domain ends");
}

static void raw_discard(void *at, size_t length) { must(syscall(SYS_madvise, at, length, MADV_DONTNEED) == 0); }

/* A change ends the key too, a moment later, when the region has left the kernel's list (ib_dereg_mr_user). */
static void key_by_change(void)
{
	uint64_t ended;
	uint32_t key;

	control(&pair, "before it", memory, PAGE);
	key = old_key();
	ended = stats().dereg_kernel;
	((void (*)(void *, size_t))(uintptr_t)row->of)(memory, PAGE);
	ok(comes(!kernel_has_key(pair.context, key) && stats().dereg_kernel > ended), "the region ends, without a flush");
	ok(write_refused(&pair, memory, key), "the old key does not write");
	anew(&pair, "after it", memory, PAGE);
}

/* RDMAMR_CACHE_FRESH_KEYS: a region with remote rights never serves twice. */
static void fresh_keys(void)
{
	enum { ROUNDS = 8 };
	int served = 0, seen = 0, failed = 0;
	struct ibv_mr *mr, *other;
	uint32_t keys[ROUNDS];

	for (int round = 0; round < ROUNDS; round++) {
		mr = registered(pair.pd, memory);
		served += !was_made();
		for (int n = 0; n < round; n++)
			seen += keys[n] == mr->rkey;
		keys[round] = mr->rkey;
		failed += !lands_in(&pair, mr, memory, PAGE);
		let_go(mr);
	}
	is(served, 0, "in %d rounds no region served again", ROUNDS);
	is(seen, 0, "no key came again");
	is(failed, 0, "data landed each time");
	mr = registered(pair.pd, memory);
	other = registered(pair.pd, memory);
	ok(was_made() && other->rkey != mr->rkey, "in use at once, two have two keys");
	let_go(mr);
	ok(lands_in(&pair, other, memory, PAGE), "one ends, and the other goes on");
	let_go(other);
	flushes(pair.pd);
	none_in_kernel();
	ok(write_refused(&pair, memory, keys[ROUNDS - 1]), "an old key is refused");
}

static void local_keys(void)
{
	control_with(&pair, "local rights", memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	raw_remap(memory, PAGE);
	anew_with(&pair, "local rights, in new memory", memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
}

/* Either call deregisters either kind of region. */

static int by_plain(struct ibv_mr *mr) { return ibv_dereg_mr(mr); }
static int by_relaxed(struct ibv_mr *mr) { return ibv_dereg_mr_relaxed(mr); }
static int (*const ends[])(struct ibv_mr *) = { by_plain, by_relaxed };

static void either_call(void)
{
	int (*first)(struct ibv_mr *) = ends[row->value & 1], (*second)(struct ibv_mr *) = ends[row->value >> 1];
	struct ibv_mr *one = reg_with(memory, PAGE, LOCAL_AND_REMOTE), *other;
	int regions = kernel_regions(pair.context);

	is(first(one), 0, "of a relaxed region");
	is(kernel_regions(pair.context), regions, "it is cached");
	is(second(one), EINVAL, "the second");
	is(second(one), EINVAL, "and once more");
	is(stats().idle, 1, "it is idle once");
	control(&pair, "after that", memory, PAGE);

	one = reg_with(memory, PAGE, LOCAL_AND_REMOTE);
	other = reg_with(memory, PAGE, LOCAL_AND_REMOTE);
	ok(one != other && one->rkey == other->rkey, "two registrations share a region");
	is(kernel_regions(pair.context), regions, "of which the kernel has one");
	is(first(one), 0, "of the one");
	is(second(one), EINVAL, "the second");
	is(stats().idle, 0, "the region is not idle");
	flushes(pair.pd);
	ok(lands_in(&pair, other, memory, PAGE), "data lands by the other");
	is(second(other), 0, "of the other");
	is(stats().idle, 1, "now it is idle");

	one = ibv_reg_mr(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	must(one);
	regions = kernel_regions(pair.context);
	is(first(one), 0, "of a plain region");
	is(kernel_regions(pair.context), regions - 1, "it is gone at once");
	is(stats().idle, 1, "it is not idle");
	is(second(one), EINVAL, "the second");
}

enum { CONTESTED = 200 };
static struct ibv_mr *contested[CONTESTED];
static pthread_barrier_t barrier;

/* Returns how many of the calls have succeeded. */
static void *deregisters_all(void *unused)
{
	long done = 0;

	(void)unused;
	pthread_barrier_wait(&barrier);
	for (int n = 0; n < CONTESTED; n++) {
		int err = ends[n % 2](contested[n]);

		must(!err || err == EINVAL);
		done += !err;
	}
	return (void *)done;
}

static void two_threads(void)
{
	pthread_t other;
	long done;

	for (int n = 0; n < CONTESTED; n++)
		contested[n] = reg_with(memory, PAGE, LOCAL_AND_REMOTE);
	pthread_barrier_init(&barrier, NULL, 2);
	other = must_start(deregisters_all, NULL);
	done = (long)deregisters_all(NULL);
	is(done + (long)must_join(other), CONTESTED, "one deregisters each, the other gets EINVAL");
	is(stats().idle, 1, "their region is idle once");
	control(&pair, "after that", memory, PAGE);
}

/* Domains. */

/* Beside an idle region one is in use, a relaxed or (row->value) a plain one. */
static void domain_busy(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(pair.context);
	int relaxed = row->value ? 1 : 2;
	struct rdmamr_stats before;
	struct ibv_mr *used;

	must(pd);
	used = row->value ? ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE) : registered(pd, memory);
	must(used);
	idle_in(pd, memory + 8 * PAGE);
	is(ibv_dealloc_pd(pd), EBUSY, "one in use and one idle: the domain is busy");
	ok(kernel_has_key(pair.context, used->lkey), "the one in use is unaffected");
	idle_in(pd, memory + 8 * PAGE);
	let_go(used);
	is(kernel_regions(pair.context), far.others + relaxed, "%d idle, and the kernel has them", relaxed);
	before = stats();
	is(ibv_dealloc_pd(pd), 0, "the domain is deallocated");
	is(stats().idle, 0, "and the regions with it");
	is((long long)(stats().flushed_flush - before.flushed_flush), relaxed, "which is counted");
	none_in_kernel();
}

/* Devices. cache/transparent/served.c has those with idle regions alone. */

static void device_with_used(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct rdmamr_stats before = stats();
	struct ibv_mr *used, *again;
	long pins = pinned();

	must(pd);
	used = registered(pd, memory);
	again = registered(pd, memory);
	ok(was_hit() && again != used, "two registrations share a region");
	idle_in(pd, memory + 4 * PAGE);
	is(ibv_close_device(context), EBUSY, "the device is busy, as a domain is");
	ok(kernel_has_key(context, used->lkey), "the region is unaffected");
	let_go(used);
	is(ibv_close_device(context), EBUSY, "it is still in use");
	let_go(again);
	is(ibv_close_device(context), 0, "now the device is closed, with its domain");
	is(pinned(), pins, "nothing is pinned");
	is((long long)stats().idle, 0, "nothing is idle");
	is((long long)stats().live, (long long)before.live, "nothing is live");
	control(&pair, "the same memory, in the device that is open", memory, PAGE);
	remap(memory, 16 * PAGE);
	anew(&pair, "that memory, mapped anew", memory, PAGE);
}

/* Two threads flush idle regions, each its own, which must be gone when the flush returns. */
static void *flushes_much(void *argument)
{
	enum { FLUSHES = 300 };
	char *own = pages(6);
	long wrong = 0;

	(void)argument;
	for (int round = 0; round < FLUSHES; round++) {
		uint32_t keys[3];

		for (int n = 0; n < 3; n++) {
			struct ibv_mr *mr = reg_with(own + n * 2 * PAGE, PAGE, n ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE);

			keys[n] = mr->lkey;
			let_go(mr);
		}
		wrong += ibv_flush_relaxed_mr(pair.pd) != 0;
		for (int n = 0; n < 3; n++)
			wrong += kernel_has_key(pair.context, keys[n]);
	}
	return (void *)wrong;
}

static void two_flush(void)
{
	pthread_t other = must_start(flushes_much, NULL);

	ok(!flushes_much(NULL) && !must_join(other),
	   "regions that were idle before a flush are not registered after it");
}

#define FRESH_KEYS .flags = BOTH_CALLS, .settings = "RDMAMR_CACHE_FRESH_KEYS=1"

static const struct row rows[] = {
	{ "an old key and a flush", key_by_flush, .flags = ROOT | BOTH_CALLS },
	{ "an old key, and the memory is unmapped", key_by_change, .of = remap, .flags = ROOT | BOTH_CALLS },
	{ "an old key, and a raw system call discards the memory", key_by_change, .of = raw_discard, .flags = ROOT | BOTH_CALLS },
	{ "fresh keys, remote rights", fresh_keys, FRESH_KEYS },
	{ "fresh keys, local rights", local_keys, FRESH_KEYS },
	{ "ibv_dereg_mr twice", either_call, 0 },
	{ "ibv_dereg_mr_relaxed, then ibv_dereg_mr", either_call, 1 },
	{ "ibv_dereg_mr, then ibv_dereg_mr_relaxed", either_call, 2 },
	{ "ibv_dereg_mr_relaxed twice", either_call, 3 },
	{ "two threads deregister the same", two_threads },
	{ "a domain with regions in use and idle", domain_busy, false, .flags = ROOT | BOTH_CALLS },
	{ "a domain with a plain region", domain_busy, true, .flags = ROOT | BOTH_CALLS },
	{ "a device with regions in use and idle", device_with_used, .flags = ROOT, .settings = "MALLOC_PERTURB_=165" },
	{ "two threads flush", two_flush, .flags = ROOT },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_pair)
