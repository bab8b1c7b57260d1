/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Steps on memory of their own, beyond the windows, since their calls need more of it: blocks of
 * the C library that realloc grows by mremap, memory that the kernel collapses to a huge page, and
 * pages that a userfaultfd moves. Each step registers parts of the memory before its call, so that
 * the cache has idle regions there, and after it.
 *
 * Raw system calls that fail for pinned pages are known to differ where memory was registered
 * (docs/limits.md, "Pages that idle regions pin").
 */
#include "fuzz.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef UFFDIO_MOVE
struct uffdio_move {
	__u64 dst, src, len, mode;
	__s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif
#ifndef UFFD_FEATURE_MOVE
#define UFFD_FEATURE_MOVE (1ULL << 16)
#endif

enum { HUGE = 2 << 20, HUGE_PAGES = HUGE / PAGE, CHUNKS = 2, MOVED_PAGES = 64 };
/* The number of attempts at a call that fails because the kernel is short of something. */
enum { TRIES = 50 };

static char *const chunks = (char *)0x200080000000;
static char *const source = (char *)0x2000c0000000;
static char *const target = (char *)0x2000d0000000;

static bool is_short(int err)
{
	return err == EAGAIN || err == EBUSY || err == ENOMEM;
}

static void write_pages(char *at, size_t count, uint64_t tag)
{
	for (size_t page = 0; page < count; page++)
		if (poke(at + page * PAGE + 8, tag | (uint64_t)step_number << 16 | page))
			note(" fault");
}

/* In each page, the bytes that are written here, and those that the device writes. */
static void note_content(const char *at, size_t length)
{
	uint64_t sum = 0;
	int fault = 0;

	for (size_t page = 0; page < length && !fault; page += PAGE)
		sum = sum * 31 + look_bytes(at + page, 24, &fault);
	note(" content %016llx fault %d", (unsigned long long)sum, fault);
}

/* A part of that many pages. */
static void part(uint32_t word, size_t pages, size_t *first, size_t *count)
{
	*first = word % pages;
	*count = 1 + word / 1024 % 16;
	if (*count > pages - *first)
		*count = pages - *first;
}

static void use_parts(char *at, size_t pages, uint32_t word, uint32_t how)
{
	for (uint32_t n = 0; n < 1 + how % 3; n++) {
		size_t first, count;

		part(word + n * 0x9e3779b9, pages, &first, &count);
		use_memory(at + first * PAGE, count * PAGE, how / 3 + n);
	}
}

/* --- realloc */

/*
 * The kernel chooses the addresses of blocks, which differ from run to run. The page faults show
 * whether realloc has copied a block or moved its pages. A block is larger than the heap's spare
 * memory (calls_open), or it would not be a mapping of its own; few of its pages are touched.
 */
enum { LEAST = 24576, MORE = 2048, TOUCHED = 512, HEADER = 64 };
static char *block;
static size_t block_pages;

/* The first whole page of the block. */
static char *first_page(void)
{
	return (char *)(((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

static void note_block(size_t pages)
{
	note_content(first_page(), TOUCHED * PAGE);
	note_content(first_page() + (pages - TOUCHED) * PAGE, (TOUCHED - 2) * PAGE);
}

static void resize(size_t pages, struct ibv_mr *mr)
{
	size_t same = block_pages < pages ? block_pages : pages;
	struct rusage before, after;
	char *now;

	note(" from %zu to %zu pages", block_pages, pages);
	must(getrusage(RUSAGE_THREAD, &before) == 0);
	errno = 0;
	now = realloc(block, pages * PAGE - HEADER);
	if (!now) {
		note_result(-1);
		return;
	}
	must(getrusage(RUSAGE_THREAD, &after) == 0);
	if (after.ru_minflt - before.ru_minflt > LEAST / 4)
		note(" COPIED");
	else if (pages > block_pages)
		happened(GROWN);
	block = now;
	block_pages = pages;
	note_block(same);
	if (mr) { /* the device writes by an old region to the pages that have moved */
		device_writes_held(mr);
		note_block(same);
	}
}

void realloc_step(const struct step *step)
{
	struct ibv_mr *mr = NULL;
	size_t pages;

	note("realloc");
	if (library_lost_its_file) /* it copies (docs/limits.md) */
		return;
	if (block && (step->word[0] % 6 == 0 || block_pages > LEAST + MORE)) {
		free(block);
		block = NULL;
	}
	if (!block) {
		block_pages = LEAST + step->word[1] % 256;
		errno = 0;
		block = malloc(block_pages * PAGE - HEADER);
		if (!block) {
			note_result(-1);
			return;
		}
	}
	write_pages(first_page(), TOUCHED, 0xb000000000000000);
	write_pages(first_page() + (block_pages - TOUCHED) * PAGE, TOUCHED - 2, 0xb100000000000000);
	use_parts(first_page(), block_pages - 2, step->word[2], step->word[3]);
	if (step->word[5] % 4 == 0)
		mr = hold_memory(first_page() + step->word[5] / 4 % TOUCHED * PAGE, 3 * PAGE);
	pages = step->word[4] % 8 ? block_pages + 1 + step->word[4] / 8 % 512 : block_pages - step->word[4] / 8 % 256;
	resize(pages < LEAST ? LEAST : pages, mr);
	if (mr)
		let_go_memory(mr);
	use_parts(first_page(), block_pages - 2, step->word[2], step->word[6]);
}

/* --- Huge pages */

static struct {
	bool is_there, registered;
	int forks; /* when it was mapped */
} chunk_state[CHUNKS];
static int self_fd;

static long collapse(char *at, uint32_t how, bool raw)
{
	struct iovec ranges[2] = { { at, 0 }, { at, HUGE } };

	if (raw)
		return syscall(SYS_madvise, at, HUGE, MADV_COLLAPSE);
	if (how % 3 == 0)
		return process_madvise(self_fd, ranges, 2, MADV_COLLAPSE, 0);
	return madvise(at, HUGE, MADV_COLLAPSE);
}

void collapse_step(const struct step *step)
{
	int n = (int)(step->word[0] % CHUNKS);
	char *at = chunks + (size_t)n * HUGE;
	bool raw = step->raw;
	struct ibv_mr *mr = NULL;
	size_t first, count;
	long result;
	int tries = 0;

	note("collapse chunk %d:", n);
	if (!chunk_state[n].is_there || step->word[1] % 4 == 0) {
		void *map = mmap(at, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

		note(" mmap");
		note_result((long)map == (long)at ? 0 : -1);
		if (map == at) {
			chunk_state[n].is_there = true;
			chunk_state[n].registered = false;
			chunk_state[n].forks = forks;
			/*
			 * Small pages first; and one before any part is watched, so that the parts can be
			 * joined again.
			 */
			note_result(madvise(at, HUGE, MADV_NOHUGEPAGE));
			write_pages(at, 1, 0x6000000000000000);
		}
	}
	if (!chunk_state[n].is_there)
		return;
	part(step->word[2], HUGE_PAGES, &first, &count);
	if (step->word[3] % 2)
		note_result(madvise(at + first * PAGE, count * PAGE, MADV_DONTNEED));
	part(step->word[3], HUGE_PAGES, &first, &count);
	write_pages(at + first * PAGE, count, 0x6100000000000000);
	if (step->word[4] % 8) {
		chunk_state[n].registered = true;
		use_parts(at, HUGE_PAGES, step->word[4] / 8, step->word[5]);
	}
	/*
	 * fork splits a huge page that an idle region pins in part (docs/limits.md), and then a region
	 * that is held prevents the collapse.
	 */
	if (step->word[6] % 8 == 0 && chunk_state[n].forks == forks) {
		chunk_state[n].registered = true;
		mr = hold_memory(at + step->word[6] / 8 % (HUGE_PAGES - 4) * PAGE, 3 * PAGE);
	}
	note_result(madvise(at, HUGE, MADV_HUGEPAGE));
	if (chunk_state[n].registered && (library_lost_its_file || !is_linux(6, 2))) {
		note(" no call: watched memory stays watched, or its pages stay read-only (docs/limits.md)");
		if (mr)
			let_go_memory(mr);
		return;
	}
	raw = raw && !chunk_state[n].registered;
	do {
		errno = 0;
		result = collapse(at, step->word[7], raw);
		if (result == HUGE)
			result = 0;
	} while (!mr && result && is_short(errno) && ++tries < TRIES && usleep(1000) == 0);
	note(" %s", raw ? "raw" : "call");
	note_result(result);
	if (!result)
		happened(COLLAPSED);
	note_content(at, HUGE);
	if (mr) {
		device_writes_held(mr);
		note_content(at, HUGE);
		let_go_memory(mr);
	}
	if (step->word[4] % 8)
		use_parts(at, HUGE_PAGES, step->word[4] / 8, step->word[5] / 9);
}

/* --- Pages that a userfaultfd moves. An access to a missing page of the target is a SIGBUS. */

static int uffd;
static bool moves_there;

/* The stand-in device has an ioctl of its own before the library's. */
static int (*next_ioctl)(int, unsigned long, ...);

static bool map_for_move(char *at, bool watched)
{
	struct uffdio_register range = {
		.range = { (uintptr_t)at, MOVED_PAGES * PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	if (mmap(at, MOVED_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
		return false;
	if (watched)
		return next_ioctl(uffd, UFFDIO_REGISTER, &range) == 0;
	write_pages(at, 1, 0x7000000000000000);
	return true;
}

void move_step(const struct step *step)
{
	struct uffdio_move move = { 0 };
	struct ibv_mr *mr = NULL;
	size_t first, count;
	long result;
	int tries = 0;

	note("move by userfaultfd:");
	if (uffd < 0 || library_lost_its_file) /* watched memory stays watched (docs/limits.md) */
		return;
	if (!moves_there || step->word[0] % 4 == 0) {
		errno = 0;
		moves_there = map_for_move(target, true) && map_for_move(source, false);
		note(" mmap");
		note_result(moves_there ? 0 : -1);
	}
	if (!moves_there)
		return;
	part(step->word[1], MOVED_PAGES, &first, &count);
	note_result(madvise(target + first * PAGE, count * PAGE, MADV_DONTNEED));
	if (step->word[2] % 8)
		use_parts(source, MOVED_PAGES, step->word[1], step->word[2] / 8);
	/* After a fork the kernel moves no page that was not written since. */
	write_pages(source + first * PAGE, count, 0x7100000000000000);
	if (step->word[3] % 8 == 0)
		mr = hold_memory(source + first * PAGE, PAGE);
	note(" %zu pages at %zu", count, first);
	do {
		size_t done = move.move > 0 ? (size_t)move.move : 0;

		move = (struct uffdio_move){
			.dst = (uintptr_t)target + first * PAGE + done,
			.src = (uintptr_t)source + first * PAGE + done,
			.len = count * PAGE - done,
		};
		errno = 0;
		result = next_ioctl(uffd, UFFDIO_MOVE, &move);
	} while (!mr && result && is_short(errno) && ++tries < TRIES && usleep(1000) == 0);
	note_result(result);
	if (!result)
		happened(MOVED);
	note_content(source, MOVED_PAGES * PAGE);
	note_content(target + first * PAGE, count * PAGE);
	if (mr) {
		device_writes_held(mr);
		let_go_memory(mr);
	}
	if (!result)
		use_memory(target + first * PAGE, count * PAGE, step->word[4]);
	use_parts(source, MOVED_PAGES, step->word[1], step->word[4]);
	note_content(source, MOVED_PAGES * PAGE);
}

void beyond_open(void)
{
	self_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	must(self_fd >= 0);
	*(void **)&next_ioctl = dlsym(RTLD_NEXT, "ioctl");
	must(next_ioctl);
	uffd = (uffd_features() & UFFD_FEATURE_MOVE) ? open_userfaultfd(UFFD_FEATURE_MOVE | UFFD_FEATURE_SIGBUS) : -1;
	if (uffd < 0)
		cannot_happen(MOVED);
}
