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
#include "../lib/reuse.h"

enum { ROUNDS = 200 };

static struct pair pair;
static char *memory;

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
	int wrong = 0, kept = 0;

	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr *mr = registered();

		wrong += !lands_in(&pair, mr, memory, 4 * PAGE);
		must((round % 2 ? ibv_dereg_mr_relaxed : ibv_dereg_mr)(mr) == 0);
		kept += kernel_regions(pair.context) > far.others;
		/* Other pages at the same addresses. */
		if (round % 10 == 9)
			remap(memory, 4 * PAGE);
	}
	is(wrong, 0, "data has always landed in the page that the program sees");
	if (reused) {
		ok(stats().hits && kept, "regions were reused");
	} else {
		is((long long)(stats().hits + stats().misses + stats().idle), 0,
		   "the cache has served none");
		is(kept, 0, "the kernel has never had one after its end");
	}
}

int main(int argc, char **argv)
{
	must(argc == 2);
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	memory = pages(16);
	if (!strcmp(argv[1], "handle"))
		by_handle();
	else
		by_either(!strcmp(argv[1], "reused"));
	relaxed_end(&pair);
	return done_testing();
}
