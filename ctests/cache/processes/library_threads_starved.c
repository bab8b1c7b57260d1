/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The library's threads do not run for a while: a debugger holds them, or a real-time thread has
 * their processor. Until they run, an unmap may take its time, but no registration meanwhile or
 * afterwards is stale.
 */
#include "../../lib/observe.h"
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

enum { MOST = 64, STARVED_MS = 300, ROUNDS = 3 };

static struct pair pair;
static char *spot, *elsewhere;
static pid_t library[MOST]; /* its threads */
static int threads;

/* 1. A debugger. */

static pid_t debugger;

static void hold(void)
{
	int ready[2], go[2];
	char byte = 0;

	must(pipe2(ready, O_CLOEXEC) == 0 && pipe2(go, O_CLOEXEC) == 0);
	debugger = fork();
	must(debugger >= 0);
	if (!debugger) {
		bool good = read(go[0], &byte, 1) == 1;

		alarm(DEADLOCK);
		for (int n = 0; good && n < threads; n++)
			good = ptrace(PTRACE_SEIZE, library[n], NULL, NULL) == 0 &&
			       ptrace(PTRACE_INTERRUPT, library[n], NULL, NULL) == 0 &&
			       waitpid(library[n], NULL, __WALL) == library[n];
		byte = good;
		if (write(ready[1], &byte, 1) != 1)
			_exit(1);
		usleep(STARVED_MS * 1000);
		_exit(good ? 0 : 1); /* its end lets them go */
	}
	prctl(PR_SET_PTRACER, debugger);
	must(write(go[1], &byte, 1) == 1 && read(ready[0], &byte, 1) == 1);
	must(byte);
	close(ready[0]);
	close(ready[1]);
	close(go[0]);
	close(go[1]);
}

static void let_go(void)
{
	int status;

	must(waitpid(debugger, &status, 0) == debugger && status == 0);
}

/* 2. A real-time thread on the one processor that they may use. */

static pthread_t spinner;
static volatile int spinning;

static void *spins(void *argument)
{
	double until = seconds_now() + STARVED_MS / 1e3;

	spinning = 1;
	while (seconds_now() < until)
		;
	return argument;
}

static void occupy(void)
{
	struct sched_param priority = { .sched_priority = 10 };
	pthread_attr_t attr;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(1, &one);
	for (int n = 0; n < threads; n++)
		must(sched_setaffinity(library[n], sizeof(one), &one) == 0);
	pthread_attr_init(&attr);
	must(pthread_attr_setaffinity_np(&attr, sizeof(one), &one) == 0);
	must(pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED) == 0);
	must(pthread_attr_setschedpolicy(&attr, SCHED_FIFO) == 0);
	must(pthread_attr_setschedparam(&attr, &priority) == 0);
	spinning = 0;
	must(pthread_create(&spinner, &attr, spins, NULL) == 0);
	while (!spinning)
		usleep(100);
}

static void vacate(void)
{
	must(pthread_join(spinner, NULL) == 0);
}

/* The changes that are made meanwhile. */

static void *unmaps(void *argument)
{
	must(raw_munmap(spot, PAGE) == 0);
	return argument;
}

static void meanwhile(const char *name, void (*starve)(void), void (*end)(void))
{
	int stale = 0, waited = 0;
	pthread_t thread;
	double start;

	for (int round = 0; round < ROUNDS; round++) {
		if (round == 2) /* after the changes of the last round */
			control_later(&pair, name, spot, PAGE);
		else
			control(&pair, name, spot, PAGE);
		must(lands(&pair, elsewhere, PAGE));
		/*
		 * Another thread unmaps, and waits for the threads that do not run; this one uses the
		 * address that it has unmapped.
		 */
		starve();
		must(pthread_create(&thread, NULL, unmaps, NULL) == 0);
		while (!raw_map_at(spot, PAGE))
			must(errno == EEXIST);
		stale += !lands(&pair, spot, PAGE);
		stale += !lands(&pair, elsewhere, PAGE);
		end();
		must(pthread_join(thread, NULL) == 0);
		stale += !lands(&pair, spot, PAGE);

		/* This thread waits for them by itself. */
		control(&pair, name, spot, PAGE);
		starve();
		start = seconds_now();
		switch (round) {
		case 0: raw_remap(spot, PAGE); break;
		case 1: must(syscall(SYS_madvise, spot, PAGE, MADV_DONTNEED) == 0); break;
		default: remap(spot, PAGE);
		}
		waited += (int)((seconds_now() - start) * 1000);
		stale += !lands(&pair, spot, PAGE);
		end();
		stale += !lands(&pair, spot, PAGE);
	}
	is(stale, 0, "%s: data always landed in the current page", name);
	printf("# %d changes took %d ms\n", ROUNDS, waited);
	control(&pair, name, elsewhere, PAGE);
	control(&pair, name, spot, PAGE);
}

int main(int argc, char **argv)
{
	pid_t before[MOST];
	int had, best = sched_get_priority_max(SCHED_FIFO);
	cpu_set_t zero, all;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	had = all_threads(before, MOST);
	relaxed_open(&pair);
	spot = pages(3);
	elsewhere = pages(1);
	spot += PAGE;
	control(&pair, "no thread is starved", spot, PAGE);
	threads = new_threads(before, had, library, MOST);
	ok(threads > 0, "the library has %d threads", threads);

	meanwhile("a debugger holds them", hold, let_go);
	must(sched_getaffinity(0, sizeof(all), &all) == 0);
	CPU_ZERO(&zero);
	CPU_SET(0, &zero);
	if (CPU_COUNT(&all) < 2 || !CPU_ISSET(0, &all) || !CPU_ISSET(1, &all)) {
		skip("a real-time thread has their processor", "it takes processors 0 and 1");
	} else if (sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ .sched_priority = best })) {
		skip("a real-time thread has their processor", "no real-time threads for this user");
	} else {
		must(sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){ 0 }) == 0);
		must(sched_setaffinity(0, sizeof(zero), &zero) == 0);
		meanwhile("a real-time thread has their processor", occupy, vacate);
		must(sched_setaffinity(0, sizeof(all), &all) == 0);
	}
	return relaxed_close(&pair);
}
