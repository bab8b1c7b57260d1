/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times the recording of calls (RDMAMR_TRACE) on this machine's processor: pairs of a registration
 * and a deregistration, each served by the cache, by one thread or by several, with a stub of a
 * device (ctests/lib/stub_device.h). A hit is the cheapest call of all, so the cost shows.
 *
 * Usage: trace THREADS [DEPTH]. Prints the ns of a call: the median over the threads of each
 * thread's median over its batches. DEPTH is the number of functions on the stack above the one
 * that registers.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "../ctests/lib/stub_device.h"
#include "median.h"
#include "bench.h"

enum { PAGE = 4096, BATCHES = 41, PAIRS = 20000, MOST = 16 };

struct thread {
	pthread_t id;
	char *memory;
	double ns;
};

/* Processor time, so that other load on the machine does not count. */
static double now(void) { return clock_of(CLOCK_THREAD_CPUTIME_ID); }

static int depth;

static void calls(struct thread *thread)
{
	double times[BATCHES];

	for (int batch = 0; batch < BATCHES; batch++) {
		double start = now();

		for (int n = 0; n < PAIRS; n++) {
			struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), thread->memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

			if (!mr || ibv_dereg_mr_relaxed(mr)) {
				perror("trace");
				exit(1);
			}
		}
		times[batch] = (now() - start) / (2 * PAIRS);
	}
	thread->ns = median(times, BATCHES);
}

/* The empty statement after its call keeps the compiler from making the call a jump. */
static __attribute__((noinline)) void deeper(struct thread *thread, int left)
{
	if (left > 0)
		deeper(thread, left - 1);
	else
		calls(thread);
	__asm__ volatile("");
}

static void *begin(void *thread)
{
	deeper(thread, depth);
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	struct thread threads[MOST];
	double times[MOST];

	depth = argc > 2 ? atoi(argv[2]) : 0;
	const char *why = ibv_reg_mr_relaxed ? stub_open(STUB_NOTHING) : "the library is not loaded";

	if (why || count < 1 || count > MOST) {
		fprintf(stderr, "trace: %s\n", why ? why : "1 to 16 threads");
		return 1;
	}
	for (int n = 0; n < count; n++) {
		threads[n].memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (threads[n].memory == MAP_FAILED || pthread_create(&threads[n].id, NULL, begin, &threads[n])) {
			perror("trace");
			return 1;
		}
	}
	for (int n = 0; n < count; n++) {
		pthread_join(threads[n].id, NULL);
		times[n] = threads[n].ns;
	}
	printf("%.1f\n", median(times, count));
	return 0;
}
