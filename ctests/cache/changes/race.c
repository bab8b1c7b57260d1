/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The race that makes userfaultfd alone unsafe: one thread unmaps memory, and before any thread has
 * read the kernel's event another thread has mapped new memory at the same address and registers
 * it. A cache with an idle region of that address must not hand it out: its pages are those that
 * are gone.
 *
 * The device is the stand-in, whose pins are real (stub_device.h): the device writes to the pages
 * that were pinned, and the program looks at the page that it sees. Each round also registers the
 * same memory again when all is quiet, which must be a hit: a cache that never reuses a region
 * proves nothing. With --expect-stale the library is told that the process has one thread, so that
 * the library does not fence; then stale regions must appear.
 *
 * Usage: race [ROUNDS] [--remove] [--expect-stale] [--second-libc]
 *
 * --second-libc: the C library of another namespace of the linker makes the other thread. The first
 * one does not know of it, and still says that the process has one thread.
 *
 * --remove: MADV_DONTNEED drops the pages, while they are registered all the time. The kernel's
 * event comes before the pages go, so a region made in between has pages that are going.
 */
#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

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
	bool raw;
	enum { NOREPLACE, HINT, REPLACED, HOWS } how;
	int access;
};

static long rounds = 1000000;
static bool by_madvise;
static _Atomic long go, done;
static long hits, stale, dead, quiet_wrong, quiet_hits, again;

static struct kind kind_of(long round)
{
	return (struct kind){ round & 1, (int)(round / 2 % HOWS), round / 6 & 1 ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE };
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
	if (by_madvise)
		must((kind.raw ? (int)syscall(SYS_madvise, place, LENGTH, MADV_DONTNEED) : madvise(place, LENGTH, MADV_DONTNEED)) == 0);
	else if (kind.how == REPLACED)
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
	if (kind.how == REPLACED) {
		for (int spins = 0; *(volatile char *)place != 0; spins++)
			if (spins > 5000)
				sched_yield();
		return;
	}
	for (;;) {
		char *memory = mmap(place, LENGTH, PROTECTION, OWN | (kind.how == NOREPLACE ? MAP_FIXED_NOREPLACE : 0), -1, 0);

		if (memory == place)
			return;
		must(memory != MAP_FAILED || errno == EEXIST);
		if (memory != MAP_FAILED)
			must(raw_munmap(memory, LENGTH) == 0);
	}
}

static struct ibv_mr *register_place(int access)
{
	struct ibv_mr *mr;

	while (!(mr = ibv_reg_mr_relaxed(stub_pd(), place, LENGTH, access))) {
		must(errno == EAGAIN);
		again++;
		sched_yield();
	}
	return mr;
}

enum verdict { RIGHT, STALE, DEAD };

/* The program writes one value to the memory, the device another: which one does the program see? */
static enum verdict look(const struct ibv_mr *mr, unsigned char value)
{
	volatile unsigned char *memory = mr->addr;
	int err;

	for (size_t at = 0; at < mr->length; at += PAGE / 2)
		memory[at] = (unsigned char)~value;
	err = stub_write(mr, value);
	if (err == EKEYREJECTED)
		return DEAD;
	if (err) {
		errno = err;
		must(!"stub_write");
	}
	for (size_t at = 0; at < mr->length; at += PAGE / 2)
		if (memory[at] != value)
			return STALE;
	return RIGHT;
}

/* Registers, looks, deregisters. */
static enum verdict once(int access, unsigned char value, bool *hit)
{
	long before = stub_registered();
	struct ibv_mr *mr = register_place(access);
	enum verdict verdict;

	*hit = stub_registered() == before;
	verdict = look(mr, value);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return verdict;
}

