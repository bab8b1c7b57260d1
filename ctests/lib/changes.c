/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "changes.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/io_uring.h>
#include <malloc.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include "memory.h"
#include "tap.h"

/* Some systems' headers are older. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

enum { COUNT = 8, HALF = COUNT / 2 * PAGE, SIZE = COUNT * PAGE, BLOCK = 256 << 10, BIG = 4 << 20, HUGE_PAGE = 2 << 20 };
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

void (*another_domain_registers)(void *at, size_t length);

/* The calls of each way. */

static void *library_map(void *at, size_t length, int flags, int fd)
{
	return mmap(at, length, READ_WRITE, flags, fd, 0);
}

static void *raw_map(void *at, size_t length, int flags, int fd)
{
	return (void *)syscall(SYS_mmap, at, length, READ_WRITE, flags, fd, 0);
}

static void *sibling_map(void *at, size_t length, int flags, int fd)
{
	return mmap64(at, length, READ_WRITE, flags, fd, 0);
}

static void *library_move(void *from, size_t was, size_t wanted, int flags, void *to)
{
	return mremap(from, was, wanted, flags, to);
}

static void *raw_move(void *from, size_t was, size_t wanted, int flags, void *to)
{
	return (void *)syscall(SYS_mremap, from, was, wanted, flags, to);
}

static int raw_advise(void *at, size_t length, int advice)
{
	return (int)syscall(SYS_madvise, at, length, advice);
}

static int advise_process(pid_t pid, void *at, size_t length, int advice)
{
	struct iovec range = { at, length };
	int process = (int)syscall(SYS_pidfd_open, pid, 0), err;
	long done;

	must(process >= 0);
	done = syscall(SYS_process_madvise, process, &range, 1, advice, 0);
	err = done < 0 ? errno : EAGAIN;
	close(process);
	errno = err;
	return done == (long)length ? 0 : -1;
}

static int self_advise(void *at, size_t length, int advice)
{
	return advise_process(getpid(), at, length, advice);
}

/* Waits for a child that ends with an errno. */
static int result_of(pid_t child)
{
	int status;

	must(waitpid(child, &status, 0) == child && WIFEXITED(status));
	errno = WEXITSTATUS(status);
	return errno ? -1 : 0;
}

static int process_advise(void *at, size_t length, int advice)
{
	pid_t parent = getpid(), child = fork();

	must(child >= 0);
	if (!child)
		_exit(advise_process(parent, at, length, advice) ? errno : 0);
	return result_of(child);
}

static int raw_protect(void *at, size_t length, int protection)
{
	return (int)syscall(SYS_mprotect, at, length, protection);
}

static int sibling_protect(void *at, size_t length, int protection)
{
	return pkey_mprotect(at, length, protection, -1);
}

static int library_set_break(char *end)
{
	return brk(end);
}

static int sibling_set_break(char *end)
{
	return sbrk(end - (char *)sbrk(0)) == (void *)-1 ? -1 : 0;
}

/* Leaves the C library's record of the heap's end unchanged. */
static int raw_set_break(char *end)
{
	return (char *)syscall(SYS_brk, end) == end ? 0 : -1;
}

static int library_punch(int fd, size_t length)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)length);
}

static int process_punch(int fd, size_t length)
{
	pid_t child = fork();

	must(child >= 0);
	if (!child)
		_exit(library_punch(fd, length) ? errno : 0);
	return result_of(child);
}

static int library_resize(int fd, size_t length)
{
	return ftruncate(fd, (off_t)length);
}

static int process_resize(int fd, size_t length)
{
	pid_t child = fork();

	must(child >= 0);
	if (!child)
		_exit(ftruncate(fd, (off_t)length) ? errno : 0);
	return result_of(child);
}

static struct {
	int fd;
	char *rings;
	struct io_uring_sqe *entries;
	struct io_uring_params params;
} uring = { .fd = -1 };

static bool ring_open(void)
{
	size_t size;

	if (uring.fd >= 0)
		return true;
	uring.fd = (int)syscall(SYS_io_uring_setup, 4, &uring.params);
	if (uring.fd < 0)
		return false;
	must(uring.params.features & IORING_FEAT_SINGLE_MMAP);
	size = uring.params.cq_off.cqes + uring.params.cq_entries * sizeof(struct io_uring_cqe);
	uring.rings = mmap(NULL, size, READ_WRITE, MAP_SHARED | MAP_POPULATE, uring.fd, IORING_OFF_SQ_RING);
	uring.entries = mmap(NULL, uring.params.sq_entries * sizeof(struct io_uring_sqe), READ_WRITE,
			     MAP_SHARED | MAP_POPULATE, uring.fd, IORING_OFF_SQES);
	must(uring.rings != MAP_FAILED && uring.entries != MAP_FAILED);
	return true;
}

