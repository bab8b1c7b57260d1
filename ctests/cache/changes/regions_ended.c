/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A change of memory ends the regions that it touches, at once, and no others; no registration gets
 * memory that is gone, or more rights than the memory has, at whatever moment of the change it
 * comes. The cache keeps no region of huge pages. The stand-in registers no read-only memory for
 * writing. behind.so lies behind the library.
 */
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "../../lib/stub_rows.h"
#include "../beside/behind.h"

#pragma weak slow_address
#pragma weak slow_state
#pragma weak slow_signal

#define READ_WRITE (PROT_READ | PROT_WRITE)
#define OWN (MAP_PRIVATE | MAP_ANONYMOUS)
enum { GUARD_INSTALL = 102, TIMES = 100, SOME = 16 * PAGE, CHUNK = 2 << 20, HUGE = 2 << 20 };

static bool hit(void *memory, size_t length) { return hits_in(memory, length, 1); }

/* The registrations, of 4, that are refused with EFAULT. */
static int refused(void *memory, size_t length)
{
	int count = 0;

	for (int n = 0; n < 4; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);

		count += !mr && errno == EFAULT;
		if (mr)
			dereg(mr);
	}
	return count;
}

/* Fresh memory, of which the first bytes have an idle region. */
static char *with_region(size_t size, size_t length)
{
	char *at = untouched(size);

	leave_idle_in(at, length);
	return at;
}

static void wait_for(int state)
{
	while (slow_state != state)
		usleep(100);
}

enum { MUCH = 32 << 20 };
enum change { UNMAP, UNMAP_MUCH, UNMAP_RAW, UNMAP_PAGE, REPLACE, MOVE_AWAY, DROP, DROP_RAW, PROTECT };

/* Of SOME bytes, or MUCH. */
static void change(enum change how, char *memory)
{
	const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
	char *other;

	switch (how) {
	case UNMAP: must(munmap(memory, SOME) == 0); break;
	case UNMAP_MUCH: must(munmap(memory, MUCH) == 0); break;
	case UNMAP_RAW: must(raw_munmap(memory, SOME) == 0); break;
	case UNMAP_PAGE: must(munmap(memory + PAGE, PAGE) == 0); break;
	case REPLACE: must(mmap(memory, SOME, READ_WRITE, OWN | MAP_FIXED, -1, 0) == memory); break;
	case MOVE_AWAY: other = new_place(SOME); must(mremap(memory, SOME, SOME, flags, other) == other); break;
	case DROP: must(madvise(memory, SOME, MADV_DONTNEED) == 0); break;
	case DROP_RAW: must(syscall(SYS_madvise, memory, SOME, MADV_DONTNEED) == 0); break;
	case PROTECT: must(mprotect(memory, SOME, PROT_READ) == 0); break;
	}
}

/* What a change ends. */

static void ends_at_once(void)
{
	char *memory = with_region(SOME, SOME);
	struct rdmamr_stats before = stats();
	long deregistered = stub_deregistered();

	change((enum change)row->value, memory);
	is(stub_deregistered() - deregistered, 1, "the idle region is deregistered when the call returns");
	/* mremap may fail, so its hook waits for the result. */
	if (row->value != MOVE_AWAY)
		is((long long)(stats().stale_avoided_event - before.stale_avoided_event), 0, "and no event was needed");
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
		skip_all("this kernel makes no guard pages by it");
	ok(!hit(memory, SOME), "the region is not reused");
	munmap(memory, SOME + PAGE);
}

/*
 * The event of a raw madvise comes before the kernel drops the pages. So the cache reuses no region that is
 * registered there within the next second. If this machine takes longer than that, the test tries again.
 */
static void just_dropped(void)
{
	char *memory = with_region(SOME, SOME);
	double begun;
	int hits;

	do {
		begun = seconds_now();
		change(DROP_RAW, memory);
		hits = hit(memory, SOME);
		hits += hit(memory, SOME);
		hits += hit(memory, SOME);
	} while (seconds_now() - begun > 0.9);
	is(hits, 0, "such memory is not reused");
	for (int tries = 0; !hit(memory, SOME) || !hit(memory, SOME); tries++)
		must(tries < 500 && usleep(20000) == 0);
	is(hits_in(memory, SOME, TIMES), TIMES, "a while later it is");
}

static void grows_down(void)
{
	char *room = mmap(NULL, 8 << 20, PROT_NONE, OWN, -1, 0), *top = room + (4 << 20), *stack = top - SOME;

	must(room != MAP_FAILED && munmap(room, 8 << 20) == 0);
	must(mmap(stack, SOME, READ_WRITE, OWN | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0) == stack);
	memset(stack, 1, SOME);
	leave_idle(stack);
	must(mprotect(top - PAGE, PAGE, PROT_READ | PROT_GROWSDOWN) == 0);
	ok(!hit(stack, PAGE), "the region at the start is not reused");
}

