/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A call that changes memory can take long. While one is under way the cache reuses no region: a
 * registration bypasses it. The program gets one region, and no other user holds it.
 *
 * The call is an mremap(2) that gives up the memory behind the region. Another userfaultfd watches
 * that memory: the call waits until its event is read.
 */
#include "../../lib/observe.h"
#include <pthread.h>
#include <stdatomic.h>

enum { LENGTH = 4 * PAGE, ROUNDS = 50 };

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

/* Ends the call when the registration has returned. */
static void *read_event(void *argument)
{
	struct uffd_msg message;

	while (!returned)
		sched_yield();
	must(read(watch, &message, sizeof(message)) == sizeof(message));
	must(message.event == UFFD_EVENT_UNMAP);
	return argument;
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

/* Registers while a call is under way. Returns whether the cache served it. */
static bool register_beside(char *memory)
{
	uint32_t kept = key_of_kept(memory);
	pthread_t shrinking, reading;
	struct ibv_mr *mr;
	bool hit;

	returned = false;
	grow(memory);
	must(pthread_create(&shrinking, NULL, shrink, memory) == 0);
	wait_until_gone(memory + LENGTH);
	must(pthread_create(&reading, NULL, read_event, NULL) == 0);
	mr = register_region(pair.pd, memory, LENGTH, LOCAL_AND_REMOTE);
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
	pthread_t other;

	relaxed_open(&pair);
	fresh_at(memory, LENGTH);
	open_watch();

	must(pthread_create(&other, NULL, use_other_memory, &ends) == 0);
	for (int n = 0; n < ROUNDS; n++)
		hits += register_beside(memory);
	ends = true;
	must(pthread_join(other, NULL) == 0);
	is(hits, 0, "beside a call that does not end, %d registrations bypass the cache", ROUNDS);
	must(close(watch) == 0);
	return relaxed_close(&pair);
}
