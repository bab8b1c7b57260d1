/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program closes the cache's userfaultfd by a raw system call, as one that closes every descriptor.
 * From then on the cache keeps no region and reuses none, and registrations go on as plain ones.
 */
#include "../../lib/observe.h"
#include <pthread.h>

static struct pair pair;

static void *nothing(void *argument)
{
	return argument;
}

int main(int argc, char **argv)
{
	struct ibv_mr *first, *second;
	char *memory;
	int fd;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	relaxed_open(&pair);
	memory = pages(4);
	in_thread(nothing, NULL);
	control(&pair, "while the cache watches", memory, PAGE);
	ok(userfaultfds(&fd) == 1 && syscall(SYS_close, fd) == 0, "its userfaultfd is closed");
	must(syscall(SYS_madvise, memory, PAGE, MADV_DONTNEED) == 0);
	ok(lands(&pair, memory, PAGE), "data lands in the current page");
	not_kept(&pair, "other memory", memory + 2 * PAGE, PAGE);
	first = register_region(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	second = register_region(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	ok(first && second, "memory is registered again while it is");
	must(first && second);
	ok(lands_in(&pair, first, memory, PAGE) && lands_in(&pair, second, memory, PAGE), "data lands by both");
	is(deregister_region(first), 0, "the first is deregistered");
	ok(lands_in(&pair, second, memory, PAGE), "data lands by the second");
	is(deregister_region(second), 0, "which is deregistered");
	return relaxed_close(&pair);
}