static void keyed(void)
{
	char *memory = with_region(SOME, SOME);
	int key = pkey_alloc(0, 0);

	if (key < 0)
		skip_all("the processor has no protection keys");
	must(pkey_mprotect(memory, SOME, READ_WRITE, key) == 0);
	is(hits_in(memory, SOME, TIMES), 0, "the memory is not reused");
}

/* Beside a call that has not returned, or that a handler has left. */

static pthread_t changing;
static enum change slow;

static void *changes(void *memory)
{
	change(slow, memory);
	return NULL;
}

/* The change of another thread, which stays in the call of the library behind. */
static void begins(enum change how, char *memory)
{
	slow = how;
	slow_address = memory;
	changing = must_start(changes, memory);
	wait_for(SLOW_INSIDE);
}

/* The change takes effect, and the call still does not return. */
static void takes_effect(void)
{
	slow_state = SLOW_IDLE;
	wait_for(SLOW_MADE);
}

static void returns(void)
{
	slow_state = SLOW_IDLE;
	must_join(changing);
	slow_address = NULL;
}

static void beside_a_slow_call(void)
{
	char *elsewhere = with_region(SOME, SOME), *place = with_region(SOME, SOME), *fresh = pages(SOME / PAGE);

	begins(UNMAP, place);
	is(hits_in(elsewhere, SOME, TIMES), TIMES, "memory elsewhere is reused");
	hit(fresh, SOME);
	hit(fresh, SOME);
	ok(hit(fresh, SOME), "and so is fresh memory");
	ok(!hit(place, PAGE) && !hit(place, PAGE), "the memory that the call changes is not");
	returns();
}

static _Atomic int waits;
static pid_t caller;

static void counts_waits(long number, const long argument[6])
{
	waits += number == SYS_ioctl && argument[1] == (long)UFFDIO_UNREGISTER && stub_syscall(SYS_gettid) == caller;
}

