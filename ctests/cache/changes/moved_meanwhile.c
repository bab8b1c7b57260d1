/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One thread moves registered memory by mremap. Another sees its data at the new address and
 * registers the old one, all before mremap has returned: no region of the moved pages may serve it.
 *
 * This does not hold for a raw system call (docs/limits.md): the kernel moves the pages before it
 * marks the change as in flight. The test prints how often the race is lost, and judges it only if
 * the service "rdmamr fence" has the kernel count the change before the move.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { ROUNDS = 60, HUGE = 2 << 20 };
static const size_t SIZE = 64UL << 20;

static bool raw;
static char *from, *to;
static _Atomic int go, done;
static sigjmp_buf out;

static struct ibv_mr *reg(void *memory)
{
	return ibv_reg_mr_relaxed(stub_pd(), memory, SIZE, LOCAL_AND_REMOTE);
}

static void *mover(void *argument)
{
	const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;

	(void)argument;
	go = 1;
	must((raw ? (void *)syscall(SYS_mremap, from, SIZE, SIZE, flags, to) : mremap(from, SIZE, SIZE, flags, to)) == to);
	done = 1;
	return NULL;
}

static void leave(int number)
{
	(void)number;
	siglongjmp(out, 1);
}

/* Whether the page is there. An access to a missing page waits until mremap has returned. */
static bool sees(volatile const char *page)
{
	return sigsetjmp(out, 1) ? false : *page == 7;
}

/* An address to which page tables cannot move as a whole: it begins at another page of its 2 MiB. */
static void places(void)
{
	char *room = new_place(2 * (SIZE + 2 * HUGE));

	from = (char *)(((uintptr_t)room + HUGE) & ~(uintptr_t)(HUGE - 1));
	to = from + SIZE + HUGE + PAGE;
	fresh_at(from, SIZE);
	must(madvise(from, SIZE, MADV_NOHUGEPAGE) == 0);
	memset(from, 7, SIZE);
}

/* Memory with an idle region that has been reused. */
static void prepare(void)
{
	struct ibv_mr *mr;

	places();
	for (int n = 0; n < 2; n++)
		must((mr = reg(from)) && ibv_dereg_mr_relaxed(mr) == 0);
}

/* The seconds that the kernel takes, with no other thread beside it. */
static double alone(void)
{
	double begun;

	places();
	begun = seconds_now();
	mover(NULL);
	begun = seconds_now() - begun;
	must(munmap(to, SIZE) == 0);
	return begun;
}

struct counts { int seen, hits, stale; };

static struct counts race(void)
{
	struct counts counts = { 0 };
	double length = alone();

	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr *mr;
		pthread_t thread;
		long registered;
		double begun;
		bool seen;

		prepare();
		go = done = 0;
		must(pthread_create(&thread, NULL, mover, NULL) == 0);
		while (!go)
			sched_yield();
		do {
			begun = seconds_now();
			while (seconds_now() < begun + length * (round % 20) / 20)
				continue;
			seen = sees(to);
			/* The library's mremap has work to do before the kernel moves the pages. */
		} while (!raw && !seen && !done);
		if (seen && !done) {
			counts.seen++;
			registered = stub_registered();
			mr = reg(from);
			if (mr && stub_registered() == registered) {
				counts.hits++;
				/* The device writes to the pages that moved. */
				counts.stale += stub_write(&(struct ibv_mr){ .addr = from, .length = 1, .lkey = mr->lkey }, 9) == 0 &&
						((volatile char *)to)[0] == 9;
			}
			if (mr)
				must(ibv_dereg_mr_relaxed(mr) == 0);
		}
		must(pthread_join(thread, NULL) == 0 && munmap(to, SIZE) == 0);
	}
	return counts;
}

int main(int argc, char **argv)
{
	struct counts counts;
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE_BYTES", "1G");
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	must(ibv_dereg_mr_relaxed(ibv_reg_mr_relaxed(stub_pd(), pages(1), PAGE, LOCAL_AND_REMOTE)) == 0);
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	must(signal(SIGSEGV, leave) != SIG_ERR);
	counts = race();
	is(counts.stale, 0, "mremap: of %d registrations of the old address, none gets a region of the pages that moved", counts.seen);
	raw = true;
	counts = race();
	printf("# a raw mremap: of %d registrations of the old address %d got a region, and %d one of the pages that moved\n",
	       counts.seen, counts.hits, counts.stale);
	if (stats().fence_asked)
		is(counts.stale, 0, "with the service none gets a region of the pages that moved by a raw mremap");
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(stub_registered() - stub_deregistered(), 0, "the device has no region left");
	return done_testing();
}
