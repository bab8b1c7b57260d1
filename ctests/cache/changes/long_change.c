/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A call that changes memory can take long. While one is under way the cache reuses no region: a
 * registration waits a moment, and then bypasses the cache. Whether it waited long enough or not,
 * the program gets one region, and no other user holds it.
 *
 * The call is an mremap(2) that gives up the memory behind the region. Another userfaultfd watches
 * that memory: the call waits until its event is read.
 */
#include "../../lib/observe.h"
#include <pthread.h>
#include <stdatomic.h>

enum { LENGTH = 4 * PAGE, ROUNDS = 300 };

static struct pair pair;
static int watch;
static atomic_bool returned;

static void open_watch(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_EVENT_UNMAP };

	watch = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	must(watch >= 0 && ioctl(watch, UFFDIO_API, &api) == 0);
}

/* Watched pages behind the memory. */
static void grow(char *memory)
{
	struct uffdio_register tail = { .range = { .start = (uintptr_t)memory + LENGTH, .len = PAGE },
					.mode = UFFDIO_REGISTER_MODE_MISSING };

	fresh_at(memory + LENGTH, PAGE);
	must(ioctl(watch, UFFDIO_REGISTER, &tail) == 0);
}

static void *shrink(void *memory)
{
	must(mremap(memory, LENGTH + PAGE, LENGTH, 0) == memory);
	return NULL;
}

/*
 * Ends the call: after that many seconds, or, if the number is negative, when the registration has
 * returned.
 */
static void *read_event(void *delay)
{
	const double *seconds = delay;
	struct uffd_msg message;

	if (*seconds >= 0)
		must(usleep((useconds_t)(*seconds * 1e6)) == 0);
	else
		while (!returned)
			sched_yield();
	must(read(watch, &message, sizeof(message)) == sizeof(message));
	must(message.event == UFFD_EVENT_UNMAP);
	return NULL;
}

/* The call has begun: its memory is gone. */
static void wait_until_gone(char *memory)
{
	unsigned char there;

	while (mincore(memory, PAGE, &there) == 0)
		sched_yield();
	must(errno == ENOMEM);
}

/*
 * Brings the cache up to date soon after the call has returned, as the other threads of a program
 * do.
 */
static void *use_other_memory(void *argument)
{
	atomic_bool *ends = argument;
	char *memory = pages(1);

	while (!*ends) {
		struct ibv_mr *mr = register_region(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && deregister_region(mr) == 0);
	}
	return NULL;
}

/*
 * The key of the region that the cache has for the memory. By its second use the cache knows the
 * kind of the memory.
 */
static uint32_t key_of_kept(char *memory)
{
	uint32_t keys[2];

	do {
		for (int n = 0; n < 2; n++) {
			struct ibv_mr *mr = register_region(pair.pd, memory, LENGTH, LOCAL_AND_REMOTE);

			must(mr);
			keys[n] = mr->lkey;
			must(deregister_region(mr) == 0);
		}
	} while (keys[0] != keys[1]);
	return keys[0];
}

/*
 * Registers while a call is under way for that many seconds more. Returns whether the cache served
 * it, and the time that it took.
 */
static bool register_beside(char *memory, double seconds, double *took)
{
	uint32_t kept = key_of_kept(memory);
	pthread_t shrinking, reading;
	struct ibv_mr *mr;
	double began;
	bool hit;

	returned = false;
	grow(memory);
	must(pthread_create(&shrinking, NULL, shrink, memory) == 0);
	wait_until_gone(memory + LENGTH);
	must(pthread_create(&reading, NULL, read_event, &seconds) == 0);
	began = seconds_now();
	mr = register_region(pair.pd, memory, LENGTH, LOCAL_AND_REMOTE);
	*took = seconds_now() - began;
	returned = true;
	must(mr);
	must(pthread_join(reading, NULL) == 0 && pthread_join(shrinking, NULL) == 0);
	must(all_lands(&pair, mr, memory, LENGTH, true));
	hit = mr->lkey == kept;
	must(deregister_region(mr) == 0);
	return hit;
}

int main(void)
{
	char *memory = new_place(LENGTH + PAGE);
	int hits = 0;
	atomic_bool ends = false;
	double patience, took;
	pthread_t other;

	relaxed_open(&pair);
	fresh_at(memory, LENGTH);
	open_watch();

	is(register_beside(memory, -1, &patience), false, "beside a call that does not end, a registration bypasses the cache");
	patience = patience > 0.5 ? 0.5 : patience;
	must(pthread_create(&other, NULL, use_other_memory, &ends) == 0);
	/* A call that just ends in time is made longer, one that does not is made shorter. */
	for (int n = 0; n < ROUNDS; n++) {
		bool hit = register_beside(memory, patience, &took);

		hits += hit;
		patience *= hit ? 1.04 : 0.96;
		patience = patience > 0.5 ? 0.5 : patience;
	}
	ends = true;
	must(pthread_join(other, NULL) == 0);
	ok(hits > 0 && hits < ROUNDS, "around its time limit: %d hits, %d bypassed the cache", hits, ROUNDS - hits);
	must(close(watch) == 0);
	return relaxed_close(&pair);
}