static void race(long round)
{
	struct kind kind = kind_of(round);
	int next = kind_of(round + 1).access;
	enum verdict verdict;
	bool hit;

	*(volatile char *)place = 1;
	atomic_store_explicit(&go, round, memory_order_release);
	if (!by_madvise)
		map_place(kind);
	/* While pages are dropped, the device's write may be lost, so there is nothing to check. */
	while (by_madvise && atomic_load_explicit(&done, memory_order_acquire) < round) {
		*(volatile char *)place = 1;
		must(ibv_dereg_mr_relaxed(register_place(kind.access)) == 0);
	}
	verdict = once(kind.access, (unsigned char)round, &hit);
	hits += hit;
	stale += verdict == STALE;
	dead += verdict == DEAD;
	/* When all is quiet, the region that the next round is to find; twice, to see a hit. */
	wait_for(&done, round);
	quiet_wrong += once(next, (unsigned char)(round + 85), &hit) != RIGHT;
	quiet_wrong += once(next, (unsigned char)(round + 170), &hit) != RIGHT;
	quiet_hits += hit;
}

/* The cache keeps no region while pages are dropped all the time: it cannot know when they are gone. */
static bool used_again_later(void)
{
	bool hit = false;

	for (int tries = 0; tries < 50 && !hit; tries++) {
		usleep(100000);
		quiet_wrong += once(kind_of(1).access, (unsigned char)tries, &hit) != RIGHT;
	}
	return hit;
}

static void *load_second_libc(void)
{
	void *libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW | RTLD_LOCAL);

	must(libc);
	/* A reference to the linker's variable makes a copy of it in this program, which stays 1. */
	printf("# the program's copy says version %d\n", _r_debug.r_version);
	return libc;
}

int main(int argc, char **argv)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = pthread_create;
	int (*join)(pthread_t, void **) = pthread_join;
	bool expect_stale = false, second_libc = false;
	pthread_t thread;
	const char *why;

	for (int n = 1; n < argc; n++) {
		expect_stale |= !strcmp(argv[n], "--expect-stale");
		second_libc |= !strcmp(argv[n], "--second-libc");
		by_madvise |= !strcmp(argv[n], "--remove");
		if (argv[n][0] != '-')
			rounds = atol(argv[n]);
	}
	must(rounds > 0 && ibv_reg_mr_relaxed && ibv_dereg_mr_relaxed && ibv_flush_relaxed_mr);
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	fresh_at(place, LENGTH);
	must(ibv_dereg_mr_relaxed(register_place(kind_of(1).access)) == 0);
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here: the cache keeps no region");

	if (second_libc) {
		void *libc = load_second_libc();

		create = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(libc, "pthread_create");
		join = (int (*)(pthread_t, void **))dlsym(libc, "pthread_join");
		must(create && join);
	}
	must(create(&thread, NULL, dropper, NULL) == 0);
	/* pthread_create has set it to 0. */
	if (second_libc)
		ok(__libc_single_threaded, "the first C library knows of one thread");
	else
		__libc_single_threaded = expect_stale;
	for (long round = 1; round <= rounds; round++)
		race(round);
	must(join(thread, NULL) == 0);

	printf("# %ld rounds: %ld hits in the race, %ld stale; %ld registered again after EAGAIN; %ld hits when all was quiet\n",
	       rounds, hits, stale, again, quiet_hits);
	if (expect_stale)
		ok(stale > 0, "without the fence the test sees stale regions: %ld of %ld", stale, rounds);
	else
		is(stale, 0, "no stale region in %ld rounds", rounds);
	is(dead, 0, "and no region that the device does not know");
	is(quiet_wrong, 0, "when all is quiet, data lands where the program sees it");
	if (!by_madvise)
		ok(quiet_hits > rounds - rounds / 10, "and the region is reused: %ld times", quiet_hits);
	else
		ok(used_again_later(), "and when no page was dropped for a while, the region is reused");
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "flushed");
	is(stub_registered() - stub_deregistered(), 0, "the device has no region left, of %ld", stub_registered());
	is((long long)(stats().idle + stats().live), 0, "nor has the library");
	return done_testing();
}
