/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* verbs [--shown] [FROM]: changes of memory under ibv_reg_mr, with RDMAMR_CACHE=all (lib/stale.h). */
#include "../../ctests/lib/program.h"
#include "../../ctests/lib/stale.h"

static struct pair pair;
static struct ibv_pd *other_pd;

static struct ibv_mr *register_in(struct ibv_pd *pd, void *at, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);

	must(mr);
	return mr;
}

static void put(void *registration)
{
	must(ibv_dereg_mr(registration) == 0);
}

/* The cache keeps a range from its second registration on. */
static void *get(void *at, size_t length)
{
	put(register_in(pair.pd, at, length));
	put(register_in(pair.pd, at, length));
	return register_in(pair.pd, at, length);
}

static uint32_t rkey(void *registration)
{
	return ((struct ibv_mr *)registration)->rkey;
}

static void in_other_domain(void *at, size_t length)
{
	put(register_in(other_pd, at, length));
}

int main(int argc, char **argv)
{
	static const struct cache ours = { get, rkey, put, in_other_domain };

	(void)argc;
	pair_open(&pair);
	other_pd = ibv_alloc_pd(pair.context);
	must(other_pd);
	try_changes(&ours, &pair, argv + 1);
	must(ibv_dealloc_pd(other_pd) == 0);
	pair_close(&pair);
	return 0;
}
