/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "pair_rows.h"

struct pair pair;
char *memory;

struct ibv_mr *reg_with(void *at, size_t length, int access)
{
	struct ibv_mr *mr = register_region(pair.pd, at, length, access);

	must(mr);
	return mr;
}

static struct rdmamr_stats since;

struct ibv_mr *by_cache(struct ibv_pd *pd, void *at, size_t length, int access)
{
	struct ibv_mr *mr = register_by_cache(pd, at, length, access, &since);

	must(mr);
	return mr;
}

bool was_hit(void) { return reused(since, stats()); }
bool was_made(void) { return made_anew(since, stats()); }
void none_in_kernel(void) { is(kernel_regions(pair.context), far.others, "the kernel has none"); }

void let_go(struct ibv_mr *mr) { must(deregister_region(mr) == 0); }

void on_pair(void)
{
	if (row->flags & ROOT)
		as_root();
	memory = pages(ROOM + 2) + PAGE;
	if (row->flags & NO_PAIR) {
		row->act();
		return;
	}
	relaxed_open(&pair);
	row->act();
	relaxed_end(&pair);
}
