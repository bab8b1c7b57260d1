/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Limits of idle regions: by age (RDMAMR_CACHE_LINGER), number and bytes (RDMAMR_CACHE_MAX_IDLE,
 * RDMAMR_CACHE_MAX_IDLE_BYTES, rdmamr_set_cache_limits), and by the pins that a process may have
 * (RLIMIT_MEMLOCK): no call fails for those of idle regions.
 */
#include "../../lib/pair_rows.h"

/* Age: half a second. */

static void goes(void)
{
	int access = (int)row->value;
	struct rdmamr_stats before;
	struct ibv_mr *mr;
	uint32_t key;

	control_with(&pair, "before it", memory, PAGE, access);
	before = stats();
	mr = reg_with(memory, PAGE, access);
	key = mr->rkey;
	let_go(mr);
	ok(comes(stats().idle == 0), "after a while nothing is idle");
	ok(comes(stats().flushed_linger > before.flushed_linger), "which is counted");
	none_in_kernel();
	ok(!(access & IBV_ACCESS_REMOTE_WRITE) || write_refused(&pair, memory, key), "the old key is refused");
	anew_with(&pair, "after it", memory, PAGE, access);
}

/* A registration that is released at once, a fifth of the linger time after the last: its key. */
static uint32_t key_now(int access)
{
	struct ibv_mr *mr;
	uint32_t key;

	usleep(100000);
	mr = reg_with(memory, PAGE, access);
	key = mr->lkey;
	let_go(mr);
	return key;
}

/* For how many rounds, at most so many, it has this key. */
static int rounds_with(uint32_t key, int access, int most)
{
	int n = 0;

	while (n < most && key_now(access) == key)
		n++;
	return n;
}

/* Whether it has one key for so many rounds. The machine may be too busy for that at first. */
static bool keeps_key(int access, int rounds)
{
	int tries = 20;

	while (tries && rounds_with(key_now(access), access, rounds) < rounds)
		tries--;
	return tries;
}

/* Whether the key changes, in at most twenty linger times. */
static bool changes_key(uint32_t key) { return rounds_with(key, LOCAL_AND_REMOTE, 100) < 100; }

/* The age of a remotely accessible region counts from its first release. */
static void reused_again_and_again(void)
{
	uint32_t key;

	ok(keeps_key(LOCAL_AND_REMOTE, 1), "released and reused: the key stays");
	key = key_now(LOCAL_AND_REMOTE);
	ok(changes_key(key), "reused again and again: the key changes");
	ok(!kernel_has_key(pair.context, key), "the kernel does not have the old one any more");
}

static void local_stays(void) { ok(keeps_key(IBV_ACCESS_LOCAL_WRITE, 10), "without remote rights it stays, for twice the time"); }

static void in_use_over_its_age(void)
{
	struct rdmamr_stats before;
	struct ibv_mr *held = NULL;
	uint32_t key = 0;

	for (int tries = 0; !held && tries < 20; tries++) {
		key = key_now(LOCAL_AND_REMOTE);
		held = reg_with(memory, PAGE, LOCAL_AND_REMOTE);
		if (held->lkey != key) {
			let_go(held);
			held = NULL;
		}
	}
	must(held);
	ok(changes_key(key), "a further registration gets a new key");
	ok(lands_in(&pair, held, memory, PAGE), "the present use goes on: data lands");
	before = stats();
	let_go(held);
	ok(!kernel_has_key(pair.context, key), "and the region ends with it");
	ok(stats().flushed_linger > before.flushed_linger, "which is counted");
}

static void none_kept(void)
{
	for (int n = 0; n < 6; n++) {
		int access = rights[n % 2];
		struct ibv_mr *one = reg_with(memory, PAGE, access), *other = reg_with(memory, PAGE, access);

		ok(other->lkey != one->lkey, "none in use is shared");
		let_go(one);
		ok(lands_by_lkey(&pair, other, memory, PAGE), "data lands");
		let_go(other);
		is(stats().idle, 0, "nothing is idle");
		none_in_kernel();
	}
}

