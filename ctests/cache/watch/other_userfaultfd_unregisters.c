/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Another userfaultfd of the process unregisters memory that the cache watches. Before Linux 6.16
 * the kernel allows it, and the cache gets no more events of that memory: memory that raw system
 * calls map anew there must not count as the registered memory. From 6.16 on the kernel refuses.
 */
#include "../../lib/observe.h"

static struct pair pair;
static int other;

static int unregister(void *memory, size_t length)
{
	struct uffdio_range range = { (uintptr_t)memory, length };

	return ioctl(other, UFFDIO_UNREGISTER, &range) ? errno : 0;
}

static void idle(const char *name, char *memory, size_t length, char *from, size_t unregistered)
{
	int err;

	control(&pair, name, memory, length);
	err = unregister(from, unregistered);
	printf("# NOTE: the other gets %s\n", err ? strerrorname_np(err) : "yes");
	raw_remap(memory, length);
	ok(lands(&pair, memory, length) && lands(&pair, memory, length), "%s: data lands in the current page", name);
	control(&pair, name, memory, length);
}

static void in_use(char *memory)
{
	struct ibv_mr *old = register_region(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);

	must(old);
	unregister(memory, PAGE);
	raw_remap(memory, PAGE);
	ok(lands(&pair, memory, PAGE), "a region in use: data lands in the current page");
	is(deregister_region(old), 0, "the old one is deregistered");
	ok(lands(&pair, memory, PAGE), "and data lands after that");
}

int main(int argc, char **argv)
{
	char *memory;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	relaxed_open(&pair);
	other = open_userfaultfd(0);
	must(other >= 0);
	memory = pages(16);
	idle("its very pages", memory, 2 * PAGE, memory, 2 * PAGE);
	idle("one of its pages", memory + 4 * PAGE, 2 * PAGE, memory + 5 * PAGE, PAGE);
	idle("all memory around it", memory + 8 * PAGE, PAGE, memory, 16 * PAGE);
	in_use(memory + 12 * PAGE);
	errno = 0;
	ok(ioctl(other, UFFDIO_UNREGISTER, (void *)8) == -1 && errno == EFAULT, "an unmapped argument: EFAULT");
	ok(ioctl(other, UFFDIO_UNREGISTER, NULL) == -1 && errno == EFAULT, "none: EFAULT");
	close(other);
	return relaxed_close(&pair);
}
