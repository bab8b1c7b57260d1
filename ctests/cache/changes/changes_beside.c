/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program changes memory beside registered memory, again and again: the cache notes that it has
 * no region there, and the calls take no lock. The cache watches memory that is registered there
 * later: a call that drops, replaces or protects it ends the region.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { CHUNK = 2 << 20, ROUNDS = 400, AT = CHUNK / 2, LENGTH = 16 * PAGE, CALLS = 3000 };

static char *chunk;

static struct ibv_mr *registered(char *memory, size_t length)
{
	struct ibv_mr *mr;

	/* A change of this memory is under way in another thread. */
	while (!(mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE)))
		must(errno == EFAULT || errno == EAGAIN);
	return mr;
}

/* As stub_lands(), for several threads: whether the program sees the device's writes. */
static bool lands(char *memory, size_t length)
{
	struct ibv_mr *mr = registered(memory, length), page = *mr;
	unsigned char value = (unsigned char)((uintptr_t)memory / PAGE);
	volatile unsigned char *first = (unsigned char *)memory;
	bool good;

	page.length = PAGE;
	*first = (unsigned char)~value;
	good = stub_write(&page, value) == 0 && *first == value;
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return good;
}

static void drop(char *memory)
{
	must(madvise(memory, LENGTH, MADV_DONTNEED) == 0);
}

static void put_anew(char *memory)
{
	must(mmap(memory, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
}

static void move_over(char *memory)
{
	char *other = pages(LENGTH / PAGE);

	must(mremap(other, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, memory) == memory);
}

static void drop_raw(char *memory)
{
	must(syscall(SYS_madvise, memory, LENGTH, MADV_DONTNEED) == 0);
}

/* Makes the same call many times beside registered memory, then on registered memory. */
static void beside(const char *what, void (*change)(char *memory))
{
	int stale = 0;

	for (int round = 0; round < ROUNDS; round++) {
		char *memory = chunk + AT + (size_t)(round % 8) * PAGE;

		for (int times = 0; times < 3; times++)
			change(memory);
		stale += !lands(memory, LENGTH);
		stale += !lands(memory, LENGTH);
		change(memory);
		stale += !lands(memory, LENGTH);
		/* A larger one, which reaches into the next chunk. */
		stale += !lands(memory, CHUNK);
		change(memory);
		stale += !lands(memory, CHUNK);
		must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	}
	is(stale, 0, "%s: data lands in the current memory, in %d rounds", what, ROUNDS);
}

/* userfaultfd does not report pages that the program may no longer write to. */
static void protection(void)
{
	uint64_t hits = stats().hits;
	int refused = 0;

	for (int round = 0; round < ROUNDS; round++) {
		char *memory = chunk + AT + (size_t)(round % 8) * PAGE;
		struct ibv_mr *mr;

		for (int times = 0; times < 3; times++)
			must(mprotect(memory, LENGTH, PROT_READ) == 0 &&
			     mprotect(memory, LENGTH, PROT_READ | PROT_WRITE) == 0);
		must(lands(memory, LENGTH) && lands(memory, LENGTH));
		must(mprotect(memory, LENGTH, PROT_READ) == 0);
		mr = ibv_reg_mr_relaxed(stub_pd(), memory, LENGTH, LOCAL_AND_REMOTE);
		refused += !mr && errno == EFAULT;
		must(!mr || ibv_dereg_mr_relaxed(mr) == 0);
		must(mprotect(memory, LENGTH, PROT_READ | PROT_WRITE) == 0);
	}
	ok(stats().hits > hits, "regions are reused");
	is(refused, ROUNDS, "mprotect: no registration may write to memory that the program may only read");
}

/* Two threads drop and register their own pages of the chunk concurrently. */
static void *both(void *argument)
{
	char *memory = argument;
	long stale = 0;

	for (int n = 0; n < CALLS; n++) {
		if (n % 3)
			drop(memory);
		else
			stale += !lands(memory, LENGTH);
		if (n % 7 == 0)
			stale += !lands(memory, LENGTH);
	}
	return (void *)stale;
}

int main(int argc, char **argv)
{
	pthread_t threads[2];
	struct ibv_mr *mr;
	const char *why;
	long stale = 0;
	char *room;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	room = pages(4 * CHUNK / PAGE);
	chunk = (char *)(((uintptr_t)room + CHUNK - 1) & ~((uintptr_t)CHUNK - 1));
	/* A region in use and an idle one, so that the cache watches the chunk. */
	mr = registered(chunk, PAGE);
	must(lands(chunk + 4 * PAGE, PAGE) && lands(chunk + CHUNK + 4 * PAGE, PAGE));
	protection();
	beside("madvise", drop);
	beside("mmap", put_anew);
	beside("mremap", move_over);
	/* The cache keeps no region for a second where a raw system call has dropped pages. */
	beside("a raw madvise", drop_raw);
	for (int n = 0; n < 2; n++)
		must(pthread_create(&threads[n], NULL, both, chunk + AT + (size_t)n * LENGTH) == 0);
	for (int n = 0; n < 2; n++) {
		void *result;

		must(pthread_join(threads[n], &result) == 0);
		stale += (long)result;
	}
	is(stale, 0, "two threads beside each other: data lands in the current memory, %d calls each", CALLS);
	ok(stub_lands(mr), "the region in use is the same all the time");
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return done_testing();
}
