/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program with a userfaultfd of its own takes fresh memory, where regions of the cache were until
 * just now and beside regions that are just ending. The kernel gives memory to one userfaultfd: the
 * program never gets EBUSY, since the cache takes no memory but that of regions; and its watch
 * stays, since the cache ends no watch but its own, even on kernels that let one file end another's
 * (before 6.16).
 *
 * The device is the stand-in (stub_device.h).
 *
 * Usage: another_watches_fresh_memory [ROUNDS]
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/stub_device.h"

enum { CHUNK = 2 << 20, LENGTH = 4 * PAGE };
/* Far from where the kernel puts mappings by itself, so that no other mapping lands there. */
static char *const place = (char *)0x10000000000;
static int own;
static _Atomic long rounds_done, busy, events;
static _Atomic bool stop;

static void *reader(void *argument)
{
	while (!stop) {
		struct pollfd ready = { .fd = own, .events = POLLIN };
		struct uffd_msg message;

		if (poll(&ready, 1, 50) == 1 && read(own, &message, sizeof(message)) == sizeof(message))
			events++;
	}
	return argument;
}

static char *fresh(char *at, size_t length)
{
	char *memory = mmap(at, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE, -1, 0);

	must(memory == at);
	return memory;
}

static void cache_uses(char *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);

	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
}

/* The other's: true if the kernel gives it the memory. */
static bool own_takes(char *memory, size_t length)
{
	struct uffdio_register take = {
		.range = { (uintptr_t)memory, length }, .mode = UFFDIO_REGISTER_MODE_WP,
	};

	/* On one processor, too, other threads get a chance to be in the middle of something. */
	sched_yield();
	if (!ioctl(own, UFFDIO_REGISTER, &take))
		return true;
	must(errno == EBUSY);
	busy++;
	return false;
}

/*
 * Whether the reader has counted another event. The unmap has returned, so the reader has read the
 * event, and the count comes right after. If the event was never sent, the wait ends, and the test
 * fails.
 */
static bool hears(long heard)
{
	for (int waits = 0; events == heard && waits < 30000; waits++)
		waits < 1000 ? sched_yield() : usleep(1000);
	return events != heard;
}

/* The cache and the program's own userfaultfd have the same place in turn. */
static void in_turn(long rounds)
{
	long heard, lost = 0, taken = 0;

	for (long round = 0; round < rounds; round++) {
		cache_uses(fresh(place, LENGTH), LENGTH);
		must(munmap(place, LENGTH) == 0);
		heard = events;
		if (own_takes(fresh(place, LENGTH), LENGTH)) {
			taken++;
			must(munmap(place, LENGTH) == 0);
			lost += !hears(heard);
		} else {
			must(munmap(place, LENGTH) == 0);
		}
		rounds_done++;
	}
	is(busy, 0, "the program gets its own memory each time, of %ld", rounds);
	is(lost, 0, "and sees each unmap, of %ld", taken);
}

/* In a thread, on the other side of a gap in the chunk: regions end and start beside it. */
static void *beside(void *argument)
{
	char *memory = place + CHUNK / 2;
	long *lost = argument;

	while (!stop) {
		long heard = events;

		if (own_takes(fresh(memory, LENGTH), LENGTH)) {
			must(munmap(memory, LENGTH) == 0);
			*lost += !hears(heard);
		} else {
			must(munmap(memory, LENGTH) == 0);
		}
		rounds_done++;
	}
	return NULL;
}

static void flushed_beside(long rounds)
{
	pthread_t thread;
	long lost = 0;

	busy = 0;
	rounds_done = 0;
	must(pthread_create(&thread, NULL, beside, &lost) == 0);
	fresh(place, LENGTH);
	while (rounds_done < rounds) {
		cache_uses(place, LENGTH);
		must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	}
	stop = true;
	must(pthread_join(thread, NULL) == 0);
	must(munmap(place, LENGTH) == 0);
	is(busy, 0, "so does a thread beside regions that are flushed, of %ld", rounds_done);
	is(lost, 0, "and sees each unmap");
}

/*
 * Small regions in one chunk, of which one stays when the others are flushed: then mappings stay
 * split, and the end of any later region joins them.
 */
static void make_pieces(void)
{
	enum { COUNT = 40 };
	struct ibv_mr *regions[COUNT], *last;
	char *memory = fresh(place + 4 * CHUNK, CHUNK);

	for (int n = 0; n < COUNT; n++)
		must(regions[n] = ibv_reg_mr_relaxed(stub_pd(), memory + 3 * n * PAGE, PAGE, LOCAL_AND_REMOTE));
	must(last = ibv_reg_mr_relaxed(stub_pd(), memory + CHUNK - PAGE, PAGE, LOCAL_AND_REMOTE));
	for (int n = 0; n < COUNT; n++)
		must(ibv_dereg_mr_relaxed(regions[n]) == 0);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0 && ibv_dereg_mr_relaxed(last) == 0);
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1000;
	const char *why;
	pthread_t thread;

	if (!getenv("RDMAMR_CACHE_LINGER")) {
		must(setenv("RDMAMR_CACHE_LINGER", "3600", 1) == 0);
		execv("/proc/self/exe", argv);
		must(!"execv");
	}
	must(rounds > 0 && ibv_reg_mr_relaxed && ibv_dereg_mr_relaxed && ibv_flush_relaxed_mr);
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	cache_uses(fresh(place - CHUNK, PAGE), PAGE);
	own = open_userfaultfd(UFFD_FEATURE_EVENT_UNMAP);
	if (own < 0 || stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	must(pthread_create(&thread, NULL, reader, NULL) == 0);
	make_pieces();
	in_turn(rounds);
	flushed_beside(rounds / 4 + 1);
	must(pthread_join(thread, NULL) == 0);
	close(own);
	return done_testing();
}
