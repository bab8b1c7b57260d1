/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A handler registers and deregisters while it interrupts a thread that does the same. Only the
 * library is under test: the interrupted thread must not be inside malloc, which no handler may
 * enter, and it is not, since the library reuses its objects in steady state.
 */
#include "../lib/device.h"
#include "../lib/program.h"
#include <signal.h>
#include <sys/time.h>

enum { ROUNDS = 30000, WARM = 3000 };

static struct ibv_pd *pd;
static char *memory;
static volatile int handled, wrong;

static void handler(int signal)
{
	int err = errno;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);

	(void)signal;
	wrong += !mr || ibv_dereg_mr(mr) != 0;
	handled++;
	errno = err;
}

static void rounds(int count)
{
	for (int round = 0; round < count; round++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

int main(void)
{
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { 0 };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct ibv_context *context = open_device();

	pd = ibv_alloc_pd(context);
	must(pd);
	memory = pages(2);
	rounds(WARM);
	alarm(DEADLOCK);
	must(sigaction(SIGALRM, &action, NULL) == 0);
	must(sigaction(SIGPROF, &action, NULL) == 0);
	must(setitimer(ITIMER_PROF, &often, NULL) == 0);
	for (int tries = 0; tries < 10 && handled <= 100; tries++)
		rounds(ROUNDS);
	must(setitimer(ITIMER_PROF, &never, NULL) == 0);
	ok(handled > 100, "the handler ran %d times", handled);
	is(wrong, 0, "and all its calls succeeded");
	is((long long)stats().live, 0, "no region is left");
	is(kernel_regions(context), 0, "nor in the kernel");
	printf("# inside the library, and forwarded: %llu\n", (unsigned long long)stats().reg_next);
	return done_testing();
}