static void by_default(void)
{
	must(lands(&pair, memory, PAGE) && lands_local(&pair, memory + 2 * PAGE, PAGE));
	ok(comes(stats().idle == 1), "one of two ends");
	usleep(1000000);
	is(stats().idle, 1, "the other stays longer");
	is(kernel_regions(pair.context), far.others + 1, "in the kernel too");
	is((long long)stats().flushed_linger, 1, "one has ended by age");
	ok(lands_local(&pair, memory + 2 * PAGE, PAGE) && stats().hits == 1, "it is that without remote rights");
}

/* Number and bytes: four regions, and 1 MiB. */

enum { MOST = 4, MOST_PAGES = 256, TEN = 10 };

static bool within(void) { return stats().idle <= MOST && stats().idle_bytes <= MOST_PAGES * PAGE; }

/* So many regions of so many pages each are registered, and then deregistered, in order. */
static void at_once(int count, int length)
{
	char *all = pages((size_t)count * (size_t)length);
	struct rdmamr_stats before = stats();
	struct ibv_mr *regions[TEN];
	int idle;

	for (int n = 0; n < count; n++)
		regions[n] = reg_with(all + (long)n * length * PAGE, (size_t)length * PAGE, LOCAL_AND_REMOTE);
	is((long long)stats().flushed_watermark, (long long)before.flushed_watermark, "%d of %d pages in use: none ends", count, length);
	is(kernel_regions(pair.context), far.others + count, "the kernel has all");
	for (int n = 0; n < count; n++)
		let_go(regions[n]);
	ok(comes(within()), "no more are idle than allowed");
	idle = (int)stats().idle;
	is((long long)stats().idle_bytes, (long long)idle * length * PAGE, "%d are idle", idle);
	is((long long)(stats().flushed_watermark - before.flushed_watermark), count - idle, "the others are counted");
	is(kernel_regions(pair.context), far.others + idle, "and gone from the kernel");
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
}

static void all_at_once(void)
{
	at_once(10, 1);
	at_once(4, 1);
	at_once(3, 128);
	at_once(2, 128);
	at_once(1, 512);
	control(&pair, "within the limits", memory, PAGE);
}

/* rdmamr_set_cache_limits, before the cache starts. */

enum { SIX = 6 };
#define SAME RDMAMR_UNCHANGED

static int set(struct rdmamr_cache_limits limits) { return rdmamr_set_cache_limits(&limits, sizeof(limits)); }

/* The number of regions that stay idle. */
static int stay(int access)
{
	for (int n = 0; n < SIX; n++)
		let_go(reg_with(memory + 2 * n * PAGE, PAGE, access));
	return (int)stats().idle;
}

static void set_before_start(void)
{
	static const struct { struct rdmamr_cache_limits set; int local, all; } cases[] = {
		{ { 0, SAME, SAME, SAME }, 0, SIX },
		{ { 3600000, 0, SAME, SAME }, SIX, SIX },
		{ { 3600000, 3600000, 2, SAME }, -1, 2 },
		{ { 3600000, 3600000, SIX, PAGE }, -1, 1 },
	};
	int local, all = cases[row->value].all;

	is(row->value ? set(cases[row->value].set) : rdmamr_set_cache_limits(&cases[0].set, sizeof(uint64_t)), 0, "the limits are set");
	relaxed_open(&pair);
	local = stay(IBV_ACCESS_LOCAL_WRITE);
	stay(LOCAL_AND_REMOTE);
	if (cases[row->value].local >= 0)
		is(local, cases[row->value].local, "those without remote rights");
	/* At a tick the cleaner ends those beyond the limit. */
	ok(comes((int)stats().idle <= all) && (int)stats().idle == all, "%d stay of all", all);
	is(set((struct rdmamr_cache_limits){ SAME, SAME, 0, SAME }), EBUSY, "after the start: EBUSY");
	is((int)stats().idle, all, "and nothing changes");
	relaxed_end(&pair);
}

