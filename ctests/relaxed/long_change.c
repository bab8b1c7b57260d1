/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A call that changes memory can take long. While one is under way nothing of the pool is used: a
 * registration waits a moment, and then goes past the pool. Whether it waited too short or long
 * enough, the program gets one region, and nobody keeps another for it.
 *
 * The call is a truncate(2) of a file with a lease, fcntl(2): it waits until the lease is given up.
 */
#include "../lib/observe.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { LENGTH = 4 * PAGE, ROUNDS = 300 };

static struct pair pair;
static char path[] = "/tmp/rdmamr-lease-XXXXXX";
static int leased = -1;

static void *cut(void *argument)
{
	(void)argument;
	must(truncate(path, 0) == 0);
	return NULL;
}

static void *give_up_lease(void *delay)
{
	const double *seconds = delay;
	useconds_t microseconds = (useconds_t)(*seconds * 1e6);

	must(usleep(microseconds) == 0);
	must(fcntl(leased, F_SETLEASE, F_UNLCK) == 0);
	return NULL;
}

/* Brings the pool up to date soon after the call is over, as the other threads of a program do. */
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
 * The key of the region that the pool has for the memory. By its second use the pool knows that it
 * is of no file.
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
 * Registers while a call is under way for so many seconds more. Whether the pool served it, and how
 * long it took.
 */
static bool register_beside(char *memory, double seconds, double *took)
{
	uint32_t kept = key_of_kept(memory);
	pthread_t cutting, giving_up;
	struct ibv_mr *mr;
	double began;
	bool hit;

	must(fcntl(leased, F_SETLEASE, F_RDLCK) == 0);
	must(pthread_create(&cutting, NULL, cut, NULL) == 0);
	/* What a lease is about to become, once somebody waits for it. */
	while (fcntl(leased, F_GETLEASE) == F_RDLCK)
		sched_yield();
	must(pthread_create(&giving_up, NULL, give_up_lease, &seconds) == 0);
	began = seconds_now();
	mr = register_region(pair.pd, memory, LENGTH, LOCAL_AND_REMOTE);
	*took = seconds_now() - began;
	must(mr);
	must(pthread_join(giving_up, NULL) == 0 && pthread_join(cutting, NULL) == 0);
	must(all_lands(&pair, mr, memory, LENGTH, true));
	hit = mr->lkey == kept;
	must(deregister_region(mr) == 0);
	return hit;
}

int main(void)
{
	char *memory = pages(LENGTH / PAGE);
	int fd = mkostemp(path, O_CLOEXEC), hits = 0;
	atomic_bool ends = false;
	double patience, took;
	pthread_t other;

	must(fd >= 0 && close(fd) == 0);
	leased = open(path, O_RDONLY | O_CLOEXEC);
	must(leased >= 0 && signal(SIGIO, SIG_IGN) != SIG_ERR);
	if (fcntl(leased, F_SETLEASE, F_RDLCK))
		skip_all("/tmp has no leases: nothing here takes as long as is wanted");
	must(fcntl(leased, F_SETLEASE, F_UNLCK) == 0);
	relaxed_open(&pair);

	is(register_beside(memory, 0.8, &patience), false, "beside what takes long a registration goes past the pool");
	ok(patience < 0.8, "before that is over");
	must(pthread_create(&other, NULL, use_other_memory, &ends) == 0);
	/* What just ends in time is made to take longer, and what does not, less long. */
	for (int n = 0; n < ROUNDS; n++) {
		bool hit = register_beside(memory, patience, &took);

		hits += hit;
		patience *= hit ? 1.04 : 0.96;
		patience = patience > 0.5 ? 0.5 : patience;
	}
	ends = true;
	must(pthread_join(other, NULL) == 0);
	ok(hits > 0 && hits < ROUNDS, "around the end of its patience: %d hits, %d past the pool", hits, ROUNDS - hits);
	must(unlink(path) == 0);
	return relaxed_close(&pair);
}
