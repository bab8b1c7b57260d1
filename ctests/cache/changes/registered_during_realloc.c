/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * realloc enlarges a block by an mremap inside the C library. Before that, the library stops
 * watching what is watched of the block, and at that moment another thread registers a page of the
 * block. The kernel reports no change of that page any more, so its region must not be reused:
 * later the program maps new memory where the block was, and data lands there.
 *
 * The device is the stand-in, whose pins are real (stub_device.h). It stops the library before the
 * call that ends the watch.
 */
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { BLOCK = 64 * PAGE, INSIDE = 16 * PAGE };

/* The end of a watch that covers this address waits until it is NULL. */
static _Atomic(char *) held;
static atomic_bool waits;

static void hold(long number, const long argument[6])
{
	const struct uffdio_range *range = (const void *)argument[2];

	if (number != SYS_ioctl || argument[1] != (long)UFFDIO_UNREGISTER)
		return;
	while (held && (uintptr_t)held - range->start < range->len) {
		waits = true;
		stub_syscall(SYS_sched_yield);
	}
}

static void idle(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr);
	must(ibv_dereg_mr_relaxed(mr) == 0);
}

static void *enlarge(void *block)
{
	char *other = realloc(block, 64 * BLOCK);

	must(other && other != block);
	return other;
}

/* A region of the block exists already, and the watch of it splits the block. */
static void during(void)
{
	char *block = malloc(BLOCK);
	char *start = (char *)((uintptr_t)block & ~(uintptr_t)(PAGE - 1)), *page = start + INSIDE;
	struct ibv_mr *mr;
	pthread_t thread;
	void *other;
	int times = 0;

	must(block);
	memset(block, 1, BLOCK);
	idle(page);
	/* The mapping of the block is whole no more. */
	must(munmap(page + 8 * PAGE, PAGE) == 0);
	fresh_at(page + 8 * PAGE, PAGE);
	waits = false;
	held = page;
	must(pthread_create(&thread, NULL, enlarge, block) == 0);
	while (!waits && times++ < 20000)
		usleep(100);
	ok(waits, "the watch is about to end");
	idle(page);
	held = NULL;
	must(pthread_join(thread, &other) == 0);
	fresh_at(page, PAGE);
	mr = ibv_reg_mr_relaxed(stub_pd(), page, PAGE, LOCAL_AND_REMOTE);
	must(mr);
	ok(stub_lands(mr), "data lands in the memory that is there after the realloc");
	must(ibv_dereg_mr_relaxed(mr) == 0);
	must(munmap(page, PAGE) == 0);
	free(other);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	must(mallopt(M_MMAP_THRESHOLD, BLOCK / 2) == 1);
	stub_before = hold;
	during();
	return done_testing();
}
