/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Some calls fail for pages that a device has pinned: MADV_COLLAPSE, UFFDIO_MOVE, mbind, move_pages
 * and migrate_pages. The cache leaves no page pinned that the program has deregistered when it
 * makes such a call, so they succeed, idle regions or not. Later registrations get the current
 * pages.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef UFFD_FEATURE_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
#define UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES (1ULL << 1)
struct uffdio_move { uint64_t dst, src, len, mode; int64_t move; };
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

enum { HUGE = 2 << 20, ROUNDS = 20, SOME = 16 * PAGE };

/* libnuma's, which the library interposes if it is preloaded. */
long mbind(void *, unsigned long, int, const unsigned long *, unsigned long, unsigned);
long move_pages(int, unsigned long, void **, const int *, int *, int);
long migrate_pages(int, unsigned long, const unsigned long *, const unsigned long *);
#pragma weak mbind
#pragma weak move_pages
#pragma weak migrate_pages

static bool lands(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);
	bool good;

	must(mr);
	good = stub_lands(mr);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return good;
}

/* Registers the memory, twice, and deregisters it. */
static void use(void *memory, size_t length)
{
	must(lands(memory, length) && lands(memory, length));
}

/*
 * Whether the stand-in unpins pages as soon as it has deregistered them, as a device does. The
 * io_uring of Linux 6.1 does so later. `call` is a call that fails for pinned pages.
 */
static bool lets_go(char *memory, size_t length, bool call(char *memory))
{
	struct ibv_mr *mr = stub_register(stub_pd(), memory, length, LOCAL_AND_REMOTE);

	must(mr && stub_deregister(mr) == 0);
	return call(memory);
}

