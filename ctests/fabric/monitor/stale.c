/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* stale [--shown] [FROM]: changes of memory under libfabric's registration cache (lib/stale.h). */
#include "../../lib/stale.h"
#include "cached.h"

static struct fid_domain *domain, *other_domain;

static void *get(void *at, size_t length) { return reg(domain, at, length); }
static uint32_t rkey(void *registration) { return (uint32_t)fi_mr_key(registration); }

static void put(void *registration)
{
	struct fid_mr *mr = registration;

	must(fi_close(&mr->fid) == 0);
}

static void in_other_domain(void *at, size_t length) { put(reg(other_domain, at, length)); }

int main(int argc, char **argv)
{
	static const struct cache libfabrics = { get, rkey, put, in_other_domain };
	struct pair pair;

	(void)argc;
	open_fabric();
	other_domain = open_domain();
	domain = open_domain();
	pair_open_in(&pair, last_pd);
	try_changes(&libfabrics, &pair, argv + 1);
	pair_close(&pair);
	must(fi_close(&domain->fid) == 0 && fi_close(&other_domain->fid) == 0);
	must(fi_close(&fabric->fid) == 0);
	fi_freeinfo(info);
	return 0;
}
