/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * protected_in_part [ROUNDS]: the program takes the right to write from a page of a region that is
 * idle, or that other threads register and deregister meanwhile. No region of that memory stays
 * registered with the kernel: it ends at once, or a moment later if another thread has the cache's
 * lock or is ending it.
 *
 * The device is that of CHECK_DEVICE, else the stand-in (stub_device.h).
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { COUNT = 16, SIZE = COUNT * PAGE, THREADS = 3 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static char *memory;
static long rounds, at_return;
static _Atomic int open_round, inside;
static _Atomic bool over;

static long registered(void)
{
	return context ? kernel_regions(context) : stub_registered() - stub_deregistered();
}

static bool register_once(char *where, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pd, where, length, LOCAL_AND_REMOTE);

	must(!mr || ibv_dereg_mr_relaxed(mr) == 0);
	return mr != NULL;
}

/* Registers the memory, or maps and unmaps other memory, while a round is open. */
static void *same_memory(void *unused)
{
	(void)unused;
	while (!over) {
		inside++;
		while (open_round)
			register_once(memory, SIZE);
		inside--;
		while (!open_round && !over)
			sched_yield();
	}
	return NULL;
}

static void *other_memory(void *unused)
{
	(void)unused;
	while (!over) {
		inside++;
		while (open_round) {
			char *mine = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

			must(mine != MAP_FAILED && register_once(mine, SIZE) && munmap(mine, SIZE) == 0);
		}
		inside--;
		while (!open_round && !over)
			sched_yield();
	}
	return NULL;
}

static void beside(const char *name, void *(*others)(void *))
{
	pthread_t threads[THREADS];
	long left = 0;

	at_return = 0;
	over = false;
	for (int n = 0; others && n < THREADS; n++)
		must(pthread_create(&threads[n], NULL, others, NULL) == 0);
	for (long round = 0; round < rounds; round++) {
		char *page = memory + round % COUNT * PAGE;

		must(mprotect(memory, SIZE, PROT_READ | PROT_WRITE) == 0);
		open_round = 1;
		for (long n = 0; n <= round % 3; n++)
			must(register_once(memory, SIZE));
		must(mprotect(page, PAGE, PROT_READ) == 0);
		at_return += !others && registered() != 0;
		open_round = 0;
		while (inside)
			sched_yield();
		left += !comes(registered() == 0);
	}
	over = true;
	for (int n = 0; others && n < THREADS; n++)
		must(pthread_join(threads[n], NULL) == 0);
	is(left, 0, "%s: in no round is a region left", name);
}

int main(int argc, char **argv)
{
	const char *device = getenv("CHECK_DEVICE");
	const char *why;

	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	rounds = argc > 1 ? atol(argv[1]) : 200;
	if (device && *device) {
		context = open_device();
		pd = ibv_alloc_pd(context);
		must(pd);
	} else {
		why = stub_open(STUB_PIN);
		if (why)
			skip_all(why);
		pd = stub_pd();
	}
	memory = pages(COUNT);
	fill(memory, SIZE);
	if (registered() < 0)
		skip_all("the kernel does not count regions");
	beside("alone", NULL);
	printf("# %ld of %ld regions were left when mprotect returned\n", at_return, rounds);
	for (long n = 0; n < 10; n++) {
		must(mprotect(memory, SIZE, PROT_READ | PROT_WRITE) == 0 && register_once(memory, SIZE));
		must(syscall(SYS_mprotect, memory + PAGE, PAGE, PROT_READ) == 0);
	}
	ok(registered() > 0, "the library does not see a raw system call (docs/limits.md)");
	must(ibv_flush_relaxed_mr(pd) == 0);
	is(registered(), 0, "and a flush ends the regions that it leaves");
	beside("other threads register the same memory", same_memory);
	beside("other threads register and unmap other memory", other_memory);
	return done_testing();
}
