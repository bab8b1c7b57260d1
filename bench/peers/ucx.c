/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ucx [--shown] [FROM]: changes of memory under UCX's registration cache (lib/stale.h), set up as UCX's
 * InfiniBand transports set it up. bench/peers/run compiles it. */
#include "../../ctests/lib/program.h"
#include "../../ctests/lib/stale.h"
#include <sys/mman.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>
#include <ucs/memory/rcache.h>

struct region {
	ucs_rcache_region_t super;
	struct ibv_mr *mr;
};

static struct pair pair;
static struct ibv_pd *other_pd;
static ucs_rcache_t *rcache, *other_rcache;
static ucs_rcache_t *rcache_of;

static ucs_status_t reg_mr(void *context, ucs_rcache_t *cache, void *argument, ucs_rcache_region_t *base, uint16_t flags)
{
	struct region *region = (struct region *)base;

	(void)cache, (void)argument, (void)flags;
	region->mr = ibv_reg_mr(context, (void *)base->super.start, base->super.end - base->super.start,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	return region->mr ? UCS_OK : UCS_ERR_IO_ERROR;
}

static void dereg_mr(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *base)
{
	(void)context, (void)cache;
	must(ibv_dereg_mr(((struct region *)base)->mr) == 0);
}

static void dump(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *base, char *text, size_t size)
{
	(void)context, (void)cache, (void)base;
	if (size)
		text[0] = '\0';
}

static ucs_rcache_t *create(struct ibv_pd *pd)
{
	static const ucs_rcache_ops_t ops = { .mem_reg = reg_mr, .mem_dereg = dereg_mr, .dump_region = dump };
	ucs_rcache_params_t params = {
		.region_struct_size = sizeof(struct region),
		.ucm_events = UCM_EVENT_VM_UNMAPPED,
		.ucm_event_priority = 1000,
		.ops = &ops,
		.context = pd,
		.flags = UCS_RCACHE_FLAG_PURGE_ON_FORK,
		.max_regions = ~0UL,
		.max_size = ~0UL,
		.max_unreleased = ~0UL,
	};
	ucs_rcache_t *created;

	must(ucs_rcache_create(&params, "peers", NULL, &created) == UCS_OK);
	return created;
}

static void *get(void *at, size_t length)
{
	ucs_rcache_region_t *region;

	must(ucs_rcache_get(rcache_of, at, length, UCS_RCACHE_MIN_ALIGNMENT, PROT_READ | PROT_WRITE, NULL, &region) == UCS_OK);
	return region;
}

static uint32_t rkey(void *registration)
{
	return ((struct region *)registration)->mr->rkey;
}

static void put(void *registration)
{
	ucs_rcache_region_put(rcache_of, registration);
}

static void in_other_domain(void *at, size_t length)
{
	rcache_of = other_rcache;
	put(get(at, length));
	rcache_of = rcache;
}

int main(int argc, char **argv)
{
	static const struct cache ucx = { get, rkey, put, in_other_domain };

	if (argc > 1 && !strcmp(argv[1], "--version")) {
		puts(ucp_get_version_string());
		return 0;
	}
	pair_open(&pair);
	other_pd = ibv_alloc_pd(pair.context);
	must(other_pd);
	rcache_of = rcache = create(pair.pd);
	other_rcache = create(other_pd);
	try_changes(&ucx, &pair, argv + 1);
	ucs_rcache_destroy(rcache);
	ucs_rcache_destroy(other_rcache);
	must(ibv_dealloc_pd(other_pd) == 0);
	pair_close(&pair);
	return 0;
}