static void set_wrongly(void)
{
	static const struct rdmamr_cache_limits none = { 0 };
	struct {
		struct rdmamr_cache_limits known;
		uint64_t newer;
	} longer = { { SAME, SAME, SAME, SAME }, 7 };

	is(rdmamr_set_cache_limits(NULL, sizeof(none)), EINVAL, "NULL");
	is(rdmamr_set_cache_limits(&none, 0), EINVAL, "of 0 bytes");
	is(rdmamr_set_cache_limits(&none, 12), EINVAL, "of 12 bytes");
	is(set((struct rdmamr_cache_limits){ 1000000000000, 0, 0, 0 }), EINVAL, "a linger time of 10^12 ms");
	is(set((struct rdmamr_cache_limits){ 0, 1000000000000, 0, 0 }), EINVAL, "of regions with remote rights");
	longer.known.max_idle = 0;
	is(rdmamr_set_cache_limits(&longer.known, sizeof(longer)), E2BIG, "a limit that the library does not know");
	longer.newer = longer.known.max_idle = SAME;
	is(rdmamr_set_cache_limits(&longer.known, sizeof(longer)), 0, "one that is RDMAMR_UNCHANGED");
	relaxed_open(&pair);
	is(stay(IBV_ACCESS_LOCAL_WRITE), SIX, "wrong calls have changed nothing: all regions stay");
	is(stay(LOCAL_AND_REMOTE), 2 * SIX, "with remote rights, too");
	relaxed_end(&pair);
}

/* Pins. */

enum { LIMIT = 16, IDLE = 12, WANTED = 10 };

static void limited(void)
{
	drop_memlock_right();
	relaxed_open(&pair);
	if (pair.iwarp)
		skip_all("siw of Linux 6.1 pins by itself, and counts otherwise");
	allow_pins(LIMIT);
}

/* Idle regions in two domains: those of the other domain pin as much. */
static void pinned_by_idle(struct ibv_pd *other)
{
	struct ibv_mr *regions[IDLE];

	for (int n = 0; n < IDLE; n++)
		regions[n] = by_cache(n % 2 ? other : pair.pd, memory + n * 2 * PAGE, PAGE, rights[n % 3 == 0]);
	for (int n = 0; n < IDLE; n++)
		let_go(regions[n]);
	is(stats().idle, IDLE, "%d of %d pages are pinned by idle regions", IDLE, LIMIT);
}

#define HERE (memory + 40 * PAGE)
enum { SIZE = WANTED * PAGE };
static struct ibv_mr *by_function(void) { return (ibv_reg_mr)(pair.pd, HERE, SIZE, LOCAL_AND_REMOTE); }
static struct ibv_mr *by_relaxed(void) { return ibv_reg_mr_relaxed(pair.pd, HERE, SIZE, LOCAL_AND_REMOTE); }
static struct ibv_mr *by_iova2(void)
{
	return ibv_reg_mr_iova2(pair.pd, HERE, SIZE, (uintptr_t)HERE, LOCAL_AND_REMOTE | IBV_ACCESS_RELAXED_ORDERING);
}

static void pins_make_room(void)
{
	struct ibv_mr *(*by)(void) = (struct ibv_mr *(*)(void))(uintptr_t)row->of, *mr, *held;
	struct rdmamr_stats before;
	struct ibv_pd *other;

	limited();
	other = ibv_alloc_pd(pair.context);
	must(other);
	pinned_by_idle(other);
	before = stats();
	mr = by();
	ok(mr != NULL, "a registration of %d pages succeeds", WANTED);
	must(mr);
	ok(lands_in(&pair, mr, HERE, SIZE), "data lands by it");
	ok(stats().flushed_pressure > before.flushed_pressure, "idle regions ended for it");
	is((long long)stats().reg_failed, (long long)before.reg_failed, "no failure is counted");
	is(ibv_dereg_mr(mr), 0, "it is deregistered");

	/* A region in use is the program's own, however it was registered. */
	must(ibv_flush_relaxed_mr(pair.pd) == 0 && ibv_flush_relaxed_mr(other) == 0);
	held = by_cache(other, memory, (LIMIT - WANTED + 1) * PAGE, LOCAL_AND_REMOTE);
	errno = 0;
	ok(!by() && errno == ENOMEM, "with regions in use only, it is ENOMEM");
	ok(strstr(rdmamr_last_reason(), "pinned already (VmPin)") != NULL, "the reason: %s", rdmamr_last_reason());
	ok(kernel_has_key(pair.context, held->lkey), "the one in use is unaffected");
	let_go(held);
	mr = by();
	ok(mr != NULL, "when that is idle, it succeeds");
	must(mr && ibv_dereg_mr(mr) == 0 && ibv_flush_relaxed_mr(pair.pd) == 0);
	is(ibv_dealloc_pd(other), 0, "the other domain is deallocated");
	relaxed_end(&pair);
}

