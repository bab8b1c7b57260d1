/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registered memory is moved: by mremap(2), by realloc inside the C library, as one mapping or as several,
 * beside other threads. The watch of a part of a mapping splits it, and mremap accepts a single mapping (Linux
 * 6.17: several). A program that could move its memory still can, to the same effect, and a registration gets
 * the memory that is at its address.
 */
#include <malloc.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "../../lib/stub_rows.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
enum { MIB = 1 << 20, CHUNK = 2 * MIB, LARGE = 3 * CHUNK, TO = MREMAP_MAYMOVE | MREMAP_FIXED };
enum { READ_WRITE = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS, SHARED = MAP_SHARED | MAP_ANONYMOUS };

static void leave(void *at, size_t length)
{
	for (int time = 0; time < 2; time++)
		dereg(reg(at, length));
}

/* The byte at an address; -1 if it cannot be read. */
static int there(const char *at)
{
	unsigned char byte;
	struct iovec from = { (void *)(uintptr_t)at, 1 }, to = { &byte, 1 };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 ? byte : -1;
}

/* To an address that the kernel chooses: a page at row->value was registered. */

static void watched_in_part(void)
{
	char *at = new_place(LARGE), *moved;
	size_t size = *(const size_t *)row->of;

	/* Touched before: the kernel never joins parts that were touched apart (docs/limits.md). */
	fresh_at(at, LARGE);
	memset(at, 7, LARGE);
	leave_idle(at + row->value);
	at[row->value] = 7;
	/* It cannot grow where it is. */
	must(mmap(at + LARGE, PAGE, PROT_NONE, OWN | MAP_FIXED_NOREPLACE, -1, 0) == at + LARGE);
	moved = mremap(at, LARGE, size, MREMAP_MAYMOVE);
	if (!ok(moved != MAP_FAILED, "it is moved"))
		return;
	ok(moved[0] == 7 && moved[row->value] == 7 && moved[5 * MIB - 1] == 7, "with its content");
	once(moved + row->value);
	if (size > LARGE)
		fresh_at(at, LARGE);
	once(at + row->value);
}

/* Of a large mapping without pages the second chunk alone is watched, and gets a page. */
static void untouched_before(void)
{
	char *all = new_place(64 * LARGE), *at = all + CHUNK, *moved;

	must(mmap(all, 64 * LARGE, READ_WRITE, OWN | MAP_FIXED_NOREPLACE, -1, 0) == all);
	leave_idle(at);
	moved = mremap(at - PAGE, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE);
	if (moved == MAP_FAILED && errno == EFAULT && kernel_is_before(6, 2))
		skip_all("Linux 6.1 does not join these mappings");
	if (ok(moved != MAP_FAILED, "it is moved"))
		once(moved + PAGE);
}

/*
 * To a fixed address. The kernel unmaps the target before it refuses several mappings. A thread that
 * maps memory at an unmapped target must not lose it, and must get nothing of a move that succeeds
 * without the library.
 */

enum { ROUNDS = 100, MARK = 0x5a, MOVED = 7 };
static char *target;
static _Atomic bool wanted, tries;

/* Returns the target if it gets it. */
static void *take(void *unused)
{
	char *has = NULL;

	(void)unused;
	tries = true;
	while (wanted && !has)
		has = raw_map_at(target, LARGE);
	if (has)
		memset(has, MARK, LARGE);
	return has;
}

static void to_taken_place(void)
{
	int moved = 0, taken = 0, kept = 0, right = 0;

	target = new_place(LARGE);
	for (int round = 0; round < ROUNDS; round++) {
		char *source = new_place(LARGE), *got;
		pthread_t thread;
		bool has;

		fresh_at(source, LARGE);
		memset(source, MOVED, LARGE);
		if (row->value > 1)
			must(mprotect(source + 5 * MIB, PAGE, PROT_READ) == 0);
		leave(source + 3 * MIB, PAGE);
		must(mmap(target, LARGE, PROT_NONE, OWN | MAP_FIXED, -1, 0) == target);
		wanted = true;
		tries = false;
		thread = must_start(take, NULL);
		while (!tries)
			sched_yield();
		got = mremap(source, LARGE, LARGE, TO, target);
		must(got == target || errno == EFAULT);
		wanted = false;
		has = must_join(thread);
		moved += got == target;
		right += got == target && there(target) == MOVED;
		taken += has;
		kept += has && there(target) == MARK && there(target + LARGE - 1) == MARK;
		munmap(source, LARGE);
		munmap(target, LARGE);
	}
	if (row->value == 1) {
		is(moved, ROUNDS, "every move succeeds");
		is(taken, 0, "no other thread gets the target");
	}
	is(right, moved, "the moved data is at the target, %d times", moved);
	is(kept, taken, "a mapping that another thread makes there stays, %d times", taken);
}