/* Small pages that the kernel may replace by a huge one. */
static char *small_pages(void)
{
	char *all = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *memory;

	must(all != MAP_FAILED);
	memory = (char *)(((uintptr_t)all + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	if (memory > all)
		must(munmap(all, (size_t)(memory - all)) == 0);
	must(munmap(memory + HUGE, (size_t)(all + HUGE - memory)) == 0);
	must(madvise(memory, HUGE, MADV_NOHUGEPAGE) == 0);
	memset(memory, 1, HUGE);
	must(madvise(memory, HUGE, MADV_HUGEPAGE) == 0);
	return memory;
}

static int self = -1;

static bool by_madvise(char *memory)
{
	return madvise(memory, HUGE, MADV_COLLAPSE) == 0;
}

/* In two ranges, of which the first is empty. */
static bool by_process_madvise(char *memory)
{
	struct iovec ranges[] = { { memory, 0 }, { memory, HUGE } };

	return process_madvise(self, ranges, 2, MADV_COLLAPSE, 0) == HUGE;
}

/*
 * The call's answer. The kernel itself may hold a page for a moment, on a list of fresh pages for
 * example: then madvise(2) says EAGAIN, "try again". A region that the device still has is no such
 * moment.
 */
static bool succeeds(bool collapse(char *memory), char *memory)
{
	struct timespec moment = { .tv_nsec = 10000000 };

	for (int tries = 0; tries < 100; tries++) {
		if (collapse(memory))
			return true;
		if (errno != EAGAIN || stub_registered() != stub_deregistered())
			return false;
		nanosleep(&moment, NULL);
	}
	return collapse(memory);
}

static void collapsed(const char *name, bool collapse(char *memory))
{
	int refused = 0, stale = 0, err = 0;
	char *memory = small_pages();

	/* The kernel may be short of huge pages, too. */
	if (!lets_go(memory, SOME, collapse)) {
		skip_errno(name, "MADV_COLLAPSE after a registration without the library");
		must(munmap(memory, HUGE) == 0);
		return;
	}
	must(munmap(memory, HUGE) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		memory = small_pages();
		use(memory + 5 * PAGE, SOME);
		use(memory + 100 * PAGE, PAGE);
		if (!succeeds(collapse, memory)) {
			refused++;
			err = errno;
		}
		stale += !lands(memory + 5 * PAGE, SOME);
		must(munmap(memory, HUGE) == 0);
	}
	errno = err;
	ok(!refused, "%s of deregistered memory: none of %d fails (%d)", name, ROUNDS, refused);
	is(stale, 0, "and data lands afterwards");
}

static void moved_by_userfaultfd(void)
{
	/* The stand-in has an ioctl of its own before the library's. */
	int (*next_ioctl)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
	int uffd = (uffd_features() & UFFD_FEATURE_MOVE) ? open_userfaultfd(UFFD_FEATURE_MOVE) : -1, refused = 0, stale = 0, err = 0;

	if (uffd < 0) {
		skip("UFFDIO_MOVE", "this kernel has none");
		return;
	}
	for (int round = 0; round < ROUNDS; round++) {
		char *from = pages(SOME / PAGE), *to = mmap(NULL, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct uffdio_register watched = { .range = { (uintptr_t)to, SOME }, .mode = UFFDIO_REGISTER_MODE_MISSING };
		struct uffdio_move move = { .dst = (uintptr_t)to, .src = (uintptr_t)from, .len = SOME };

		must(to != MAP_FAILED && next_ioctl(uffd, UFFDIO_REGISTER, &watched) == 0);
		use(from, SOME);
		memset(from, 7, SOME);
		if (next_ioctl(uffd, UFFDIO_MOVE, &move)) {
			refused++;
			err = errno;
		} else {
			must(to[0] == 7 && to[SOME - 1] == 7);
		}
		stale += !lands(from, SOME);
		must(munmap(from, SOME) == 0 && munmap(to, SOME) == 0);
	}
	errno = err;
	ok(!refused, "UFFDIO_MOVE of deregistered memory: none of %d fails (%d)", ROUNDS, refused);
	is(stale, 0, "and data lands afterwards");
	must(close(uffd) == 0);
}

static bool by_mbind(char *memory, int node)
{
	unsigned long nodes = 1UL << node;

	return (mbind ? mbind(memory, SOME, MPOL_BIND, &nodes, 8 * sizeof(nodes), MPOL_MF_MOVE | MPOL_MF_STRICT) :
			syscall(SYS_mbind, memory, SOME, MPOL_BIND, &nodes, 8 * sizeof(nodes), MPOL_MF_MOVE | MPOL_MF_STRICT)) == 0;
}

static bool by_move_pages(char *memory, int node)
{
	enum { COUNT = SOME / PAGE };
	int nodes[COUNT], status[COUNT];
	void *list[COUNT];

	for (int n = 0; n < COUNT; n++) {
		list[n] = memory + n * PAGE;
		nodes[n] = node;
	}
	if ((move_pages ? move_pages(0, COUNT, list, nodes, status, MPOL_MF_MOVE) :
			  syscall(SYS_move_pages, 0, COUNT, list, nodes, status, MPOL_MF_MOVE)) != 0)
		return false;
	for (int n = 0; n < COUNT; n++)
		if (status[n] != node)
			return errno = -status[n], false;
	return true;
}

static bool by_migrate_pages(char *memory, int node)
{
	unsigned long to = 1UL << node, from = 1UL << !node;
	int at = -1;

	if ((migrate_pages ? migrate_pages(0, 8 * sizeof(to), &from, &to) :
			     syscall(SYS_migrate_pages, 0, 8 * sizeof(to), &from, &to)) < 0)
		return false;
	errno = EBUSY;
	return syscall(SYS_get_mempolicy, &at, NULL, 0L, memory, MPOL_F_NODE | MPOL_F_ADDR) == 0 && at == node;
}

/* Moves the memory to the other of two nodes. */
static bool (*move_there)(char *memory, int node);

static int node_of(char *memory)
{
	int node = -1;

	must(syscall(SYS_get_mempolicy, &node, NULL, 0L, memory, MPOL_F_NODE | MPOL_F_ADDR) == 0);
	return node;
}

static bool moves(char *memory)
{
	return move_there(memory, !node_of(memory));
}

static void moved_to_node(const char *name, bool move(char *memory, int node))
{
	int refused = 0, stale = 0, err = 0;
	char *first = pages(SOME / PAGE);

	move_there = move;
	if (!lets_go(first, SOME, moves)) {
		skip_errno(name, "the call after a registration without the library");
		must(munmap(first, SOME) == 0);
		return;
	}
	must(munmap(first, SOME) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		char *memory = pages(SOME / PAGE);

		use(memory, SOME);
		if (!moves(memory)) {
			refused++;
			err = errno;
		}
		stale += !lands(memory, SOME);
		must(munmap(memory, SOME) == 0);
	}
	errno = err;
	ok(!refused, "%s moves deregistered memory: none of %d fails (%d)", name, ROUNDS, refused);
	is(stale, 0, "and data lands afterwards");
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	use(pages(1), PAGE);
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	must(self >= 0);
	collapsed("madvise(MADV_COLLAPSE)", by_madvise);
	collapsed("process_madvise(MADV_COLLAPSE)", by_process_madvise);
	moved_by_userfaultfd();
	if (access("/sys/devices/system/node/node1", F_OK)) {
		skip("mbind, move_pages and migrate_pages", "the machine has one node");
	} else {
		moved_to_node("mbind", by_mbind);
		moved_to_node("move_pages", by_move_pages);
		moved_to_node("migrate_pages", by_migrate_pages);
	}
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(stub_registered() - stub_deregistered(), 0, "the device has no region left");
	return done_testing();
}
