/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_CACHE_FRESH_KEYS=1: a region with remote rights never serves twice, so each registration
 * has a key that no remote peer has seen; local regions are reused as before.
 */
#include "../lib/observe.h"

enum { ROUNDS = 8 };

static struct pair pair;
static char *memory;

static void remote_rights(const char *name, int access)
{
	uint32_t keys[ROUNDS];
	struct rdmamr_stats before;
	struct ibv_mr *mr, *other;
	int served = 0, seen = 0, failed = 0;

	for (int round = 0; round < ROUNDS; round++) {
		mr = register_by_cache(pair.pd, memory, PAGE, access, &before);
		must(mr);
		served += !made_anew(before, stats());
		for (int n = 0; n < round; n++)
			seen += keys[n] == mr->rkey;
		keys[round] = mr->rkey;
		if (access & IBV_ACCESS_REMOTE_WRITE)
			failed += !lands_in(&pair, mr, memory, PAGE);
		failed += deregister_region(mr) != 0;
	}
	is(served, 0, "%s: in %d rounds no region served again", name, ROUNDS);
	is(seen, 0, "%s: and no key came again", name);
	is(failed, 0, "%s: data landed each time", name);

	mr = register_by_cache(pair.pd, memory, PAGE, access, &before);
	other = register_by_cache(pair.pd, memory, PAGE, access, &before);
	must(mr && other);
	ok(made_anew(before, stats()) && other->rkey != mr->rkey, "%s: in use at once, two have two keys", name);
	must(deregister_region(mr) == 0);
	if (access & IBV_ACCESS_REMOTE_WRITE)
		ok(lands_in(&pair, other, memory, PAGE), "%s: one ends, and data lands by the other", name);
	must(deregister_region(other) == 0);
	is(ibv_flush_relaxed_mr(pair.pd), 0, "%s: flushed", name);
	is(kernel_regions(pair.context), far.others, "%s: the kernel has none of them", name);
	ok(write_refused(&pair, memory, keys[ROUNDS - 1]), "%s: an old key is refused", name);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_FRESH_KEYS", "1");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	memory = pages(1);
	remote_rights("remote read and write", LOCAL_AND_REMOTE);
	remote_rights("remote read and write, relaxed ordering",
		      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					      IBV_ACCESS_RELAXED_ORDERING);
	remote_rights("remote read", IBV_ACCESS_REMOTE_READ);
	remote_rights("remote atomic", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	control_with(&pair, "local rights", memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	raw_remap(memory, PAGE);
	anew_with(&pair, "local rights, in new memory", memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	return relaxed_close(&pair);
}
