// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Functions that the traces of trace.py name as callers: this program never runs, "rdmamr report"
 * reads its symbols and lines. Its library is built without debug information.
 */
#include <stddef.h>

static void *volatile registered;

__attribute__((noinline)) void register_memory(void *memory)
{
	registered = memory;
}

#ifndef LIBRARY
static inline void __ibv_reg_mr(void *memory);

__attribute__((noinline)) void send_message(void *memory)
{
	register_memory(memory); /* send_message */
	registered = NULL;
}

__attribute__((noinline)) void fetch_rows(void *memory)
{
	__ibv_reg_mr(memory); /* fetch_rows */
	registered = NULL;
}

int main(void)
{
	send_message(NULL);
	fetch_rows(NULL);
	return 0;
}
#else
__attribute__((noinline)) void load_index(void *memory)
{
	register_memory(memory);
	registered = NULL;
}
#endif

/* As in libibverbs' header: an inline function between the caller and the call. */
#ifndef LIBRARY
#line 2550 "/usr/include/infiniband/verbs.h"
static inline __attribute__((always_inline)) void __ibv_reg_mr(void *memory)
{
	register_memory(memory);
}
#endif
