/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The race that makes userfaultfd alone unsafe: one thread unmaps memory, and before any thread has
 * read the kernel's event another thread has mapped new memory at the same address and registers
 * it. A cache with an idle region of that address must not hand it out.
 *
 * Two threads meet at random, CHECK_ROUNDS times (10 000). Each round also registers the same
 * memory again when all is quiet, which must be a hit: a cache that never reuses a region proves
 * nothing. The other rows hold the library's reader, so that the event stays unread (stub_rows.h):
 * a library that is told that the process has one thread does not fence, and then the region is
 * stale.
 */
#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include "../../lib/stub_rows.h"

/* Replaces the C library's variable, by which the library sees whether the process ever had two threads. */
char __libc_single_threaded;

enum { LENGTH = 4 * PAGE };
enum { PROTECTION = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS };
/* Far from where the kernel puts mappings by itself, so that no other mapping lands there. */
static char *const place = (char *)0x10000000000;

/*
 * The pages go by a call of the C library, or a raw system call. New ones come: the registering thread
 * maps them as soon as it can, or the other one replaces the old ones by MAP_FIXED, and this one sees
 * it by their content.
 */
struct kind {
	bool raw, replaced;
	int access;
};

static long rounds = 10000;
static _Atomic long go, done;
static long wrong, quiet_wrong, quiet_hits;

static struct kind kind_of(long round)
{
	return (struct kind){ round & 1, round & 2,
			      round & 4 ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE };
}

/* Busy, since the race is about microseconds; but a machine may have one processor. */
static void wait_for(_Atomic long *counter, long value)
{
	for (int spins = 0; atomic_load_explicit(counter, memory_order_acquire) < value; spins++)
		if (spins > 5000)
			sched_yield();
}

static void drop_pages(struct kind kind)
{
	if (kind.replaced)
		must((kind.raw ? (void *)syscall(SYS_mmap, place, LENGTH, PROTECTION, OWN | MAP_FIXED, -1, 0) :
				 mmap(place, LENGTH, PROTECTION, OWN | MAP_FIXED, -1, 0)) == place);
	else
		must((kind.raw ? raw_munmap(place, LENGTH) : munmap(place, LENGTH)) == 0);
}

static void *dropper(void *argument)
{
	(void)argument;
	for (long round = 1; round <= rounds; round++) {
		wait_for(&go, round);
		drop_pages(kind_of(round));
		atomic_store_explicit(&done, round, memory_order_release);
	}
	return NULL;
}

/*
 * Maps the place as soon as it is free, which is before the other thread's munmap has returned; or
 * waits until other pages are there, which is before its mmap has returned.
 */
static void map_place(struct kind kind)
{
	for (int spins = 0; kind.replaced && *(volatile char *)place != 0; spins++)
		if (spins > 5000)
			sched_yield();
	while (!kind.replaced &&
	       mmap(place, LENGTH, PROTECTION, OWN | MAP_FIXED_NOREPLACE, -1, 0) != place)
		must(errno == EEXIST);
}

/*
 * Registers, and deregisters. The program writes one value to the memory, the device another.
 * Returns whether the program sees the device's. `hit`: whether that has registered nothing.
 */
static bool lands(int access, unsigned char value, bool *hit)
{
	volatile unsigned char *memory = (unsigned char *)place;
	long before = stub_registered();
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), place, LENGTH, access);
	bool good;

	must(mr);
	*hit = stub_registered() == before;
	for (size_t at = 0; at < LENGTH; at += PAGE / 2)
		memory[at] = (unsigned char)~value;
	good = stub_write(mr, value) == 0;
	for (size_t at = 0; at < LENGTH; at += PAGE / 2)
		good = good && memory[at] == value;
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return good;
}

static void meet(long round)
{
	struct kind kind = kind_of(round);
	int next = kind_of(round + 1).access;
	bool hit;

	*(volatile char *)place = 1;
	atomic_store_explicit(&go, round, memory_order_release);
	map_place(kind);
	wrong += !lands(kind.access, (unsigned char)round, &hit);
	/* When all is quiet, the region that the next round is to find; twice, to see a hit. */
	wait_for(&done, round);
	quiet_wrong += !lands(next, (unsigned char)(round + 85), &hit);
	quiet_wrong += !lands(next, (unsigned char)(round + 170), &hit);
	quiet_hits += hit;
}

static void at_random(void)
{
	pthread_t thread;
	bool hit;

	if (getenv("CHECK_ROUNDS")) {
		rounds = atol(getenv("CHECK_ROUNDS"));
		/* They may take longer than a row may. */
		alarm(0);
	}
	fresh_at(place, LENGTH);
	must(rounds > 0 && lands(kind_of(1).access, 1, &hit));
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here: the cache keeps no region");
	thread = must_start(dropper, NULL);
	for (long round = 1; round <= rounds; round++)
		meet(round);
	must_join(thread);
	is(wrong, 0, "no region is stale in %ld rounds", rounds);
	is(quiet_wrong, 0, "when all is quiet, data lands where the program sees it");
	ok(quiet_hits > rounds - rounds / 10, "and the region is reused: %ld times", quiet_hits);
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "flushed");
	is(in_device(), 0, "the device has no region left");
	is((long long)(stats().idle + stats().live), 0, "nor has the library");
}

/* The event is not read. */

/* pthread_create has set the variable to 0. */
static int create_unseen(pthread_t *thread, const pthread_attr_t *attributes,
			 void *(*function)(void *), void *argument)
{
	int err = pthread_create(thread, attributes, function, argument);

	__libc_single_threaded = 1;
	return err;
}

/* By a thread that row->of makes. */
static void unread(void)
{
	char *page = idle();

	hold_reader();
	is(lands_in_race(page, (thread_maker *)(uintptr_t)row->of), row->value,
	   "data lands in the current page");
}

/* The C library of another namespace of the linker: the first one does not know of its threads. */
static void by_second_libc(void)
{
	void *libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW | RTLD_LOCAL);
	char *page = idle();
	thread_maker *create = libc ? (thread_maker *)dlsym(libc, "pthread_create") : NULL;

	must(create);
	/* A reference to the linker's variable makes a copy of it in this program, which stays 1. */
	printf("# the program's copy says version %d\n", _r_debug.r_version);
	hold_reader();
	ok(lands_in_race(page, create), "the region is not stale");
	ok(__libc_single_threaded, "the first C library knows of one thread");
}

static const struct row rows[] = {
	{ "two threads meet at random", at_random },
	{ "the event is not read", unread, true, pthread_create },
	{ "the event is not read, and the library does not fence", unread, false, create_unseen },
	{ "the event is not read, and the C library of another namespace makes the thread", by_second_libc },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