/* The kernel may hold its mmap lock in the other call for long, and the end of a watch would wait for it. */
static void beside_a_long_call(void)
{
	char *used = with_region(SOME, SOME), *much = pages(MUCH / PAGE);
	const long before = in_device();
	struct ibv_mr *mr = reg(used, SOME);

	/* Its region is not reused after that. */
	change(DROP_RAW, used);
	caller = (pid_t)syscall(SYS_gettid);
	begins(UNMAP_MUCH, much);
	stub_before = counts_waits;
	dereg(mr);
	is(in_device(), before - 1, "the region is deregistered at once");
	dereg(reg(used, SOME));
	stub_before = NULL;
	is(waits, 0, "this thread does not end its watch");
	returns();
	ok(comes(hits_in(used, SOME, TIMES) > 0), "the memory is reused afterwards");
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
static void left_by_a_handler(void)
{
	char *elsewhere = with_region(SOME, SOME), *volatile place = with_region(SOME, SOME);
	volatile bool left = false, early = row->value;

	must(signal(SIGUSR1, leave) != SIG_ERR);
	slow_address = early ? NULL : place;
	*(early ? &stub_signals[STUB_DEREGISTER] : &slow_signal) = SIGUSR1;
	if (!sigsetjmp(out, 1))
		munmap(place, SOME);
	else
		left = true;
	slow_address = NULL;
	stub_signals[STUB_DEREGISTER] = slow_signal = 0;
	/* Another thread may end the region. */
	ok(left || early, "the handler has run");
	is(hits_in(elsewhere, SOME, TIMES), TIMES, "memory elsewhere is reused");
	fresh_at(place, SOME);
	hit(place, SOME);
	hit(place, SOME);
	is(hits_in(place, SOME, TIMES), TIMES, "and so is memory at that place");
}

static char *volatile seen;
static volatile bool was_there;

static void see(int number)
{
	unsigned char there;

	(void)number;
	was_there = mincore(seen, PAGE, &there) == 0;
}

/* A call on much memory may take seconds. SIGTERM must end the program meanwhile, as without the library. */
static void let_in(void)
{
	char *place = with_region(MUCH, SOME);

	must(signal(SIGUSR1, see) != SIG_ERR);
	seen = slow_address = place;
	slow_signal = SIGUSR1;
	must(munmap(place, MUCH) == 0);
	slow_address = NULL;
	slow_signal = 0;
	ok(was_there, "the handler runs before the real call is made");
	fresh_at(place, MUCH);
	is(hits_in(place, SOME, TIMES) >= TIMES - 2, 1, "memory at that place is reused");
}

/*
 * The memory is registered for the first time after mprotect has reached the library, and before the
 * kernel has protected the memory: the region has more rights than the memory. No other region is
 * near, so the filter does not count the call as one about registered memory.
 */
static void registered_during_call(void)
{
	char *memory = new_place(8 << 20);

	if (row->value)
		hit(pages(1), PAGE);
	fresh_at(memory, 8 << 20);
	memset(memory, 1, SOME);
	begins(PROTECT, memory);
	is(refused(memory, SOME), 0, "registered before mprotect takes effect");
	takes_effect();
	is(refused(memory, SOME), 4, "refused once it has taken effect");
	returns();
	is(refused(memory, SOME), 4, "and when it has returned");
	must(mprotect(memory, SOME, READ_WRITE) == 0);
	is(refused(memory, SOME), 0, "writable again, it is registered");
}

/*
 * mprotect has reached the library, and has met a region. Meanwhile another part of that memory is
 * pinned, with all rights, and before the cache keeps that region mprotect returns.
 */

static char *protected;

static void before_kept(long number, const long argument[6])
{
	if (number != SYS_ioctl || argument[1] != (long)UFFDIO_CONTINUE || !protected)
		return;
	protected = NULL;
	takes_effect();
	returns();
}

static void pinned_during_call(void)
{
	char *memory = with_region(SOME, SOME);

	begins(PROTECT, memory);
	protected = memory;
	stub_before = before_kept;
	dereg(reg(memory + PAGE, PAGE));
	stub_before = NULL;
	ok(!protected, "mprotect has returned between the pin and the end of the registration");
	is(refused(memory + PAGE, PAGE), 4, "no registration gets the rights that the memory had before");
}

/* As a signal handler that interrupts a registration does: it cannot take the cache's lock. */
static void protects_inside(long number, const long argument[6])
{
	char *memory = protected;

	if (number != SYS_ioctl || argument[1] != (long)UFFDIO_CONTINUE || !memory)
		return;
	protected = NULL;
	change(PROTECT, memory);
}

static void interrupted(void)
{
	char *elsewhere = pages(1), *memory = protected = with_region(SOME, SOME);

	stub_before = protects_inside;
	hit(elsewhere, PAGE);
	stub_before = NULL;
	ok(!protected, "mprotect was called inside a registration");
	is(refused(memory, SOME), 4, "the memory is not registered for writing");
}

/*
 * Regions of one mapping share the watch of the 2 MiB around them. When the memory of some of them
 * goes, the watch of the others must go on: a raw system call that replaces their memory still ends
 * them, and data lands in the current page.
 */

enum { REGIONS = 5 };

static char *region_in(char *at, int region) { return at + (1 + region * 20L) * PAGE; }

static void neighbours_change(void)
{
	for (unsigned int changed = 1; changed < (1u << REGIONS) - 1; changed++) {
		/* A new place begins with a chunk. */
		char *place = new_place(CHUNK);

		fresh_at(place, CHUNK);
		for (int n = 0; n < REGIONS; n++)
			leave_idle_in(region_in(place, n), SOME);
		for (int n = 0; n < REGIONS; n++)
			if (changed & 1u << n)
				change((enum change)row->value, region_in(place, n));
		/* Other registrations make the cache see the change. */
		hit(region_in(place, REGIONS), SOME);
		for (int n = 0; n < REGIONS; n++) {
			if (changed & 1u << n)
				continue;
			raw_remap(region_in(place, n), SOME);
			ok(arrives(region_in(place, n), SOME),
			   "without regions %#x, data lands in the new page of region %d", changed, n);
		}
		must(munmap(place, CHUNK) == 0);
	}
}

/*
 * Huge pages, of which a machine has few: pages that a file gave back are free, and the next mmap
 * gets them. So the cache keeps no region of huge pages, not for a moment.
 */

static long free_pages(void) { return field_of("/proc/meminfo", "HugePages_Free"); }

/* Of a file or not (row->value); registered whole, page by page, and a part of a page. */
static void huge_pages(void)
{
	int file = memfd_create("file", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB), kept = 0;
	size_t length;
	long all;

	if (getenv("VM"))
		must(system("[ $(cat /proc/sys/vm/nr_hugepages) -ge 2 ] || echo 8 >/proc/sys/vm/nr_hugepages") == 0);
	all = free_pages();
	if (all <= 0)
		skip_all("there is no free huge page (vm.nr_hugepages)");
	length = (size_t)all * HUGE;
	must(file >= 0);
	for (int round = 0; round < 50; round++) {
		char *memory;

		must(ftruncate(file, (off_t)length) == 0);
		memory = row->value ? mmap(NULL, length, READ_WRITE, MAP_SHARED, file, 0) :
				      mmap(NULL, length, READ_WRITE, OWN | MAP_HUGETLB, -1, 0);
		must(memory != MAP_FAILED && arrives(memory, length) && arrives(memory, length));
		for (long page = 0; page < all; page++)
			must(arrives(memory + page * HUGE, HUGE) && arrives(memory + page * HUGE + PAGE, PAGE));
		kept += in_device() != 0;
		must(munmap(memory, length) == 0);
		must(ibv_flush_relaxed_mr(stub_pd()) == 0 && ftruncate(file, 0) == 0 && comes(free_pages() >= all));
	}
	is(kept, 0, "after none of 50 releases are its huge pages pinned");
	must(close(file) == 0);
}

/* The memory keeps its pages, so the call leaves most regions to the cleaner. */
static void end_soon(void)
{
	enum { MANY = 400 };
	long before = in_device();
	char *memory = pages(MANY), *other = memory;

	for (int n = 0; n < MANY; n++)
		leave_idle(memory + n * PAGE);
	is(in_device() - before, MANY, "idle regions");
	if (row->value == PROTECT)
		must(mprotect(memory, MANY * PAGE, PROT_READ) == 0 && refused(memory + (MANY - 1) * PAGE, PAGE) == 4);
	else
		must((other = mremap(memory, MANY * PAGE, MANY * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, new_place(MANY * PAGE))) !=
		     MAP_FAILED);
	ok(comes(in_device() == before), "all of them end");
	if (row->value == MOVE_AWAY) {
		fresh_at(memory, MANY * PAGE);
		for (int n = 0; n < MANY; n++)
			must(arrives(memory + n * PAGE, PAGE) && arrives(other + n * PAGE, PAGE));
	}
}

#define AT_ONCE(call, how) { call ": the idle region ends at once", ends_at_once, .flags = NO_PINS, .value = (how) }
#define NEIGHBOURS(how, words) { words " of memory beside regions: their watch goes on", neighbours_change, how }
#define OF_HUGE_PAGES(what, file) { "huge pages, " what ": none stays pinned", huge_pages, .value = (file), .settings = "RDMAMR_CACHE_MAX_IDLE_BYTES=1G" }
static const struct row rows[] = {
	AT_ONCE("munmap", UNMAP),
	AT_ONCE("munmap of a page of it", UNMAP_PAGE),
	AT_ONCE("mmap with MAP_FIXED", REPLACE),
	AT_ONCE("mremap away", MOVE_AWAY),
	AT_ONCE("madvise", DROP),
	AT_ONCE("mprotect", PROTECT),
	{ "mprotect of many idle regions", end_soon, .value = PROTECT },
	{ "mremap of many idle regions", end_soon, .value = MOVE_AWAY },
	{ "a process_madvise that fails half way, after guard pages", half_advised, .flags = NO_PINS },
	{ "memory whose pages a raw madvise has just dropped", just_dropped, .flags = NO_PINS },
	{ "PROT_GROWSDOWN protects the mapping from its start on", grows_down, .flags = NO_PINS },
	{ "beside a munmap of another thread", beside_a_slow_call, .flags = NO_PINS },
	{ "beside a munmap of much memory of another thread", beside_a_long_call, .flags = NO_PINS },
	{ "a signal handler leaves munmap by siglongjmp", left_by_a_handler, .flags = NO_PINS },
	{ "a signal handler leaves munmap by siglongjmp, before the real call", left_by_a_handler, .flags = NO_PINS, .value = 1 },
	{ "a signal comes during a munmap of much memory", let_in, .flags = NO_PINS },
	{ "pkey_mprotect with a key", keyed, .flags = NO_PINS },
	{ "registered during mprotect, the first of the process", registered_during_call },
	{ "registered during mprotect, a later one", registered_during_call, 1 },
	{ "pinned during mprotect, kept after it", pinned_during_call },
	{ "mprotect inside a registration", interrupted },
	NEIGHBOURS(UNMAP, "munmap"),
	NEIGHBOURS(UNMAP_RAW, "a raw munmap"),
	NEIGHBOURS(REPLACE, "mmap"),
	NEIGHBOURS(MOVE_AWAY, "mremap"),
	OF_HUGE_PAGES("private", false),
	OF_HUGE_PAGES("of a file", true),
};

static void around(void)
{
	must(&slow_address);
	if (!uffd_features())
		skip_all("userfaultfd is refused here");
	on_stub();
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(in_device(), 0, "the device has no region left");
}

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, around)