static unsigned int *ring(uint32_t offset)
{
	return (unsigned int *)(uring.rings + offset);
}

static bool ring_submit(const struct io_uring_sqe *request)
{
	unsigned int tail, slot;

	if (!ring_open())
		return false;
	tail = *ring(uring.params.sq_off.tail);
	slot = tail & *ring(uring.params.sq_off.ring_mask);
	uring.entries[slot] = *request;
	ring(uring.params.sq_off.array)[slot] = slot;
	__atomic_store_n(ring(uring.params.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	must(syscall(SYS_io_uring_enter, uring.fd, 1, 0, 0, NULL, 0) == 1);
	return true;
}

int ring_result(void)
{
	unsigned int head = *ring(uring.params.cq_off.head);
	const struct io_uring_cqe *cqes = (const void *)(uring.rings + uring.params.cq_off.cqes);
	int result;

	while (__atomic_load_n(ring(uring.params.cq_off.tail), __ATOMIC_ACQUIRE) == head)
		must(syscall(SYS_io_uring_enter, uring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0);
	result = cqes[head & *ring(uring.params.cq_off.ring_mask)].res;
	__atomic_store_n(ring(uring.params.cq_off.head), head + 1, __ATOMIC_RELEASE);
	return result;
}

/* Submits the request and waits for it. */
static int ring_does(const struct io_uring_sqe *request)
{
	int result;

	if (!ring_submit(request))
		return -1;
	result = ring_result();
	errno = -result;
	return result ? -1 : 0;
}

static struct io_uring_sqe advice_request(void *at, size_t length, int advice, bool worker)
{
	return (struct io_uring_sqe){
		.opcode = IORING_OP_MADVISE,
		.flags = worker ? IOSQE_ASYNC : 0,
		.fd = -1,
		.addr = (uintptr_t)at,
		.len = (uint32_t)length,
		.fadvise_advice = (uint32_t)advice,
	};
}

bool ring_begin_discard(void *at, size_t length, bool worker)
{
	struct io_uring_sqe request = advice_request(at, length, MADV_DONTNEED, worker);

	return ring_submit(&request);
}

static int ring_advise(void *at, size_t length, int advice)
{
	struct io_uring_sqe request = advice_request(at, length, advice, false);

	return ring_does(&request);
}

static int worker_advise(void *at, size_t length, int advice)
{
	struct io_uring_sqe request = advice_request(at, length, advice, true);

	return ring_does(&request);
}

static int worker_punch(int fd, size_t length)
{
	struct io_uring_sqe request = {
		.opcode = IORING_OP_FALLOCATE,
		.flags = IOSQE_ASYNC,
		.fd = fd,
		.len = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, /* the mode */
		.addr = length,
	};

	return ring_does(&request);
}

const struct way ways[WAYS] = {
	[LIBRARY] = { library_map, munmap, library_move, madvise, mprotect, library_set_break, library_punch, library_resize },
	[RAW] = { .map = raw_map, .unmap = raw_munmap, .move = raw_move, .advise = raw_advise,
		   .protect = raw_protect, .set_break = raw_set_break },
	[MIXED] = { .map = library_map, .unmap = raw_munmap },
	[SIBLING] = { .map = sibling_map, .unmap = munmap, .protect = sibling_protect, .set_break = sibling_set_break },
	[SELF] = { .advise = self_advise },
	[RING] = { .advise = ring_advise },
	[WORKER] = { .advise = worker_advise, .punch = worker_punch },
	[PROCESS] = { .advise = process_advise, .punch = process_punch, .resize = process_resize },
};

/* The places. */

static void whole(struct place *place)
{
	place->ranges[0] = (struct range){ .at = place->at, .length = place->length, .before = true };
	place->count = 1;
}

/* Alone: the kernel would merge it with a neighbour of the same kind. */
static char *apart(size_t length)
{
	char *around = mmap(NULL, length + 2 * PAGE, PROT_NONE, ANONYMOUS, -1, 0);

	must(around != MAP_FAILED);
	must(mmap(around + PAGE, length, READ_WRITE, ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0) == around + PAGE);
	return around + PAGE;
}

static void anonymous(struct place *place)
{
	place->at = apart(SIZE);
	place->length = SIZE;
	whole(place);
}

/* As long as a huge page, and aligned to one. */
static void huge(struct place *place)
{
	char *around = mmap(NULL, 2 * HUGE_PAGE, PROT_NONE, ANONYMOUS, -1, 0);

	must(around != MAP_FAILED);
	place->at = (char *)(((uintptr_t)around + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	place->length = HUGE_PAGE;
	must(mmap(place->at, HUGE_PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0) == place->at);
	whole(place);
}

static void locked(struct place *place)
{
	anonymous(place);
	must(mlock(place->at, SIZE) == 0);
}

static void two_halves(struct place *place)
{
	anonymous(place);
	place->ranges[0] = (struct range){ "the first half", place->at, HALF, true, FRESH };
	place->ranges[1] = (struct range){ "the second half", place->at + HALF, SIZE - HALF, true, KEPT };
	place->count = 2;
}

/* One half, with room to grow. */
static void half(struct place *place)
{
	anonymous(place);
	must(munmap(place->at + HALF, SIZE - HALF) == 0);
	place->ranges[0].length = HALF;
}

static void page_and_before(struct place *place)
{
	anonymous(place);
	place->ranges[1] = (struct range){ "the pages before it", place->at, 5 * PAGE, false, LANDS };
	place->count = 2;
}

static void shared(struct place *place)
{
	place->at = mmap(NULL, SIZE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(place->at != MAP_FAILED);
	place->length = SIZE;
	place->unkept = true;
	whole(place);
}

static void file(struct place *place)
{
	place->fd = memfd_create("changes", MFD_CLOEXEC);
	must(place->fd >= 0 && ftruncate(place->fd, SIZE) == 0);
	place->at = mmap(NULL, SIZE, READ_WRITE, MAP_SHARED, place->fd, 0);
	must(place->at != MAP_FAILED);
	place->length = SIZE;
	place->unkept = true;
	whole(place);
}

static void segment(struct place *place)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);

	place->at = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
	must(place->at != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
	place->length = SIZE;
	place->unkept = true;
	whole(place);
}

/* If the C library has continued the heap behind the place, the place stays. */
static void heap_released(struct place *place)
{
	if (sbrk(0) == place->at + SIZE)
		must(brk(place->at) == 0);
}

/* The heap has so much spare memory, less than BIG, that as a rule nothing else moves its end. */
static void heap(struct place *place)
{
	must(mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1 && mallopt(M_MMAP_THRESHOLD, 16 << 20) == 1);
	spare_in_heap(1 << 20);
	place->at = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
	must(brk(place->at + SIZE) == 0);
	memset(place->at, 1, SIZE);
	place->length = SIZE;
	place->release = heap_released;
	whole(place);
}

static void free_block(struct place *place)
{
	free(place->other);
	free(place->at);
	must(mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1 && mallopt(M_MMAP_THRESHOLD, 16 << 20) == 1);
}

/* A block with a mapping of its own. */
static void large_block(struct place *place)
{
	must(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
	place->at = malloc(BIG);
	must(place->at);
	place->length = BIG;
	place->release = free_block;
	whole(place);
}

/*
 * A block at the end of its heap, with free memory elsewhere for smaller allocations, so that none
 * lies behind it. The block right before it is never freed: the two would merge.
 */
static void block_at_the_end(struct place *place)
{
	char *spare, *before, *block;

	must(mallopt(M_MMAP_THRESHOLD, 16 << 20) == 1 && mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1);
	must(mallopt(M_TOP_PAD, 0) == 1);
	malloc_trim(0);
	spare = malloc(BLOCK / 2);
	block = malloc(BLOCK);
	do {
		before = block;
		block = malloc(BLOCK);
		must(spare && before && block);
	} while (block - before < BLOCK || block - before > BLOCK + 64);
	free(spare);
	place->at = block;
	place->length = BLOCK;
	place->release = free_block;
	whole(place);
}

static void block_with_one_behind(struct place *place)
{
	block_at_the_end(place);
	place->other = malloc(BLOCK);
	must(place->other > place->at);
}

static void block_of_a_thread(struct place *place)
{
	block_at_the_end(place);
	must(place->at > (char *)sbrk(0)); /* a heap of its own */
}

void release(struct place *place)
{
	if (place->release)
		place->release(place);
	if (place->fd >= 0)
		close(place->fd);
}

/* The changes. */

static int nothing(struct place *place, const struct way *way)
{
	(void)place;
	(void)way;
	return 0;
}

static int map_new(const struct way *way, char *at, size_t length)
{
	must(way->map(at, length, ANONYMOUS | MAP_FIXED_NOREPLACE, -1) == at);
	return 0;
}

static int remap_pages(const struct way *way, char *at, size_t length)
{
	must(way->unmap(at, length) == 0);
	return map_new(way, at, length);
}

static int unmap_and_map(struct place *place, const struct way *way)
{
	return remap_pages(way, place->at, SIZE);
}

static int unmap_first_page(struct place *place, const struct way *way)
{
	return remap_pages(way, place->at, PAGE);
}

static int unmap_last_page(struct place *place, const struct way *way)
{
	return remap_pages(way, place->at + SIZE - PAGE, PAGE);
}

static int unmap_half(struct place *place, const struct way *way)
{
	return remap_pages(way, place->at, HALF);
}

static int unmap_and_other_domain(struct place *place, const struct way *way)
{
	must(unmap_and_map(place, way) == 0);
	another_domain_registers(place->at, SIZE);
	return 0;
}

static int map_over(struct place *place, const struct way *way)
{
	must(way->map(place->at, SIZE, ANONYMOUS | MAP_FIXED, -1) == place->at);
	return 0;
}

static int map_over_page(struct place *place, const struct way *way)
{
	must(way->map(place->at + HALF, PAGE, ANONYMOUS | MAP_FIXED, -1) == place->at + HALF);
	return 0;
}

static int file_over_page(struct place *place, const struct way *way)
{
	place->fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	must(place->fd >= 0);
	must(way->map(place->at + HALF, PAGE, MAP_PRIVATE | MAP_FIXED, place->fd) == place->at + HALF);
	place->unkept = true;
	return 0;
}

static int shared_over_page(struct place *place, const struct way *way)
{
	place->fd = memfd_create("shared", MFD_CLOEXEC);
	must(place->fd >= 0 && ftruncate(place->fd, PAGE) == 0);
	must(way->map(place->at + HALF, PAGE, MAP_SHARED | MAP_FIXED, place->fd) == place->at + HALF);
	place->unkept = true;
	return 0;
}

static int move_away(struct place *place, const struct way *way)
{
	char *to = apart(SIZE);

	must(way->move(place->at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	map_new(&ways[LIBRARY], place->at, SIZE);
	place->other = to;
	place->ranges[0].what = "where it was";
	place->ranges[1] = (struct range){ .what = "where it is", .at = to, .length = SIZE };
	place->count = 2;
	return 0;
}

static int move_back(struct place *place, const struct way *way)
{
	must(way->move(place->other, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, place->at) == place->at);
	place->count = 1;
	return 0;
}

static int move_onto(struct place *place, const struct way *way)
{
	must(way->move(apart(SIZE), SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, place->at) == place->at);
	return 0;
}

static int move_page_onto(struct place *place, const struct way *way)
{
	char *to = place->at + 3 * PAGE;

	must(way->move(apart(PAGE), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	return 0;
}

static int grow(struct place *place, const struct way *way)
{
	must(way->move(place->at, HALF, SIZE, 0, NULL) == place->at);
	place->ranges[0].what = "the old part";
	place->ranges[0].expected = LANDS;
	place->ranges[1] = (struct range){ .what = "all of it", .at = place->at, .length = SIZE };
	place->count = 2;
	return 0;
}

static int shrink(struct place *place, const struct way *way)
{
	must(way->move(place->at, SIZE, HALF, 0, NULL) == place->at);
	return map_new(&ways[LIBRARY], place->at + HALF, SIZE - HALF);
}

static int move_without_unmapping(struct place *place, const struct way *way)
{
	char *to = way->move(place->at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);

	must(to != MAP_FAILED);
	place->ranges[0].what = "where it was";
	place->ranges[1] = (struct range){ .what = "where it is", .at = to, .length = SIZE };
	place->count = 2;
	return 0;
}

static int advise_some(struct place *place, const struct way *way, size_t first, size_t count, int advice)
{
	/* The content, too, shows a worker's success. */
	if ((way == &ways[RING] || way == &ways[WORKER]) && advice == MADV_DONTNEED)
		place->emptied = place->at + first * PAGE;
	return way->advise(place->at + first * PAGE, count * PAGE, advice);
}

#define ADVICE(name, first, count, advice)                                     \
	static int name(struct place *place, const struct way *way)            \
	{                                                                      \
		return advise_some(place, way, first, count, advice);          \
	}
ADVICE(discard, 0, COUNT, MADV_DONTNEED)
ADVICE(discard_first, 0, 1, MADV_DONTNEED)
ADVICE(discard_middle, 5, 1, MADV_DONTNEED)
ADVICE(discard_last, COUNT - 1, 1, MADV_DONTNEED)
ADVICE(discard_locked, 0, COUNT, MADV_DONTNEED_LOCKED)
ADVICE(discard_locked_page, 3, 1, MADV_DONTNEED_LOCKED)
ADVICE(remove_pages, 0, COUNT, MADV_REMOVE)
ADVICE(advise_free, 0, COUNT, MADV_FREE)
ADVICE(advise_cold, 0, COUNT, MADV_COLD)
ADVICE(advise_pageout, 0, COUNT, MADV_PAGEOUT)
ADVICE(advise_willneed, 0, COUNT, MADV_WILLNEED)
ADVICE(advise_hugepage, 0, COUNT, MADV_HUGEPAGE)
ADVICE(advise_nohugepage, 0, COUNT, MADV_NOHUGEPAGE)
ADVICE(advise_populate, 0, COUNT, MADV_POPULATE_WRITE)

/*
 * The kernel cannot collapse pinned pages, and returns EBUSY. It may refuse others as well, with
 * EAGAIN or EINVAL, by the state of its memory. The pages are good in each case.
 */
static int advise_collapse(struct place *place, const struct way *way)
{
	way->advise(place->at, place->length, MADV_COLLAPSE);
	return 0;
}

static int guard(struct place *place, const struct way *way)
{
	if (way->advise(place->at + 2 * PAGE, PAGE, GUARD_INSTALL))
		return -1;
	return way->advise(place->at + 2 * PAGE, PAGE, GUARD_REMOVE);
}

/* In glibc, this advice does nothing at all. */
static int advise_by_posix(struct place *place, const struct way *way)
{
	(void)way;
	errno = posix_madvise(place->at, SIZE, POSIX_MADV_DONTNEED);
	return errno ? -1 : 0;
}

static int remove_by_other(struct place *place, const struct way *way)
{
	char *other = mmap(NULL, SIZE, READ_WRITE, MAP_SHARED, place->fd, 0);

	must(other != MAP_FAILED);
	must(way->advise(other, SIZE, MADV_REMOVE) == 0);
	return munmap(other, SIZE);
}

static int punch(struct place *place, const struct way *way)
{
	if (way == &ways[WORKER])
		place->emptied = place->at;
	return way->punch(place->fd, SIZE);
}

static int truncate_and_grow(struct place *place, const struct way *way)
{
	must(way->resize(place->fd, 0) == 0);
	return way->resize(place->fd, SIZE);
}

static int attach_other(struct place *place, const struct way *way)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);

	(void)way;
	must(id >= 0 && shmdt(place->at) == 0);
	must(shmat(id, place->at, 0) == place->at);
	return shmctl(id, IPC_RMID, NULL);
}

static int make_readable(struct place *place, const struct way *way)
{
	return way->protect(place->at, SIZE, PROT_READ);
}

static int make_unreachable(struct place *place, const struct way *way)
{
	return way->protect(place->at, SIZE, PROT_NONE);
}

static int make_writable(struct place *place, const struct way *way)
{
	return way->protect(place->at, SIZE, READ_WRITE);
}

static int make_page_readable(struct place *place, const struct way *way)
{
	return way->protect(place->at + 5 * PAGE, PAGE, PROT_READ);
}

static int fork_and_write(struct place *place, const struct way *way)
{
	pid_t child = fork();

	(void)way;
	must(child >= 0);
	if (!child) {
		place->at[0]++;
		_exit(0);
	}
	must(waitpid(child, NULL, 0) == child);
	return 0;
}

static int heap_ends_earlier(struct place *place, const struct way *way, size_t by)
{
	char *end = place->at + SIZE;

	must(sbrk(0) == end); /* nothing else moved it */
	must(way->set_break(end - by) == 0);
	must(way->set_break(end) == 0);
	return 0;
}

static int give_heap_back(struct place *place, const struct way *way)
{
	return heap_ends_earlier(place, way, SIZE);
}

static int give_heap_page_back(struct place *place, const struct way *way)
{
	return heap_ends_earlier(place, way, PAGE);
}

/* Allocates the block again, which must get the same address. */
static int allocate_again(struct place *place)
{
	char *was = place->at;

	place->at = malloc(place->length);
	must(place->at == was);
	return 0;
}

static int free_large(struct place *place, const struct way *way)
{
	(void)way;
	free(place->at);
	return allocate_again(place);
}

/* The block has no room to grow, so that realloc moves it. */
static int reallocate_large(struct place *place, const struct way *way)
{
	char *volatile was = place->at; /* an address, valid after the block has moved away */
	size_t behind = ((uintptr_t)was + malloc_usable_size(place->at) + PAGE - 1) & ~(uintptr_t)(PAGE - 1);

	(void)way;
	if (mmap((void *)behind, PAGE, PROT_NONE, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
		must(errno == EEXIST);
	place->at = realloc(place->at, 2 * BIG);
	must(place->at && place->at != was);
	/*
	 * The first page began with the block's header, so the mapping was one page longer than the
	 * block.
	 */
	fresh_at(was - 16, BIG + PAGE);
	place->ranges[0].what = "where it was";
	place->ranges[1] = (struct range){ "where it is", place->at, BIG, false, LANDS };
	place->count = 2;
	return 0;
}

static int free_at_the_end(struct place *place, const struct way *way)
{
	char *end = sbrk(0);

	(void)way;
	must(place->at < end && place->at + BLOCK <= end); /* from the heap, not a mapping of its own */
	must(mallopt(M_TRIM_THRESHOLD, 64 << 10) == 1);
	free(place->at);
	must((char *)sbrk(0) < end);
	return allocate_again(place);
}

static int trim_at_the_end(struct place *place, const struct way *way)
{
	char *end = sbrk(0);

	(void)way;
	must(place->at < end && place->at + BLOCK <= end);
	free(place->at);
	must(malloc_trim(0) == 1);
	must((char *)sbrk(0) < end);
	return allocate_again(place);
}

static int trim_in_the_middle(struct place *place, const struct way *way)
{
	(void)way;
	free(place->at);
	must(malloc_trim(0) == 1);
	return allocate_again(place);
}

/* The heap of a thread ends by madvise or by a mapping over it. */
static int free_in_a_thread(struct place *place, const struct way *way)
{
	const char *volatile seen = place->at; /* its memory stays readable */

	(void)way;
	must(mallopt(M_TRIM_THRESHOLD, 64 << 10) == 1);
	memset(place->at, 1, BLOCK);
	free(place->at);
	must(seen[BLOCK / 2] == 0);
	return allocate_again(place);
}

#define CALLS (BY(LIBRARY) | BY(RAW))
#define PROTECTING (BY(LIBRARY) | BY(SIBLING))

const struct change changes[] = {
	{ "nothing", BY(LIBRARY), BY(LIBRARY), anonymous, .steps = { { nothing, KEPT } } },

	{ "`munmap`, `mmap`", CALLS | BY(MIXED), CALLS, anonymous, .steps = { { unmap_and_map, FRESH } } },
	{ "`munmap`, `mmap` of the first page", CALLS | BY(MIXED), 0, anonymous,
	  .steps = { { unmap_first_page, FRESH } } },
	{ "`munmap`, `mmap` of the last page", CALLS | BY(MIXED), 0, anonymous,
	  .steps = { { unmap_last_page, FRESH } } },
	{ "`munmap`, `mmap` of one half", CALLS, 0, two_halves, .steps = { { unmap_half, AS_STEP } } },
	{ "`munmap`, `mmap`, and another domain registers first", BY(RAW), BY(RAW), anonymous,
	  .steps = { { unmap_and_other_domain, FRESH } } },

	{ "`mmap` with `MAP_FIXED` over it", CALLS | BY(SIBLING), BY(LIBRARY), anonymous,
	  .steps = { { map_over, FRESH } },
	  .sibling = "mmap64" },
	{ "`mmap` with `MAP_FIXED` over one page", CALLS | BY(SIBLING), BY(RAW), anonymous,
	  .steps = { { map_over_page, FRESH } }, .sibling = "mmap64" },
	{ "a private file mapping over one page", CALLS | BY(SIBLING), 0, anonymous,
	  .steps = { { file_over_page, FRESH } },
	  .sibling = "mmap64" },
	{ "a shared mapping over one page", CALLS | BY(SIBLING), 0, anonymous,
	  .steps = { { shared_over_page, FRESH } },
	  .sibling = "mmap64" },

	{ "`MADV_DONTNEED`", CALLS | BY(SELF) | BY(RING) | BY(WORKER), CALLS, anonymous,
	  .steps = { { discard, FRESH } } },
	{ "`MADV_DONTNEED` of the first page", CALLS, 0, anonymous, .steps = { { discard_first, FRESH } } },
	{ "`MADV_DONTNEED` of a page in the middle", CALLS, 0, anonymous, .steps = { { discard_middle, FRESH } } },
	{ "`MADV_DONTNEED` of the last page", CALLS, 0, anonymous, .steps = { { discard_last, FRESH } } },
	{ "`MADV_DONTNEED_LOCKED`", CALLS, BY(LIBRARY), locked, .steps = { { discard_locked, FRESH } },
	  .since = LINUX(5, 18) },
	{ "`MADV_DONTNEED_LOCKED` of one page", CALLS, 0, locked, .steps = { { discard_locked_page, FRESH } },
	  .since = LINUX(5, 18) },
	{ "`MADV_GUARD_INSTALL`, `MADV_GUARD_REMOVE` of one page", CALLS, 0, anonymous, .steps = { { guard, FRESH } },
	  .since = LINUX(6, 13), .limits = BY(RAW) },
	{ "`MADV_FREE`", CALLS, 0, anonymous, .steps = { { advise_free, EITHER } }, .flags = UNKNOWN_AFTER },
	{ "`MADV_COLD`", CALLS | BY(SELF) | BY(PROCESS), 0, anonymous, .steps = { { advise_cold, EITHER } } },
	{ "`MADV_PAGEOUT`", CALLS | BY(SELF) | BY(PROCESS), BY(LIBRARY), anonymous,
	  .steps = { { advise_pageout, EITHER } } },
	{ "`MADV_COLLAPSE`", CALLS | BY(SELF) | BY(PROCESS), 0, huge, .steps = { { advise_collapse, EITHER } },
	  .since = LINUX(6, 1) },
	{ "`MADV_WILLNEED`", CALLS, 0, anonymous, .steps = { { advise_willneed, EITHER } } },
	{ "`MADV_HUGEPAGE`", CALLS, 0, anonymous, .steps = { { advise_hugepage, EITHER } } },
	{ "`MADV_NOHUGEPAGE`", CALLS, 0, anonymous, .steps = { { advise_nohugepage, EITHER } } },
	{ "`MADV_POPULATE_WRITE`", CALLS, 0, anonymous,
	  .steps = { { advise_populate, EITHER } }, .since = LINUX(5, 14) },
	{ "`posix_madvise` with `POSIX_MADV_DONTNEED`", BY(LIBRARY), 0, anonymous,
	  .steps = { { advise_by_posix, EITHER } } },

	{ "`mremap` away, `mmap`", CALLS, BY(LIBRARY), anonymous, .steps = { { move_away, FRESH } } },
	{ "`mremap` away, `mmap`, `mremap` back", CALLS, 0, anonymous,
	  .steps = { { move_away, FRESH }, { move_back, LANDS } } },
	{ "`mremap` with `MREMAP_FIXED` onto it", CALLS, BY(LIBRARY), anonymous, .steps = { { move_onto, FRESH } } },
	{ "`mremap` of one page onto it", CALLS, 0, anonymous, .steps = { { move_page_onto, FRESH } } },
	{ "`mremap` that grows it in place", CALLS, 0, half, .steps = { { grow, FRESH } } },
	{ "`mremap` that shrinks it, `mmap` behind it", CALLS, 0, anonymous, .steps = { { shrink, FRESH } } },
	{ "`mremap` with `MREMAP_DONTUNMAP`", CALLS, 0, anonymous, .steps = { { move_without_unmapping, FRESH } } },

	{ "`MADV_REMOVE` of shared memory", CALLS, 0, shared, .steps = { { remove_pages, FRESH } } },
	{ "`MADV_REMOVE` through another mapping", CALLS, BY(LIBRARY), file, .steps = { { remove_by_other, FRESH } } },
	{ "`fallocate` with `FALLOC_FL_PUNCH_HOLE`", BY(LIBRARY) | BY(WORKER) | BY(PROCESS), BY(LIBRARY), file,
	  .steps = { { punch, FRESH } } },
	{ "`ftruncate` to 0 and back", BY(LIBRARY) | BY(PROCESS), BY(LIBRARY), file,
	  .steps = { { truncate_and_grow, FRESH } } },
	{ "`shmdt`, `shmat` of another segment", BY(LIBRARY), BY(LIBRARY), segment,
	  .steps = { { attach_other, FRESH } } },

	{ "`mprotect` to read-only and back", PROTECTING | BY(RAW), BY(LIBRARY), anonymous,
	  .steps = { { make_readable, READABLE }, { make_writable, LANDS } }, .unseen = BY(RAW), .sibling = "pkey_mprotect" },
	{ "`mprotect` to no access and back", PROTECTING, 0, anonymous,
	  .steps = { { make_unreachable, OUT_OF_REACH }, { make_writable, LANDS } }, .sibling = "pkey_mprotect" },
	{ "`mprotect` of one page to read-only and back", PROTECTING, 0, page_and_before,
	  .steps = { { make_page_readable, READABLE }, { make_writable, LANDS } }, .sibling = "pkey_mprotect" },

	{ "`fork`, and the child writes", BY(LIBRARY), BY(LIBRARY), anonymous,
	  .steps = { { fork_and_write, EITHER } } },

	{ "the end of the heap given back and taken again", CALLS | BY(SIBLING), 0, heap,
	  .steps = { { give_heap_back, FRESH } },
	  .flags = NOT_BY_THREAD, .sibling = "sbrk" },
	{ "the last page of the heap given back and taken again", CALLS | BY(SIBLING), 0, heap,
	  .steps = { { give_heap_page_back, FRESH } }, NOT_BY_THREAD, .sibling = "sbrk" },
	{ "`free`, `malloc` of a large block", BY(LIBRARY), 0, large_block,
	  .steps = { { free_large, FRESH } }, .flags = ONCE },
	{ "`realloc` of a large block", BY(LIBRARY), 0, large_block,
	  .steps = { { reallocate_large, FRESH } }, .flags = ONCE },
	{ "`malloc_trim` at the end of the heap", BY(LIBRARY), 0, block_at_the_end,
	  .steps = { { trim_at_the_end, FRESH } }, .flags = ONCE },
	{ "`free` at the end of the heap", BY(LIBRARY), 0, block_at_the_end,
	  .steps = { { free_at_the_end, FRESH } }, .flags = ONCE },
	{ "`malloc_trim` in the middle of the heap", BY(LIBRARY), 0, block_with_one_behind,
	  .steps = { { trim_in_the_middle, FRESH } }, .flags = ONCE },
	{ "`free` in the heap of a thread", BY(LIBRARY), 0, block_of_a_thread,
	  .steps = { { free_in_a_thread, FRESH } },
	  .flags = ONCE | IN_A_THREAD },
};
const size_t change_count = sizeof(changes) / sizeof(changes[0]);

const char *change_name(const struct change *change, int way)
{
	static const char *const suffixes[WAYS] = {
		[LIBRARY] = "",
		[RAW] = " by raw system calls",
		[MIXED] = ", the `munmap` by a raw system call",
		[SELF] = " by `process_madvise`",
		[RING] = " by an io_uring",
		[WORKER] = " by a worker of an io_uring",
		[PROCESS] = " by another process",
	};
	static char name[200];

	if (way == SIBLING)
		snprintf(name, sizeof(name), "%s by `%s`", change->name, change->sibling);
	else
		snprintf(name, sizeof(name), "%s%s", change->name, suffixes[way]);
	return name;
}

bool change_is_due(const struct change *change)
{
	struct utsname system;
	int major = 0, minor = 0;

	must(uname(&system) == 0 && sscanf(system.release, "%d.%d", &major, &minor) == 2);
	return change->since && LINUX(major, minor) >= change->since;
}

enum expected expected_of(const struct change *change, const struct step *step, const struct range *range, int way)
{
	enum expected expected = range->expected;

	/* The expectation for a range holds after the first step; the second restores all of it. */
	if (expected == AS_STEP || step != change->steps)
		expected = step->expected;
	if (change->unseen & BY(way) && (expected == READABLE || expected == OUT_OF_REACH))
		expected = UNSEEN;
	return expected;
}