/* One that can never fit, and one that does at last, beside idle regions. */
static void pins_to_the_last(void)
{
	limited();
	pinned_by_idle(pair.pd);
	errno = 0;
	ok(!register_region(pair.pd, memory, (LIMIT + 1) * PAGE, LOCAL_AND_REMOTE) && errno == ENOMEM,
	   "one page too many is ENOMEM");
	anew(&pair, "all that the limit allows", memory + 30 * PAGE, LIMIT * PAGE);
	control(&pair, "at the limit", memory + 30 * PAGE, LIMIT * PAGE);
	relaxed_end(&pair);
}

/* A call that hits must not pin more than it registers. */
static void pins_of_a_part(void)
{
	struct ibv_mr *mr;

	limited();
	let_go(by_cache(pair.pd, memory, 4 * PAGE, IBV_ACCESS_LOCAL_WRITE));
	mr = by_cache(pair.pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(was_made(), "an idle region with more pages does not serve");
	let_go(mr);
	relaxed_end(&pair);
}

#define HALF_A_SECOND .flags = ROOT, .settings = "RDMAMR_CACHE_LINGER=0.5"
#define PINS .flags = ROOT | NO_PAIR | BOTH_CALLS, .settings = "RDMAMR_CACHE_MAX_IDLE_BYTES=1G"

static const struct row rows[] = {
	{ "age, remote rights", goes, LOCAL_AND_REMOTE, HALF_A_SECOND },
	{ "age, local rights", goes, IBV_ACCESS_LOCAL_WRITE, HALF_A_SECOND },
	{ "age, reused again and again", reused_again_and_again, HALF_A_SECOND },
	{ "age, reused without remote rights", local_stays, HALF_A_SECOND },
	{ "age, in use over its age", in_use_over_its_age, HALF_A_SECOND },
	{ "age, no time at all", none_kept, .settings = "RDMAMR_CACHE_LINGER=0" },
	{ "age, by default", by_default, .settings = "RDMAMR_CACHE_LINGER" },
	{ "number and bytes", all_at_once, .flags = ROOT,
	  .settings = "RDMAMR_CACHE_MAX_IDLE=4 RDMAMR_CACHE_MAX_IDLE_BYTES=1M" },
	{ "limits by a call, those without remote rights do not stay", set_before_start, 0, .flags = NO_PAIR },
	{ "limits by a call, those with remote rights do not stay", set_before_start, 1, .flags = NO_PAIR },
	{ "limits by a call, two regions", set_before_start, 2, .flags = NO_PAIR },
	{ "limits by a call, a page", set_before_start, 3, .flags = NO_PAIR },
	{ "limits by a call, wrong calls", set_wrongly, .flags = NO_PAIR },
	{ "pins, ibv_reg_mr, the function", pins_make_room, .of = by_function, PINS },
	{ "pins, ibv_reg_mr_iova2", pins_make_room, .of = by_iova2, PINS },
	{ "pins, ibv_reg_mr_relaxed", pins_make_room, .of = by_relaxed, PINS },
	{ "pins, to the last page", pins_to_the_last, PINS },
	{ "pins, a part of an idle region", pins_of_a_part, PINS },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_pair)
