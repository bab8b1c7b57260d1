// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Functions that the traces of trace.py name as callers: this is never run,
 * "rdmamr report" reads its symbols and lines. The library of its own is
 * built without debug information.
 */
#include <stddef.h>

static void *volatile registered;

__attribute__((noinline)) void register_memory(void *memory)
{
	registered = memory;
}

#ifndef LIBRARY
__attribute__((noinline)) void send_message(void *memory)
{
	register_memory(memory); /* send_message */
	registered = NULL;
}

__attribute__((noinline)) void fetch_rows(void *memory)
{
	register_memory(memory); /* fetch_rows */
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
