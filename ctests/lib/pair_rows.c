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

void let_go(struct ibv_mr *mr)
{
	must(deregister_region(mr) == 0);
}

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
