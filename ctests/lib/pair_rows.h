/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Rows on the device under test, each between relaxed_open() and relaxed_end() of reuse.h. */
#ifndef CTESTS_PAIR_ROWS_H
#define CTESTS_PAIR_ROWS_H

#include "observe.h"
#include "rows.h"

extern struct pair pair;
extern char *memory; /* ROOM pages of the row, with pages that it does not use on either side */
enum { ROOM = 64 };

/* Registers memory of a row by the calls under test; it must succeed. */
struct ibv_mr *reg_with(void *at, size_t length, int access);
void let_go(struct ibv_mr *mr);

/* The same by the cache (register_by_cache), and whether that was a hit, or has made a region. */
struct ibv_mr *by_cache(struct ibv_pd *pd, void *at, size_t length, int access);
bool was_hit(void);
bool was_made(void);

/* Checks that the kernel has no region but the far end's. */
void none_in_kernel(void);

#endif
