/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A change of memory ends the regions that it touches, at once, and no others: not those beside a
 * call that another thread is in, not those beside a call that a signal handler has left, and not
 * those of a process that unmaps other memory all the time.
 *
 * The device is the stand-in (stub_device.h). slow_calls.so lies behind the library.
 */
#include <linux/mman.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "slow_calls.h"
#include "../../lib/stub_device.h"

#pragma weak slow_address
#pragma weak slow_state
#pragma weak slow_signal

enum { GUARD_INSTALL = 102, TIMES = 100, SOME = 16 * PAGE, MANY = 1000, MUNMAPS = 3000 };

/* Registers and deregisters. Returns whether the cache served it. */
static bool hit(void *memory, size_t length)
{
	uint64_t hits = stats().hits;
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);

	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	return stats().hits == hits + 1;
}

static int hits_of(void *memory, size_t length)
{
	int hits = 0;

	for (int n = 0; n < TIMES; n++)
		hits += hit(memory, length);
	return hits;
}

/* Memory with an idle region that a registration has reused. */
static char *with_region(size_t size, size_t length)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED);
	memset(memory, 1, length);
	for (int tries = 0; !hit(memory, length) || !hit(memory, length); tries++)
		must(tries < 100 && usleep(20000) == 0);
	return memory;
}

