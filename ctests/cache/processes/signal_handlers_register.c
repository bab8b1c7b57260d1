/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A handler changes the address space or registers, while it interrupts a thread inside the library
 * that does the same: no deadlock, no failed call, no stale region. The handler enters no function
 * that a handler may not enter, and where it registers, the interrupted thread only hits, which
 * allocates nothing.
 */
#include "../../lib/observe.h"
#include <signal.h>
#include <sys/time.h>

enum { SLOTS = 8, SECONDS = 3, AT_LEAST = 50 };

static struct pair pair;
static char *memory; /* SLOTS pages that both use, each between pages that neither uses */
static volatile int handled, wrong;

static char *slot(int n)
{
	return memory + (n % SLOTS) * 2 * PAGE;
}

static void changes(int signal)
{
	int err = errno, n = handled++;
	char *at = slot(n / 5);

	(void)signal;
	switch (n % 5) {
	case 0:
		wrong += munmap(at, PAGE) != 0;
		wrong += mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at;
		break;
	case 1:
		wrong += raw_munmap(at, PAGE) != 0 || raw_map_at(at, PAGE) != at;
		break;
	case 2:
		wrong += madvise(at, PAGE, MADV_DONTNEED) != 0;
		break;
	case 3:
		wrong += mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at;
		break;
	default:
		wrong += syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) != 0;
	}
	errno = err;
}

static void registers(int signal)
{
	int err = errno;
	/* In turn a region of its own, and one that the interrupted thread uses too. */
	char *at = handled % 2 ? slot(0) : memory + 2 * SLOTS * PAGE;
	struct ibv_mr *mr = register_region(pair.pd, at, PAGE, LOCAL_AND_REMOTE);

	(void)signal;
	wrong += !mr || mr->addr != at || deregister_region(mr) != 0;
	handled++;
	errno = err;
}

static void changes_and_registers(int signal)
{
	int err = errno;
	char *at = memory + 2 * SLOTS * PAGE;
	struct ibv_mr *mr;

	(void)signal;
	if (handled % 2) {
		wrong += munmap(at, PAGE) != 0;
		wrong += mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at;
	} else {
		wrong += raw_munmap(at, PAGE) != 0 || raw_map_at(at, PAGE) != at;
	}
	mr = register_region(pair.pd, at, PAGE, LOCAL_AND_REMOTE);
	wrong += !mr || deregister_region(mr) != 0;
	handled++;
	errno = err;
}

static void interrupted(const char *name, void (*handler)(int), int slots)
{
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { 0 };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	int rounds = 0, failed = 0, stale = 0;
	struct rdmamr_stats before;
	double until = seconds_now() + SECONDS;
	sigset_t timer;

	sigemptyset(&timer);
	sigaddset(&timer, SIGPROF);
	handled = wrong = 0;
	for (int n = 0; n < slots + 1; n++)
		must(lands(&pair, n < slots ? slot(n) : memory + 2 * SLOTS * PAGE, PAGE));
	before = stats();
	must(sigaction(SIGPROF, &action, NULL) == 0);
	must(setitimer(ITIMER_PROF, &often, NULL) == 0);
	for (; seconds_now() < until || handled <= AT_LEAST; rounds++) {
		char *at = slot(rounds % slots);
		struct ibv_mr *mr = register_region(pair.pd, at, PAGE, LOCAL_AND_REMOTE), *again;

		again = register_region(pair.pd, at, PAGE, LOCAL_AND_REMOTE);
		failed += !mr || !again || mr == again;
		failed += mr && deregister_region(mr) != 0;
		failed += again && deregister_region(again) != 0;
		if (rounds % 100)
			continue;
		/* If the handler changed memory while data moves, that would be the program's own mistake. */
		must(sigprocmask(SIG_BLOCK, &timer, NULL) == 0);
		stale += !lands(&pair, at, PAGE);
		must(sigprocmask(SIG_UNBLOCK, &timer, NULL) == 0);
	}
	must(setitimer(ITIMER_PROF, &never, NULL) == 0);
	must(signal(SIGPROF, SIG_IGN) != SIG_ERR);
	show(before, stats());
	ok(handled > AT_LEAST, "%s: the handler ran %d times in %d rounds", name, handled, rounds);
	is(wrong, 0, "%s: all its calls succeeded", name);
	is(failed, 0, "%s: and all calls of the interrupted thread", name);
	is(stale, 0, "%s: data always landed", name);
	for (int n = 0; n <= SLOTS; n++)
		stale += !lands(&pair, n < SLOTS ? slot(n) : memory + 2 * SLOTS * PAGE, PAGE);
	is(stale, 0, "%s: and lands everywhere after it", name);
	control_later(&pair, name, slot(0), PAGE);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	relaxed_open(&pair);
	memory = pages(2 * SLOTS + 1);
	interrupted("a handler that changes the address space", changes, SLOTS);
	interrupted("a handler that registers", registers, 4);
	interrupted("a handler that does both", changes_and_registers, 4);
	return relaxed_close(&pair);
}
