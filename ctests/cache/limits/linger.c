/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_CACHE_LINGER: a region that has been idle that long is deregistered, without a call of the
 * program; a region in use is not, however long. With 0 the cache keeps none. Without a setting,
 * remotely accessible regions end within a second or so, and others stay longer. The age of a
 * remotely accessible region counts from its first release, whether or not it is reused since.
 */
#include "../../lib/observe.h"

static struct pair pair;
static char *memory;

static void goes(const char *name, int access)
{
	struct rdmamr_stats before;
	struct ibv_mr *mr;
	uint32_t key, lkey;

	control_with(&pair, name, memory, PAGE, access);
	before = stats();
	mr = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, access);
	must(mr);
	key = mr->rkey;
	lkey = mr->lkey;
	must(ibv_dereg_mr_relaxed(mr) == 0);
	ok(comes(stats().idle == 0), "%s: after a while nothing is idle", name);
	ok(!kernel_has_key(pair.context, lkey), "%s: the kernel does not have it any more", name);
	ok(comes(stats().flushed_linger > before.flushed_linger), "%s: which is counted", name);
	is(kernel_regions(pair.context), far.others, "%s: nor any other", name);
	if (access & IBV_ACCESS_REMOTE_WRITE)
		ok(write_refused(&pair, memory, key), "%s: the old key is refused", name);
	anew_with(&pair, name, memory, PAGE, access);
}

static void stays_in_use(void)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, memory + 2 * PAGE, PAGE, LOCAL_AND_REMOTE), *other;
	struct rdmamr_stats before;

	must(mr);
	usleep(2000000);
	ok(lands_in(&pair, mr, memory + 2 * PAGE, PAGE), "in use for four times as long: data lands");
	before = stats();
	other = ibv_reg_mr_relaxed(pair.pd, memory + 2 * PAGE, PAGE, LOCAL_AND_REMOTE);
	ok(other && reused(before, stats()), "and it is shared");
	must(ibv_dereg_mr_relaxed(mr) == 0 && ibv_dereg_mr_relaxed(other) == 0);
	ok(comes(stats().idle == 0), "released, it ends as well");
	is(kernel_regions(pair.context), far.others, "from the kernel too");
}

/* A registration that is released at once, a fifth of the linger time after the last: its key. */
static uint32_t key_now(char *at, int access)
{
	struct ibv_mr *mr;
	uint32_t key;

	usleep(100000);
	mr = ibv_reg_mr_relaxed(pair.pd, at, PAGE, access);
	must(mr);
	key = mr->lkey;
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return key;
}

/* Whether it has one key for so many rounds. The machine may be too busy for that at first. */
static bool keeps_key(char *at, int access, int rounds)
{
	for (int tries = 0; tries < 20; tries++) {
		uint32_t key = key_now(at, access);
		int n = 0;

		while (n < rounds && key_now(at, access) == key)
			n++;
		if (n == rounds)
			return true;
	}
	return false;
}

/* Whether the key changes, in at most twenty linger times. */
static bool changes_key(char *at, int access, uint32_t key)
{
	int n = 0;

	while (n < 100 && key_now(at, access) == key)
		n++;
	return n < 100;
}

static void reused_again_and_again(void)
{
	uint32_t key;

	ok(keeps_key(memory, LOCAL_AND_REMOTE, 1), "released and reused: the key stays");
	key = key_now(memory, LOCAL_AND_REMOTE);
	ok(changes_key(memory, LOCAL_AND_REMOTE, key), "reused again and again: the key changes");
	ok(!kernel_has_key(pair.context, key), "the kernel does not have the old one any more");
	ok(keeps_key(memory + PAGE, IBV_ACCESS_LOCAL_WRITE, 10), "without remote rights it stays, for twice the time");
}

static void in_use_over_its_age(void)
{
	struct rdmamr_stats before;
	struct ibv_mr *held = NULL;
	uint32_t key = 0;

	for (int tries = 0; !held && tries < 20; tries++) {
		key = key_now(memory + 2 * PAGE, LOCAL_AND_REMOTE);
		held = ibv_reg_mr_relaxed(pair.pd, memory + 2 * PAGE, PAGE, LOCAL_AND_REMOTE);
		must(held);
		if (held->lkey != key) {
			must(ibv_dereg_mr_relaxed(held) == 0);
			held = NULL;
		}
	}
	must(held);
	ok(changes_key(memory + 2 * PAGE, LOCAL_AND_REMOTE, key), "in use over its age: a further registration gets a new key");
	ok(lands_in(&pair, held, memory + 2 * PAGE, PAGE), "the present use goes on: data lands");
	before = stats();
	must(ibv_dereg_mr_relaxed(held) == 0);
	ok(!kernel_has_key(pair.context, key), "and the region ends with it");
	ok(stats().flushed_linger > before.flushed_linger, "which is counted");
}

/* A bit for each failure. */
static int with_none(void)
{
	struct rdmamr_stats before;
	struct ibv_mr *one, *other;
	int wrong = 0;

	for (int access = 1; access <= LOCAL_AND_REMOTE; access += LOCAL_AND_REMOTE - 1)
		for (int round = 0; round < 3; round++) {
			before = stats();
			one = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, access);
			wrong |= (!one || !made_anew(before, stats())) << 0;
			before = stats();
			other = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, access);
			wrong |= (!other || !made_anew(before, stats()) || other->lkey == one->lkey) << 1;
			wrong |= (ibv_dereg_mr_relaxed(one) != 0 || !lands_by_lkey(&pair, other, memory, PAGE)) << 2;
			wrong |= (ibv_dereg_mr_relaxed(other) != 0) << 3;
			wrong |= (stats().idle != 0) << 4;
			wrong |= (kernel_regions(pair.context) != far.others) << 5;
		}
	return wrong;
}

static int by_default(void)
{
	int wrong = 0;

	wrong |= !lands(&pair, memory, PAGE) << 0;
	wrong |= !lands_local(&pair, memory + 2 * PAGE, PAGE) << 1;
	wrong |= !(comes(stats().idle == 1)) << 2;
	usleep(1000000);
	wrong |= (stats().idle != 1) << 3;
	wrong |= (kernel_regions(pair.context) != far.others + 1) << 4;
	wrong |= (stats().flushed_linger != 1) << 5;
	return wrong;
}

int main(int argc, char **argv)
{
	static const char *const none[] = { "RDMAMR_CACHE_LINGER=0", NULL };
	static const char *const unset[] = { "RDMAMR_CACHE_LINGER", NULL };

	alarm(DEADLOCK);
	if (argc > 1) {
		pair_open(&pair);
		far_open(&pair);
		memory = pages(4);
		return strcmp(argv[1], "none") ? by_default() : with_none();
	}
	with_setting(argv, "RDMAMR_CACHE_LINGER", "0.5");
	as_root();
	is(once_more("none", none), 0, "with 0 no region is cached, and none in use is shared");
	is(once_more("default", unset), 0, "by default remotely accessible regions end first");
	relaxed_open(&pair);
	memory = pages(4);
	goes("remote rights", LOCAL_AND_REMOTE);
	goes("local rights", IBV_ACCESS_LOCAL_WRITE);
	stays_in_use();
	reused_again_and_again();
	in_use_over_its_age();
	return relaxed_close(&pair);
}
