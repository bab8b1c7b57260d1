/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A child touches none of its parent's regions, and starts anew with its own device. */
#include "../lib/pair.h"
#include "../lib/program.h"

static struct pair pair;
static struct ibv_mr *source, *target;
static char *local, *remote;

static void parent_works(const char *when)
{
	memset(local, when[0], 64);
	is(pair_write(&pair, source, local, 64, (uintptr_t)remote, target->rkey), IBV_WC_SUCCESS,
	   "the parent's regions work after a child that %s", when);
	ok(remote[0] == when[0] && stats().live == 2, "and its table is whole");
}

/* A child that registers memory of its own on a device of its own. Returns a bit for each failure. */
static int child_registers(void)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	char *memory = pages(1);
	int wrong = 0;

	wrong |= (stats().reg_kernel != 0 || stats().live != 0) << 0;
	context = open_device();
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	wrong |= (!mr || stats().reg_kernel != 1 || stats().reg_next != 0) << 1;
	wrong |= (ibv_dereg_mr(mr) != 0 || stats().live != 0) << 2;
	wrong |= (ibv_dealloc_pd(pd) != 0 || ibv_close_device(context) != 0) << 3;
	return wrong;
}

static volatile int stop;

static void *busy(void *argument)
{
	char *memory = pages(1);

	(void)argument;
	while (!stop) {
		struct ibv_mr *mr = ibv_reg_mr(pair.pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
	return NULL;
}

int main(void)
{
	pthread_t thread;
	pid_t pid;
	int wrong = 0;

	local = pages(1);
	remote = pages(1);
	pair_open(&pair);
	source = ibv_reg_mr(pair.pd, local, PAGE, IBV_ACCESS_LOCAL_WRITE);
	target = ibv_reg_mr(pair.pd, remote, PAGE, LOCAL_AND_REMOTE);
	must(source && target);

	pid = must_fork();
	if (!pid)
		exit(0); /* with all destructors */
	is(child_status(pid), 0, "a child exits");
	parent_works("exits");

	pid = must_fork();
	if (!pid)
		exit(child_registers());
	is(child_status(pid), 0, "the library registers for a child on a device of its own");
	parent_works("registers");

	/*
	 * The child shares the parent's file: this ends the parent's region, as it would without the
	 * library.
	 */
	pid = must_fork();
	if (!pid) {
		struct ibv_mr *mr = source;

		exit(ibv_dereg_mr(mr) == 0 && stats().dereg_kernel == 0 && stats().dereg_next == 1 ? 0 : 1);
	}
	is(child_status(pid), 0, "a child deregisters its parent's region by libibverbs");
	is(ibv_dereg_mr(source), ENOENT, "then the kernel does not have it any more");

	/* A lock that another thread holds while this one forks must not block the child. */
	thread = must_start(busy, NULL);
	for (int n = 0; n < 50; n++) {
		pid = must_fork();
		if (!pid) {
			alarm(DEADLOCK);
			_exit(n % 10 ? 0 : child_registers());
		}
		wrong += child_status(pid) != 0;
	}
	stop = 1;
	pthread_join(thread, NULL);
	is(wrong, 0, "children of a parent that registers in another thread");
	return done_testing();
}
