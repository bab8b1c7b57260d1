/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Threads register and deregister concurrently, their own regions and each other's; one has the
 * smallest stack.
 */
#include "../lib/device.h"
#include <limits.h>
#include <pthread.h>

enum { THREADS = 8, ROUNDS = 400, SLOTS = 16 };

static struct ibv_pd *pd;
static char *memory;
static struct ibv_mr *handed_over[THREADS][ROUNDS];
static pthread_barrier_t barrier;
static int failures;

static void *work(void *argument)
{
	long self = (long)argument;
	struct ibv_mr *slots[SLOTS] = { 0 };
	unsigned int random = (unsigned int)self * 7919 + 1;
	int failed = 0;

	pthread_barrier_wait(&barrier);
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr **slot = &slots[rand_r(&random) % SLOTS];
		size_t length = 1 + (size_t)rand_r(&random) % (2 * PAGE);

		if (*slot)
			failed += ibv_dereg_mr(*slot) != 0;
		*slot = ibv_reg_mr(pd, memory + self * 4 * PAGE, length, LOCAL_AND_REMOTE);
		failed += !*slot || (*slot)->length != length;
		handed_over[self][round] = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
		failed += !handed_over[self][round];
	}
	for (int n = 0; n < SLOTS; n++)
		if (slots[n])
			failed += ibv_dereg_mr(slots[n]) != 0;
	/* Regions that another thread made. */
	pthread_barrier_wait(&barrier);
	for (int round = 0; round < ROUNDS; round++)
		failed += ibv_dereg_mr(handed_over[(self + 1) % THREADS][round]) != 0;
	__atomic_add_fetch(&failures, failed, __ATOMIC_RELAXED);
	return NULL;
}

static void *once(void *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE);

	return mr && !ibv_dereg_mr(mr) ? memory : NULL;
}

/* Programs with many threads, or with coroutines, give them small stacks. */
static void with_the_smallest_stack(const char *name)
{
	pthread_attr_t attributes;
	pthread_t thread;
	void *returned;

	must(pthread_attr_init(&attributes) == 0);
	must(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
	must(pthread_create(&thread, &attributes, once, memory) == 0);
	must(pthread_join(thread, &returned) == 0);
	ok(returned == memory, "%s in a thread with a stack of %ld bytes", name, (long)PTHREAD_STACK_MIN);
}

int main(void)
{
	struct ibv_context *context = open_device();
	pthread_t threads[THREADS];
	struct rdmamr_stats now;

	pd = ibv_alloc_pd(context);
	must(pd);
	memory = pages(4 * THREADS);
	with_the_smallest_stack("the first call of a process");
	with_the_smallest_stack("a later one");
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (long n = 0; n < THREADS; n++)
		must(pthread_create(&threads[n], NULL, work, (void *)n) == 0);
	for (int n = 0; n < THREADS; n++)
		must(pthread_join(threads[n], NULL) == 0);
	is(failures, 0, "no call failed");
	now = stats();
	is((long long)now.reg_kernel, 2 + 2 * THREADS * ROUNDS, "each registration is counted");
	is((long long)now.dereg_kernel, 2 + 2 * THREADS * ROUNDS, "each deregistration is counted");
	is((long long)(now.live + now.live_bytes), 0, "none is live");
	is((long long)(now.reg_next + now.dereg_next + now.ended_elsewhere), 0, "none was forwarded, and none ended elsewhere");
	is(kernel_regions(context), 0, "the kernel has none");
	is(ibv_dealloc_pd(pd), 0, "the domain has none");
	is(ibv_close_device(context), 0, "the device is closed");
	return done_testing();
}