/* The ways to change memory by the C library. */
static void by_munmap(char *memory) { must(munmap(memory, SOME) == 0); }
static void by_part(char *memory) { must(munmap(memory + PAGE, PAGE) == 0); }
static void by_mmap(char *memory)
{
	must(mmap(memory, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
}
static void by_mremap(char *memory)
{
	char *place = new_place(SOME);

	must(mremap(memory, SOME, SOME, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
}
static void by_madvise(char *memory) { must(madvise(memory, SOME, MADV_DONTNEED) == 0); }
static void by_mprotect(char *memory) { must(mprotect(memory, SOME, PROT_READ) == 0); }

static void ends_at_once(const char *name, void change(char *memory))
{
	char *memory = with_region(SOME, SOME);
	struct rdmamr_stats before = stats(), after;
	long deregistered = stub_deregistered();

	change(memory);
	is(stub_deregistered() - deregistered, 1, "%s: the idle region is deregistered when the call returns", name);
	after = stats();
	/* mremap may fail, so its hook waits for the result. */
	if (change != by_mremap)
		is((long long)(after.stale_avoided_event - before.stale_avoided_event), 0, "%s: and no event was needed",
		   name);
	munmap(memory, SOME);
}

/* Another thread's munmap, which has not returned. */
static void *unmap(void *memory)
{
	must(munmap(memory, SOME) == 0);
	return NULL;
}

static void beside_a_slow_call(void)
{
	char *elsewhere = with_region(SOME, SOME), *place = with_region(SOME, SOME), *fresh = pages(SOME / PAGE);
	pthread_t thread;

	slow_address = place;
	must(pthread_create(&thread, NULL, unmap, place) == 0);
	while (slow_state != SLOW_INSIDE)
		usleep(100);
	is(hits_of(elsewhere, SOME), TIMES, "beside a call of another thread: memory elsewhere is reused");
	hit(fresh, SOME);
	hit(fresh, SOME);
	ok(hit(fresh, SOME), "and so is fresh memory");
	ok(!hit(place, PAGE) && !hit(place, PAGE), "the memory that the call changes is not");
	slow_state = SLOW_IDLE;
	must(pthread_join(thread, NULL) == 0);
	slow_address = NULL;
	munmap(elsewhere, SOME);
}

static sigjmp_buf out;

static void leave(int number)
{
	(void)number;
	siglongjmp(out, 1);
}

/*
 * The signal comes in the call: before the real one with `early`, while the library ends the idle
 * region. The handler runs once the call has returned.
 */
static void left_by_a_handler(bool early)
{
	char *elsewhere = with_region(SOME, SOME), *volatile place = with_region(SOME, SOME);
	volatile bool left = false;

	case_begin("a signal handler leaves munmap by siglongjmp%s", early ? ", before the real call" : "");
	must(signal(SIGUSR1, leave) != SIG_ERR);
	slow_address = early ? NULL : place;
	*(early ? &stub_signal : &slow_signal) = SIGUSR1;
	if (!sigsetjmp(out, 1))
		munmap(place, SOME);
	else
		left = true;
	slow_address = NULL;
	stub_signal = slow_signal = 0;
	/* Another thread may end the region. */
	if (!early)
		ok(left, "the handler has run");
	is(hits_of(elsewhere, SOME), TIMES, "memory elsewhere is reused");
	fresh_at(place, SOME);
	hit(place, SOME);
	hit(place, SOME);
	is(hits_of(place, SOME), TIMES, "and so is memory at that place");
	case_end();
	munmap(place, SOME);
	munmap(elsewhere, SOME);
}

/* The thread's signals are those from before the call, whatever it announces. */
static void signals_stay(void)
{
	char *from = with_region(SOME, SOME), *to = with_region(SOME, SOME);
	sigset_t before = { 0 }, after = { 0 };

	must(sigprocmask(SIG_BLOCK, NULL, &before) == 0);
	must(mremap(from, SOME, SOME, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	must(mprotect(to, SOME, PROT_READ) == 0 && mprotect(to, SOME, PROT_READ | PROT_WRITE) == 0);
	for (int n = 0; n < TIMES; n++)
		hit(to, SOME);
	must(mremap(to, SOME, 2 * SOME, MREMAP_MAYMOVE) != MAP_FAILED);
	must(sigprocmask(SIG_BLOCK, NULL, &after) == 0);
	ok(!memcmp(&before, &after, sizeof(before)), "a call blocks no signal once it has returned");
}

static void large_region(void)
{
	enum { ROOM = 3 };
	size_t large = 8UL << 30;
	char *huge = mmap(NULL, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *small = mmap(NULL, (size_t)MANY * ROOM * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct rdmamr_stats before;
	struct ibv_mr *mr;
	int hits = 0;

	must(huge != MAP_FAILED && small != MAP_FAILED);
	mr = ibv_reg_mr_relaxed(stub_pd(), huge, large, LOCAL_AND_REMOTE);
	must(mr);
	for (int round = 0; round < 3; round++) {
		for (long n = 0; n < MANY; n++)
			hit(small + n * ROOM * PAGE, PAGE);
		usleep(200000);
	}
	before = stats();
	for (int n = 0; n < MUNMAPS; n++) {
		char *other = mmap(NULL, 64UL << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		must(other != MAP_FAILED && munmap(other, 64UL << 20) == 0);
	}
	for (long n = 0; n < MANY; n++)
		hits += hit(small + n * ROOM * PAGE, PAGE);
	is(hits, MANY, "%d munmaps beside a region of 8 GiB: %d other regions are all reused", MUNMAPS, MANY);
	is((long long)(stats().stale_avoided_hook - before.stale_avoided_hook), 0, "and none was invalidated");
	must(ibv_dereg_mr_relaxed(mr) == 0 && munmap(huge, large) == 0);
	must(munmap(small, (size_t)MANY * ROOM * PAGE) == 0);
}

static void failing_advice(void)
{
	char *memory = with_region(SOME, SOME);
	struct iovec range = { memory, SOME };

	must(syscall(SYS_process_madvise, -1, &range, 1UL, MADV_DONTNEED, 0) == -1);
	must(process_madvise(-1, &range, 1, MADV_DONTNEED, 0) == -1 && errno == EBADF);
	ok(hit(memory, SOME), "a process_madvise that fails: the region is reused");
	munmap(memory, SOME);
}

/* The kernel makes guard pages before the locked page, and then refuses. userfaultfd reports none. */
static void half_advised(void)
{
	char *memory = with_region(SOME + PAGE, SOME);
	struct iovec range = { memory, SOME + PAGE };
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0), ends[2];

	must(self >= 0 && mlock(memory + SOME, PAGE) == 0);
	must(process_madvise(self, &range, 1, GUARD_INSTALL, 0) == -1 && errno == EINVAL);
	must(pipe(ends) == 0);
	if (write(ends[1], memory, 1) == 1)
		skip("a process_madvise that fails half way", "this kernel makes no guard pages by it");
	else
		ok(!hit(memory, SOME), "a process_madvise that fails half way, after guard pages: the region is not reused");
	munmap(memory, SOME + PAGE);
	must(close(self) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

/*
 * The event of a raw madvise comes before the kernel drops the pages. So the cache reuses no region
 * that is registered there within the next second. If this machine takes longer than that, the test
 * tries again.
 */
static void just_dropped(void)
{
	char *memory = with_region(SOME, SOME);
	double begun;
	int hits;

	do {
		begun = seconds_now();
		must(syscall(SYS_madvise, memory, SOME, MADV_DONTNEED) == 0);
		hits = hit(memory, SOME);
		hits += hit(memory, SOME);
		hits += hit(memory, SOME);
	} while (seconds_now() - begun > 0.9);
	is(hits, 0, "memory whose pages a raw madvise has just dropped is not reused");
	for (int tries = 0; !hit(memory, SOME) || !hit(memory, SOME); tries++)
		must(tries < 500 && usleep(20000) == 0);
	is(hits_of(memory, SOME), TIMES, "a while later it is");
	munmap(memory, SOME);
}

/* Whether memory that MAP_FIXED has replaced in part can be moved. */
static bool is_moved(bool raw)
{
	enum { ALL = 64 * PAGE };
	char *memory = with_region(ALL, ALL), *place = new_place(ALL), *middle = memory + 16 * PAGE;
	void *moved;
	bool good;

	must(mmap(middle, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == middle);
	memset(memory, 7, ALL);
	moved = raw ? (void *)syscall(SYS_mremap, memory, ALL, 2 * ALL, MREMAP_MAYMOVE | MREMAP_FIXED, place) :
		       mremap(memory, ALL, 2 * ALL, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	must(moved == place || errno == EFAULT);
	good = moved == place && place[ALL - 1] == 7;
	munmap(moved == place ? place : memory, moved == place ? 2 * ALL : ALL);
	return good;
}

/*
 * The kernel moves a single mapping, so the old and the new memory must be one. The call that
 * replaces waits 20 ms at most for the cache's lock. On a busy machine that can be too short: then
 * the watch stays, and the two are never one.
 */
static void replaced_and_moved(bool raw)
{
	bool good = false;

	for (int tries = 0; tries < 10 && !good; tries++)
		good = is_moved(raw);
	ok(good, "%s moves memory that MAP_FIXED has replaced in part", raw ? "a raw mremap" : "mremap");
}

static void grows_down(void)
{
	char *room = mmap(NULL, 8 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *stack, *top;

	must(room != MAP_FAILED && munmap(room, 8 << 20) == 0);
	top = room + (4 << 20);
	stack = top - SOME;
	must(mmap(stack, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE,
		  -1, 0) == stack);
	memset(stack, 1, SOME);
	for (int tries = 0; !hit(stack, PAGE) || !hit(stack, PAGE); tries++)
		must(tries < 100 && usleep(20000) == 0);
	must(mprotect(top - PAGE, PAGE, PROT_READ | PROT_GROWSDOWN) == 0);
	ok(!hit(stack, PAGE), "PROT_GROWSDOWN protects the mapping from its start on: the region there is not reused");
	munmap(stack, SOME);
}

static void keyed(void)
{
	char *memory = with_region(SOME, SOME), *elsewhere = with_region(SOME, SOME);
	int key;

	must(pkey_mprotect(memory, 0, PROT_READ | PROT_WRITE, 7) == 0);
	is(hits_of(elsewhere, SOME), TIMES, "pkey_mprotect of nothing changes nothing");
	key = pkey_alloc(0, 0);
	if (key < 0) {
		skip_errno("protection keys", "pkey_alloc");
		return;
	}
	must(pkey_mprotect(memory, SOME, PROT_READ | PROT_WRITE, 0) == 0);
	is(hits_of(elsewhere, SOME), TIMES, "the default protection key changes nothing");
	must(pkey_mprotect(memory, SOME, PROT_READ | PROT_WRITE, key) == 0);
	is(hits_of(memory, SOME), 0, "memory with a protection key is not reused");
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	if (!getenv("RDMAMR_CACHE_LINGER")) {
		must(setenv("RDMAMR_CACHE_LINGER", "600", 1) == 0);
		execv("/proc/self/exe", argv);
		must(!"execv");
	}
	must(&slow_address && ibv_reg_mr_relaxed);
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	if (userfaultfds(NULL) < 0)
		skip_all("userfaultfd is refused");
	ends_at_once("munmap", by_munmap);
	ends_at_once("munmap of a page of it", by_part);
	ends_at_once("mmap with MAP_FIXED", by_mmap);
	ends_at_once("mremap away", by_mremap);
	ends_at_once("madvise", by_madvise);
	ends_at_once("mprotect", by_mprotect);
	failing_advice();
	half_advised();
	just_dropped();
	replaced_and_moved(false);
	replaced_and_moved(true);
	grows_down();
	signals_stay();
	large_region();
	beside_a_slow_call();
	left_by_a_handler(false);
	left_by_a_handler(true);
	keyed();
	return done_testing();
}
