/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that the cache does not watch. A process with nearly as many mappings as the kernel allows
 * (vm.max_map_count) cannot have the watch, which splits mappings: a region of unwatched memory serves
 * its caller alone, even while it is in use, since a raw system call may have replaced the memory.
 *
 * A userfaultfd of the program takes fresh memory, where regions of the cache were until just now and
 * beside regions that are just ending. The program never gets EBUSY, since the cache takes no memory
 * but that of regions; and its watch stays, since the cache ends no watch but its own, even on kernels
 * that let one file end another's (before 6.16).
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include "../../lib/stub_rows.h"

/* The library counts the mappings by the 64th region at the latest. */
enum { ROUNDS = 100, UNCOUNTED = 64, FREE = 80 };

/* Makes mappings until the process has that many: each second page has other rights. */
static void crowd(int wanted)
{
	int count = wanted - mappings();
	char *memory = mmap(NULL, ((size_t)count + 1) * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	must(memory != MAP_FAILED);
	for (int n = 0; n < count; n += 2)
		must(mprotect(memory + (size_t)n * PAGE, PAGE, PROT_READ) == 0);
	must(mappings() >= wanted - 16);
}

static void not_shared(void)
{
	struct rdmamr_stats before;
	int stale = 0, alike = 0;

	if (most_mappings() > 1 << 20)
		skip_all("vm.max_map_count is very high here");
	crowd(most_mappings() - FREE);
	for (int n = 0; n < UNCOUNTED && !stats().bypassed_limit; n++)
		once(pages(1));
	row_rights = (int)row->value;
	before = stats();
	for (int round = 0; round < ROUNDS; round++) {
		char *memory = pages(1);
		struct ibv_mr *first = reg(memory, PAGE), *second;

		raw_remap(memory, PAGE);
		second = reg(memory, PAGE);
		alike += first->lkey == second->lkey;
		stale += !stub_lands(second);
		dereg(second);
		dereg(first);
		must(munmap(memory, PAGE) == 0);
	}
	is(stale, 0, "mapped anew by raw system calls under a region in use, data lands in the current page");
	is(alike, 0, "the regions are two");
	ok(stats().bypassed_limit + stats().bypassed_watch >= before.bypassed_limit + 2 * ROUNDS, "no memory was watched");
	is((long long)stats().idle, (long long)before.idle, "none is cached");
	is(stub_registered() - stub_deregistered(), (long)before.idle, "the device has no other region left");
}

/* The program's userfaultfd. */

enum { CHUNK = 2 << 20, LENGTH = 4 * PAGE, TURNS = 1000 };
/* Far from where the kernel puts mappings by itself, so that no other mapping lands there. */
static char *const place = (char *)0x10000000000;
static struct event_count own;
static _Atomic long busy, lost, rounds_done;
static _Atomic bool stop;

static void cache_uses(char *memory)
{
	dereg(reg(memory, LENGTH));
}

/*
 * The program takes fresh memory and unmaps it. The unmap has returned, so the reader has read the
 * event, and the count comes right after.
 */
static void own_takes(char *memory)
{
	struct uffdio_register take = { .range = { (uintptr_t)memory, LENGTH }, .mode = UFFDIO_REGISTER_MODE_WP };
	long heard = own.events;
	int err;

	fresh_at(memory, LENGTH);
	/* On one processor, too, other threads get a chance to be in the middle of something. */
	sched_yield();
	err = ioctl(own.fd, UFFDIO_REGISTER, &take) ? errno : 0;
	must(!err || err == EBUSY);
	busy += err != 0;
	must(munmap(memory, LENGTH) == 0);
	for (int waits = 0; !err && own.events == heard && waits < 30000; waits++)
		waits < 1000 ? sched_yield() : usleep(1000);
	lost += !err && own.events == heard;
	rounds_done++;
}

/* On the other side of a gap in the chunk: regions end and start beside it. */
static void *beside(void *argument)
{
	while (!stop)
		own_takes(place + CHUNK / 2);
	return argument;
}

/*
 * Small regions in one chunk, of which one stays when the others are flushed: then mappings stay
 * split, and the end of any later region joins them.
 */
static void make_pieces(void)
{
	enum { COUNT = 40 };
	struct ibv_mr *regions[COUNT], *last;
	char *memory = place + 4 * CHUNK;

	fresh_at(memory, CHUNK);
	for (int n = 0; n < COUNT; n++)
		regions[n] = reg(memory + 3 * n * PAGE, PAGE);
	last = reg(memory + CHUNK - PAGE, PAGE);
	for (int n = 0; n < COUNT; n++)
		dereg(regions[n]);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	dereg(last);
}

static void another_takes(void)
{
	pthread_t thread;

	idle();
	own.fd = open_userfaultfd(UFFD_FEATURE_EVENT_UNMAP);
	must(own.fd >= 0 && pthread_create(&thread, NULL, count_events, &own) == 0);
	make_pieces();
	if (!row->value) {
		for (long round = 0; round < TURNS; round++) {
			fresh_at(place, LENGTH);
			cache_uses(place);
			must(munmap(place, LENGTH) == 0);
			own_takes(place);
		}
	} else {
		must(pthread_create(&thread, NULL, beside, NULL) == 0);
		fresh_at(place, LENGTH);
		while (rounds_done < TURNS / 4) {
			cache_uses(place);
			must(ibv_flush_relaxed_mr(stub_pd()) == 0);
		}
		stop = true;
		must(pthread_join(thread, NULL) == 0);
	}
	is(busy, 0, "the program gets its own memory each time, of %ld", rounds_done);
	is(lost, 0, "and sees each unmap");
}

static const struct row rows[] = {
	{ "memory without a watch, remote rights", not_shared, LOCAL_AND_REMOTE },
	{ "memory without a watch, local rights", not_shared, IBV_ACCESS_LOCAL_WRITE },
	{ "another userfaultfd takes fresh memory in turn with the cache", another_takes, false, .flags = NO_PINS },
	{ "another userfaultfd takes fresh memory beside regions that are flushed", another_takes, true, .flags = NO_PINS },
};

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_stub);
}