/*
 * Several mappings, to a fixed address: the call's answer and the memory afterwards are those of the
 * same mappings at another place, where nothing is registered.
 */

enum { PAGES = 16 };
static int file;

/*
 * The mappings of a place, row->of: a letter, the first page and the number of pages each. o, s and f are
 * private, shared and of a file, n cannot be accessed, r is of a file and read-only, w replaces what is
 * there by a raw system call, and u is registered if this is the place for that.
 */
static void prepare(char *place, bool registered)
{
	int first, count, used;
	char letter;

	for (const char *at = row->of; sscanf(at, " %c%d+%d%n", &letter, &first, &count, &used) == 3; at += used) {
		bool is_file = strchr("fr", letter);
		int protection = letter == 'n' ? PROT_NONE : letter == 'r' ? PROT_READ : READ_WRITE;
		int flags = MAP_FIXED | (is_file ? MAP_PRIVATE : letter == 's' ? SHARED : OWN);
		char *part = place + first * PAGE;
		size_t length = (size_t)count * PAGE;

		for (int round = 0; letter == 'u' && registered && round < 2; round++) {
			struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), part, length, LOCAL_AND_REMOTE);

			must(!mr || ibv_dereg_mr_relaxed(mr) == 0);
		}
		if (letter == 'u')
			continue;
		must((letter == 'w' ? (char *)syscall(SYS_mmap, part, length, protection, flags, -1, 0L) :
				      mmap(part, length, protection, flags, is_file ? file : -1, 0)) == part);
		for (int page = 0; strchr("osf", letter) && page < count; page++)
			part[page * PAGE] = (char)(first + page + 1);
	}
}

/* Returns mremap's errno, and the first byte of each page of the source and the target. */
static int outcome_of(bool registered, int bytes[2 * PAGES])
{
	char *place = new_place(3 * PAGES * PAGE), *to = place + 2 * PAGES * PAGE;
	int flags = TO | (int)row->value, err;

	prepare(place, registered);
	err = mremap(place, PAGES * PAGE, PAGES * PAGE, flags, to) == MAP_FAILED ? errno : 0;
	for (int page = 0; page < PAGES; page++) {
		bytes[page] = there(place + page * PAGE);
		bytes[PAGES + page] = there(to + page * PAGE);
	}
	return err;
}

