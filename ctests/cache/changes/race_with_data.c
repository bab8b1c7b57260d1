/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One thread unmaps memory, and as soon as its address is free another has mapped new memory there
 * and registers it, before any thread has read the kernel's event of the unmap. The device's data
 * must land in the new page, each time. The second race is about MADV_DONTNEED, whose event comes
 * before the pages go: a region made in between has pinned pages that are going, and must not be
 * found afterwards.
 *
 * Both races run with the library's threads unchanged, and with late ones: of the lowest priority,
 * on the processor of the registering thread, which does not let them run before it has registered.
 * Without the fence the first race must then be lost, or it proves nothing. (race.c makes a million
 * rounds of it, on this machine's own kernel.)
 */
#include "../../lib/observe.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/*
 * A race takes that many rounds, or on a busy machine as many as it can in some seconds; a few in
 * any case, and as many as it takes until memory was once mapped before the call returned.
 */
enum { UNMAPS = 1500, DISCARDS = 500, CONTROL = 5000, ENOUGH = 3, SECONDS = 3, AT_LEAST = 50 };
enum way { LIBC_UNMAP, RAW_UNMAP, LIBC_DISCARD, RAW_DISCARD };

static struct pair pair;
static char *spot;
static enum way way;
static pid_t library[16], before[16];
static int threads, had;
static _Atomic long begun, done;

static void wait_for(_Atomic long *counter, long value)
{
	while (atomic_load(counter) < value)
		sched_yield();
}

static void *takes_away(void *argument)
{
	long rounds = (long)argument;
	cpu_set_t others;

	/* On another processor than the registering thread's, if there is one. */
	CPU_ZERO(&others);
	for (int n = 1; n < 1024; n++)
		CPU_SET(n, &others);
	sched_setaffinity(0, sizeof(others), &others);

	for (long round = 1; round <= rounds; round++) {
		wait_for(&begun, round);
		if (begun > rounds)
			break;
		switch (way) {
		case LIBC_UNMAP: must(munmap(spot, PAGE) == 0); break;
		case RAW_UNMAP: must(raw_munmap(spot, PAGE) == 0); break;
		case LIBC_DISCARD: must(madvise(spot, PAGE, MADV_DONTNEED) == 0); break;
		default: must(syscall(SYS_madvise, spot, PAGE, MADV_DONTNEED) == 0);
		}
		atomic_store(&done, round);
	}
	return NULL;
}

static void make_late(bool late)
{
	struct sched_param none = { 0 };
	cpu_set_t one, two;

	CPU_ZERO(&one);
	CPU_ZERO(&two);
	for (int n = 0; n < 1024; n++)
		CPU_SET(n, &two);
	CPU_SET(0, &one);
	for (int n = 0; n < threads; n++) {
		must(sched_setscheduler(library[n], late ? SCHED_IDLE : SCHED_OTHER, &none) == 0);
		must(sched_setaffinity(library[n], sizeof(one), late ? &one : &two) == 0);
	}
	must(sched_setaffinity(0, sizeof(one), late ? &one : &two) == 0);
}

/* One write by the device, of a value that no page has yet. Returns whether the program sees it. */
static int seen(struct ibv_mr *mr)
{
	static uint64_t value = 1;

	*(uint64_t *)far.out = ++value;
	must(pair_write(&pair, far.mr, far.out, 8, (uintptr_t)spot, mr->rkey) == IBV_WC_SUCCESS);
	if (pair.iwarp)
		must(pair_read(&pair, far.mr, far.in, 8, (uintptr_t)spot, mr->rkey) == IBV_WC_SUCCESS);
	return *(uint64_t *)spot == value;
}

static struct ibv_mr *registered(void)
{
	struct ibv_mr *mr = register_region(pair.pd, spot, PAGE, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

struct score {
	long rounds, in_time, stale, later;
};

static bool goes_on(double until, long round, const struct score *score)
{
	return seconds_now() < until || round <= AT_LEAST || !score->in_time;
}

/*
 * Replaces the C library's variable, by which the library sees whether the process ever had two
 * threads: it fences if so.
 */
static bool is_fenced = true;
char __libc_single_threaded;

/* The race ends after `enough` stale regions. A race that must have none runs all its rounds. */
static struct score unmapped(enum way by, long rounds, long enough)
{
	double until = seconds_now() + SECONDS;
	struct score score = { 0 };
	struct ibv_mr *mr;
	pthread_t thread;

	way = by;
	begun = done = 0;
	must(pthread_create(&thread, NULL, takes_away, (void *)rounds) == 0);
	/* pthread_create has set it to 0. */
	__libc_single_threaded = !is_fenced;
	for (long round = 1; round <= rounds && score.stale < enough; round++) {
		if (enough == rounds && !goes_on(until, round, &score))
			break;
		must(deregister_region(registered()) == 0);
		atomic_store(&begun, round);
		while (!raw_map_at(spot, PAGE))
			must(errno == EEXIST);
		score.in_time += atomic_load(&done) < round;
		mr = registered();
		score.stale += !seen(mr);
		must(deregister_region(mr) == 0);
		wait_for(&done, round);
		mr = registered();
		score.later += !seen(mr);
		must(deregister_region(mr) == 0);
		score.rounds = round;
	}
	atomic_store(&begun, rounds + 1);
	must(pthread_join(thread, NULL) == 0);
	return score;
}

static struct score discarded(enum way by, long rounds)
{
	double until = seconds_now() + SECONDS;
	struct score score = { 0 };
	struct ibv_mr *mr;
	pthread_t thread;

	way = by;
	begun = done = 0;
	must(pthread_create(&thread, NULL, takes_away, (void *)rounds) == 0);
	for (long round = 1; round <= rounds && goes_on(until, round, &score); round++) {
		*spot = 1;
		must(deregister_region(registered()) == 0);
		atomic_store(&begun, round);
		do {
			must(deregister_region(registered()) == 0);
			score.in_time += atomic_load(&done) < round;
		} while (atomic_load(&done) < round);
		mr = registered();
		score.later += !seen(mr);
		must(deregister_region(mr) == 0);
		score.rounds = round;
	}
	atomic_store(&begun, rounds + 1);
	must(pthread_join(thread, NULL) == 0);
	return score;
}

static int without_fence(void)
{
	struct score score;

	is_fenced = false;
	pair_open(&pair);
	far_open(&pair);
	spot = pages(1);
	must(lands(&pair, spot, PAGE));
	threads = new_threads(before, had, library, 16);
	make_late(true);
	score = unmapped(RAW_UNMAP, CONTROL, ENOUGH);
	printf("# without the fence, %ld of %ld rounds were stale\n", score.stale, score.rounds);
	fflush(stdout);
	return score.stale ? 42 : 0;
}

int main(int argc, char **argv)
{
	static const char *const unfenced[] = { NULL };
	struct score score;

	alarm(DEADLOCK);
	had = all_threads(before, 16);
	if (argc > 1)
		return without_fence();
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	spot = pages(3);
	spot += PAGE;
	control(&pair, "no thread unmaps", spot, PAGE);

	threads = new_threads(before, had, library, 16);
	for (int n = 0; n < 4; n++) {
		enum way by = n & 1 ? RAW_UNMAP : LIBC_UNMAP;
		char name[80];

		snprintf(name, sizeof(name), "unmapped%s%s", n & 1 ? " by raw system calls" : "",
			 n & 2 ? ", late reader" : "");
		make_late(n & 2);
		score = unmapped(by, UNMAPS, UNMAPS);
		ok(score.rounds >= AT_LEAST && (!(n & 2) || score.in_time > 0),
		   "%s: %ld rounds, in %ld mapped anew before the unmap returned",
		   name, score.rounds, score.in_time);
		is(score.stale, 0, "%s: data always landed in the new page", name);
		is(score.later, 0, "%s: and when all was quiet", name);
		control(&pair, name, spot, PAGE);
	}
	make_late(false);
	for (enum way by = LIBC_DISCARD; by <= RAW_DISCARD; by++) {
		const char *name = by == RAW_DISCARD ? "discarded by raw system calls" : "discarded";

		score = discarded(by, DISCARDS);
		ok(score.rounds >= AT_LEAST && score.in_time > 0,
		   "%s: %ld rounds, registered %ld times before the call returned",
		   name, score.rounds, score.in_time);
		is(score.later, 0, "%s: data always landed in the page that replaced it", name);
		control_later(&pair, name, spot, PAGE);
	}
	is(once_more("unfenced", unfenced), 42, "without the fence there are stale regions, so the race is real");
	return relaxed_close(&pair);
}
