/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A known number of calls, for the trace: three threads and a forked child register and deregister,
 * two registrations fail, one region is left.
 *
 * Usage: calls [kill|_exit]: how it ends, if not in order. Its parts are functions whose names the
 * report shows.
 */
#include <signal.h>
#include "../../lib/device.h"
#include "../../lib/program.h"

enum { THREADS = 3, PAIRS = 400, OF_CHILD = 50 };

static struct ibv_pd *pd;
static char *memory;

__attribute__((noinline)) static void pairs(char *at, int count)
{
	for (int n = 0; n < count; n++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, at, (size_t)(1 + n % 2) * PAGE, IBV_ACCESS_LOCAL_WRITE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

static void *thread(void *at)
{
	pairs(at, PAIRS);
	return NULL;
}

__attribute__((noinline)) static void fail(void)
{
	must(!ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	must(!ibv_reg_mr(pd, (void *)PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
}

__attribute__((noinline)) static void forget(void)
{
	struct ibv_mr *mr = ibv_reg_mr_iova(pd, memory, 3 * PAGE, 0x10000, IBV_ACCESS_LOCAL_WRITE);

	must(mr);
}

static void child(void)
{
	/* A device of its own: the parent's is for the parent. */
	pd = domain_of_device();
	pairs(memory, OF_CHILD);
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	pd = domain_of_device();
	memory = pages(4 * THREADS);
	for (int n = 0; n < THREADS; n++)
		threads[n] = must_start(thread, memory + 4 * n * PAGE);
	for (int n = 0; n < THREADS; n++)
		must_join(threads[n]);
	fail();
	forget();
	in_part(child);
	if (argc > 1 && !strcmp(argv[1], "kill")) {
		/* The last block is written by a call that comes 10 ms after the one before. */
		usleep(20000);
		pairs(memory, 1);
		usleep(20000);
		pairs(memory, 1);
		raise(SIGKILL);
	}
	if (argc > 1 && !strcmp(argv[1], "_exit"))
		_exit(0);
	return 0;
}