static void several(void)
{
	int without[2 * PAGES], with[2 * PAGES], err;

	file = memfd_create("file", MFD_CLOEXEC);
	must(file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
	err = outcome_of(false, without);
	is(outcome_of(true, with), err, "the same answer (%s)",
	   err ? strerrorname_np(err) : "they move");
	ok(!memcmp(with, without, sizeof(with)), "the same memory at both places");
}

/*
 * realloc grows a large block of the C library by an mremap inside the C library. It must still move
 * the pages and not copy them: a copy touches each page of a new block, and the kernel counts that.
 */

enum { SIZE = 64 * MIB, FEW = SIZE / PAGE / 8 };

/* What is registered of the block: parts of this length from there on. */
struct parts {
	size_t from, apart, length;
};

static void reallocated(void)
{
	const struct parts *parts = row->of;
	char *block;

	/* The kernel counts each touched page, unless huge. The block is a mapping of its own. */
	must(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0 && mallopt(M_MMAP_THRESHOLD, MIB) == 1);
	must((block = malloc(SIZE)));
	for (size_t at = 0; at < SIZE; at += PAGE)
		block[at] = (char)(at / PAGE + 1);
	for (size_t at = parts->from; at < SIZE; at += parts->apart) {
		if (row->value)
			reg(block + at, parts->length);
		else
			leave(block + at, parts->length);
	}
	/* Two times, since the first leaves the block in another place. */
	for (int time = 1; time <= 2; time++) {
		long before = faults(), more;
		int wrong = 0;

		block = realloc(block, SIZE + (size_t)time * 4 * MIB);
		must(block);
		more = faults() - before;
		ok(more < FEW, "realloc %d touches few pages: %ld of %d", time, more, SIZE / PAGE);
		for (size_t at = 0; at < SIZE; at += PAGE)
			wrong += block[at] != (char)(at / PAGE + 1);
		is(wrong, 0, "realloc %d leaves the data", time);
		leave(block + 20 * MIB, MIB);
		ok(arrives(block + 20 * MIB, MIB),
		   "after realloc %d a registration has the memory of the new place", time);
		/* The device has written to one page. */
		block[20 * MIB] = (char)(20 * MIB / PAGE + 1);
	}
}

/*
 * One thread moves registered memory by mremap. Another sees its data at the new address and
 * registers the old one, all before mremap has returned: no region of the moved pages may serve it.
 * (A raw system call loses this race, docs/limits.md: the kernel moves the pages before it marks the
 * change as in flight.)
 */

enum { RACES = 60 };
static char *from, *to;
static _Atomic int go, done;
static sigjmp_buf out;

static void *mover(void *argument)
{
	go = 1;
	must(mremap(from, SIZE, SIZE, TO, to) == to);
	done = 1;
	return argument;
}

static void jump(int number)
{
	(void)number;
	siglongjmp(out, 1);
}

/* Whether the page is there. An access to a missing page waits until mremap has returned. */
static bool sees(volatile const char *page) { return sigsetjmp(out, 1) ? false : *page == 7; }

/* The target is one to which page tables cannot move as a whole: it begins at another page of its 2 MiB. */
static void places(void)
{
	from = new_place(2 * (SIZE + CHUNK));
	to = from + SIZE + CHUNK + PAGE;
	fresh_at(from, SIZE);
	must(madvise(from, SIZE, MADV_NOHUGEPAGE) == 0);
	memset(from, 7, SIZE);
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

static void meanwhile(void)
{
	int seen = 0, hits = 0, stale = 0;
	double length = alone();

	must(signal(SIGSEGV, jump) != SIG_ERR);
	for (int round = 0; round < RACES; round++) {
		pthread_t thread;
		bool sees_it;
		double begun;

		places();
		leave(from, SIZE);
		go = done = 0;
		thread = must_start(mover, NULL);
		while (!go)
			sched_yield();
		do {
			begun = seconds_now();
			while (seconds_now() < begun + length * (round % 20) / 20)
				continue;
			sees_it = sees(to);
			/* The library's mremap has work to do before the kernel moves the pages. */
		} while (!sees_it && !done);
		if (sees_it && !done) {
			long registered = stub_registered();
			struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), from, SIZE, LOCAL_AND_REMOTE);

			seen++;
			if (mr && stub_registered() == registered) {
				hits++;
				/* The device writes to the pages that moved. */
				stale += stub_write(&(struct ibv_mr){ .addr = from, .length = 1, .lkey = mr->lkey }, 9) == 0 &&
					 ((volatile char *)to)[0] == 9;
			}
			must(!mr || ibv_dereg_mr_relaxed(mr) == 0);
		}
		must(pthread_join(thread, NULL) == 0 && munmap(to, SIZE) == 0);
	}
	printf("# of %d registrations of the old address %d got a region, and %d one of the pages that moved\n", seen, hits, stale);
	is(stale, 0, "none of %d registrations gets a region of the pages that moved", seen);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(in_device(), 0, "the device has no region left");
}

#define PART(words, at, size) { "mremap, " words, watched_in_part, at, &(const size_t){ size } }
#define SEVERAL(words, flags, place) { "mremap of several mappings, " words, several, flags, place }
#define REALLOC(words, in_use, ...)                                          \
	{ "realloc, " words, reallocated, in_use, &(const struct parts){ __VA_ARGS__ } }

static const struct row rows[] = {
	PART("its first page was registered", 0, 2 * LARGE),
	PART("a page inside was registered", 3 * MIB, 2 * LARGE),
	PART("a page inside was registered, and it shrinks", 3 * MIB, 5 * MIB),
	{ "mremap, without a page before the region", untouched_before },
	{ "mremap of one mapping to a place that another thread wants", to_taken_place, 1 },
	{ "mremap of two mappings to a place that another thread wants", to_taken_place, 2 },
	SEVERAL("memory of other kinds follows", 0, "o0+4 s4+4 f12+4 u0+2"),
	SEVERAL("the registered memory is in the middle", 0, "s0+4 o8+4 u9+1"),
	SEVERAL("its registration was refused", 0, "n0+4 r4+4 u0+4"),
	SEVERAL("a part was replaced", 0, "o0+16 u2+10 o4+4"),
	SEVERAL("a part was replaced by a raw system call", 0, "o0+16 u2+10 w4+4"),
	SEVERAL("the old mappings are to stay", MREMAP_DONTUNMAP, "o0+4 s4+4 f12+4 u0+2"),
	SEVERAL("the old mappings are to stay, and the first is not registered", MREMAP_DONTUNMAP, "o0+4 o8+4 u9+1"),
	REALLOC("a part of the block was registered", false, SIZE / 2, SIZE, MIB),
	REALLOC("many parts of the block were registered", false, MIB, 7 * MIB, 3 * PAGE),
	REALLOC("all of the block was registered", false, 0, SIZE, SIZE),
	REALLOC("a part of the block is registered", true, SIZE / 2, SIZE, MIB),
	{ "registered while mremap moves it", meanwhile, .settings = "RDMAMR_CACHE_MAX_IDLE_BYTES=1G" },
};

static void around(void)
{
	if (!uffd_features())
		skip_all("no memory can be watched here");
	on_stub();
}

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, around)
