/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The order of libibverbs and librdmamr on the linker's line: link_order.sh has a program of each order.
 *
 * Usage: link_order reused | plain | handle
 *
 * reused: a relaxed region is reused, whichever call deregisters it.
 * plain: libibverbs comes first, so a relaxed region is a plain one.
 * handle: this library comes first, and libibverbs' ibv_dereg_mr by handle refuses a relaxed region.
 */
#include "../lib/observe.h"

enum { ROUNDS = 200 };

static struct pair pair;
static char *memory;
static int others;
static long pins;

static struct ibv_mr *registered(void)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, memory, 4 * PAGE, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

static void by_handle(void)
{
	struct ibv_mr *mr = registered();
	int (*dereg_mr)(struct ibv_mr *) = (int (*)(struct ibv_mr *))of_libibverbs("ibv_dereg_mr", "IBVERBS_1.1");

	is(dereg_mr(mr), EINVAL, "libibverbs' ibv_dereg_mr of a relaxed region is EINVAL");
	is(dereg_mr(mr), EINVAL, "also the next time");
	ok(lands_in(&pair, mr, memory, 4 * PAGE), "the region is still there");
	is(ibv_dereg_mr_relaxed(mr), 0, "the library's own call ends it");
	mr = ibv_reg_mr(pair.pd, memory, 4 * PAGE, LOCAL_AND_REMOTE);
	must(mr);
	is(dereg_mr(mr), 0, "libibverbs' ibv_dereg_mr ends a plain region");
}

static void by_either(bool reused)
{
	struct rdmamr_stats before = stats(), after;
	int wrong = 0, failed = 0, kept = 0;

	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr *mr = registered();

		wrong += !lands_in(&pair, mr, memory, 4 * PAGE);
		failed += (round % 2 ? ibv_dereg_mr_relaxed : ibv_dereg_mr)(mr) != 0;
		kept += kernel_regions(pair.context) > others || pinned() > pins;
		/* Other pages at the same addresses. */
		if (round % 10 == 9)
			remap(memory, 4 * PAGE);
	}
	is(failed, 0, "%d regions are deregistered, by either call", ROUNDS);
	is(wrong, 0, "data has always landed in the page that the program sees");
	after = stats();
	if (reused) {
		ok(after.hits > before.hits && kept, "regions were reused");
	} else {
		is((long long)(after.hits + after.misses + after.idle), 0, "the cache has served none");
		is(kept, 0, "the kernel has never had one after its end, and no page was pinned");
	}
	is(ibv_flush_relaxed_mr(pair.pd), 0, "ibv_flush_relaxed_mr");
	is(kernel_regions(pair.context), others, "the kernel has no relaxed region");
	is(pinned(), pins, "no page is pinned");
	ok(lands(&pair, memory, 4 * PAGE), "a later registration of the same range works");
}

int main(int argc, char **argv)
{
	must(argc == 2);
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	memory = pages(16);
	others = kernel_regions(pair.context);
	pins = pinned();
	if (!strcmp(argv[1], "handle"))
		by_handle();
	else
		by_either(!strcmp(argv[1], "reused"));
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	must(ibv_dereg_mr(far.mr) == 0);
	pair_close(&pair);
	return done_testing();
}
