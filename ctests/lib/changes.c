/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "changes.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <malloc.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "memory.h"
#include "tap.h"
#include "uring.h"

/* Some systems' headers are older. */
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

enum { COUNT = 8, HALF = COUNT / 2 * PAGE, SIZE = COUNT * PAGE, BIG = 4 << 20 };
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

void (*another_domain_registers)(void *at, size_t length);

/* The calls of each way. */

#define CALL(type, name, parameters, answer) \
	static type name parameters          \
	{                                    \
		return (type)(answer);       \
	}
CALL(void *, library_map, (void *at, size_t length, int flags, int fd), mmap(at, length, READ_WRITE, flags, fd, 0))
CALL(void *, sibling_map, (void *at, size_t length, int flags, int fd), mmap64(at, length, READ_WRITE, flags, fd, 0))
CALL(void *, raw_map, (void *at, size_t length, int flags, int fd),
     syscall(SYS_mmap, at, length, READ_WRITE, flags, fd, 0))
CALL(void *, library_move, (void *from, size_t was, size_t wanted, int flags, void *to), mremap(from, was, wanted, flags, to))
CALL(void *, raw_move, (void *from, size_t was, size_t wanted, int flags, void *to),
     syscall(SYS_mremap, from, was, wanted, flags, to))
CALL(int, raw_advise, (void *at, size_t length, int advice), syscall(SYS_madvise, at, length, advice))
CALL(int, raw_protect, (void *at, size_t length, int access), syscall(SYS_mprotect, at, length, access))
CALL(int, sibling_protect, (void *at, size_t length, int access), pkey_mprotect(at, length, access, -1))
CALL(int, library_set_break, (char *end), brk(end))
CALL(int, sibling_set_break, (char *end), sbrk(end - (char *)sbrk(0)) == (void *)-1 ? -1 : 0)
/* Leaves the C library's record of the heap's end unchanged. */
CALL(int, raw_set_break, (char *end), (char *)syscall(SYS_brk, end) == end ? 0 : -1)

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
CALL(int, self_advise, (void *at, size_t length, int advice), advise_process(getpid(), at, length, advice))

/* By the thread that submits it, or by a worker. */
static int advise_by_ring(void *at, size_t length, int advice, bool worker)
{
	static struct uring uring = { .fd = -1 };
	int result;

	if (uring.fd < 0 && !uring_set_up(&uring))
		return -1;
	must(uring.queues || uring_map(&uring));
	result = uring_do(&uring, (struct io_uring_sqe){
		.opcode = IORING_OP_MADVISE,
		.flags = worker ? IOSQE_ASYNC : 0,
		.fd = -1,
		.addr = (uintptr_t)at,
		.len = (uint32_t)length,
		.fadvise_advice = (uint32_t)advice,
	});
	errno = -result;
	return result ? -1 : 0;
}
CALL(int, ring_advise, (void *at, size_t length, int advice), advise_by_ring(at, length, advice, false))
CALL(int, worker_advise, (void *at, size_t length, int advice), advise_by_ring(at, length, advice, true))

const struct way ways[WAYS] = {
	[LIBRARY] = { library_map, munmap, library_move, madvise, mprotect, library_set_break },
	[RAW] = { raw_map, raw_munmap, raw_move, raw_advise, raw_protect, raw_set_break },
	[SIBLING] = { .map = sibling_map, .unmap = munmap, .protect = sibling_protect, .set_break = sibling_set_break },
	[SELF] = { .advise = self_advise },
	[RING] = { .advise = ring_advise },
	[WORKER] = { .advise = worker_advise },
};

/* The places. */

static void whole(struct place *place, char *at, size_t length)
{
	place->at = at;
	place->length = length;
	place->ranges[0] = (struct range){ .at = at, .length = length, .before = true };
	place->count = 1;
}

static void add_range(struct place *place, const char *what, char *at)
{
	place->ranges[place->count++] = (struct range){ .what = what, .at = at, .length = SIZE };
}

/* Alone: the kernel would merge it with a neighbour of the same kind. */
static char *apart(size_t length)
{
	char *around = mmap(NULL, length + 2 * PAGE, PROT_NONE, ANONYMOUS, -1, 0);

	must(around != MAP_FAILED);
	must(mmap(around + PAGE, length, READ_WRITE, ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0) == around + PAGE);
	return around + PAGE;
}

static void anonymous(struct place *place) { whole(place, apart(SIZE), SIZE); }

static void locked(struct place *place)
{
	anonymous(place);
	must(mlock(place->at, SIZE) == 0);
}

static void two_halves(struct place *place)
{
	anonymous(place);
	place->ranges[0] = (struct range){ "the first half", place->at, HALF, true, ANEW };
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

/* Memory that others can map too: the cache keeps no region of it. */
static void of_others(struct place *place, int fd, char *at)
{
	must(at != MAP_FAILED);
	place->fd = fd;
	place->unkept = true;
	whole(place, at, SIZE);
}

static void file(struct place *place)
{
	int fd = memfd_create("changes", MFD_CLOEXEC);

	must(fd >= 0 && ftruncate(fd, SIZE) == 0);
	of_others(place, fd, mmap(NULL, SIZE, READ_WRITE, MAP_SHARED, fd, 0));
}

static void segment(struct place *place)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);

	must(id >= 0);
	of_others(place, -1, shmat(id, NULL, 0));
	must(shmctl(id, IPC_RMID, NULL) == 0);
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
	whole(place, (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(uintptr_t)(PAGE - 1)), SIZE);
	must(brk(place->at + SIZE) == 0);
	memset(place->at, 1, SIZE);
	place->release = heap_released;
}

static void free_block(struct place *place)
{
	free(place->at);
	must(mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1 && mallopt(M_MMAP_THRESHOLD, 16 << 20) == 1);
}

/* A block with a mapping of its own. */
static void large_block(struct place *place)
{
	must(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
	whole(place, malloc(BIG), BIG);
	must(place->at);
	place->release = free_block;
}

void release(struct place *place)
{
	if (place->release)
		place->release(place);
	if (place->fd >= 0)
		close(place->fd);
}

/* The changes. */

#define MAKES(name, result)                                            \
	static int name(struct place *place, const struct way *way)    \
	{                                                              \
		(void)place, (void)way;                                \
		return result;                                         \
	}
MAKES(nothing, 0)

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

MAKES(unmap_and_map, remap_pages(way, place->at, SIZE))
MAKES(unmap_half, remap_pages(way, place->at, HALF))

static int unmap_and_other_domain(struct place *place, const struct way *way)
{
	must(unmap_and_map(place, way) == 0);
	another_domain_registers(place->at, SIZE);
	return 0;
}

static int map_there(const struct way *way, char *at, size_t length)
{
	must(way->map(at, length, ANONYMOUS | MAP_FIXED, -1) == at);
	return 0;
}
MAKES(map_over, map_there(way, place->at, SIZE))
MAKES(map_over_page, map_there(way, place->at + HALF, PAGE))

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
	place->ranges[0].what = "where it was";
	add_range(place, "where it is", to);
	return 0;
}

static int move_onto(struct place *place, const struct way *way)
{
	must(way->move(apart(SIZE), SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, place->at) == place->at);
	return 0;
}

static int grow(struct place *place, const struct way *way)
{
	must(way->move(place->at, HALF, SIZE, 0, NULL) == place->at);
	place->ranges[0].what = "the old part";
	place->ranges[0].expected = LANDS;
	add_range(place, "all of it", place->at);
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
	add_range(place, "where it is", to);
	return 0;
}

#define ADVICE(name, advice) MAKES(name, way->advise(place->at, SIZE, advice))
ADVICE(discard, MADV_DONTNEED)
ADVICE(discard_locked, MADV_DONTNEED_LOCKED)
ADVICE(advise_free, MADV_FREE)
ADVICE(advise_pageout, MADV_PAGEOUT)

static int guard(struct place *place, const struct way *way)
{
	if (way->advise(place->at + 2 * PAGE, PAGE, GUARD_INSTALL))
		return -1;
	return way->advise(place->at + 2 * PAGE, PAGE, GUARD_REMOVE);
}

static int remove_by_other(struct place *place, const struct way *way)
{
	char *other = mmap(NULL, SIZE, READ_WRITE, MAP_SHARED, place->fd, 0);

	must(other != MAP_FAILED);
	must(way->advise(other, SIZE, MADV_REMOVE) == 0);
	return munmap(other, SIZE);
}

MAKES(punch, fallocate(place->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE))
MAKES(truncate_and_grow, ({ must(ftruncate(place->fd, 0) == 0); ftruncate(place->fd, SIZE); }))

static void attach(struct place *place, const struct way *way, int flags)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
	void *at = way == &ways[RAW] ? (void *)syscall(SYS_shmat, id, place->at, flags) : shmat(id, place->at, flags);

	must(id >= 0 && at == place->at && shmctl(id, IPC_RMID, NULL) == 0);
	place->unkept = true;
}

static int attach_other(struct place *place, const struct way *way)
{
	must((way == &ways[RAW] ? (int)syscall(SYS_shmdt, place->at) : shmdt(place->at)) == 0);
	attach(place, way, 0);
	return 0;
}

static int attach_over(struct place *place, const struct way *way)
{
	attach(place, way, SHM_REMAP);
	return 0;
}

MAKES(make_readable, way->protect(place->at, SIZE, PROT_READ))
MAKES(make_unreachable, way->protect(place->at, SIZE, PROT_NONE))
MAKES(make_writable, way->protect(place->at, SIZE, READ_WRITE))

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

static int give_heap_back(struct place *place, const struct way *way)
{
	must(sbrk(0) == place->at + SIZE); /* nothing else moved it */
	must(way->set_break(place->at) == 0);
	must(way->set_break(place->at + SIZE) == 0);
	return 0;
}

/* As what the C library itself does in other calls, such as malloc_trim, this is a raw system call to the library. */
static int free_large(struct place *place, const struct way *way)
{
	char *was = place->at;

	(void)way;
	free(was);
	place->at = malloc(place->length);
	must(place->at == was);
	return 0;
}

#define CALLS (BY(LIBRARY) | BY(RAW))
#define PROTECTING (BY(LIBRARY) | BY(SIBLING))

const struct change changes[] = {
	{ "nothing", BY(LIBRARY), BY(LIBRARY), anonymous, .steps = { { nothing, KEPT } } },

	{ "`munmap`, `mmap`", CALLS, CALLS, anonymous, .steps = { { unmap_and_map, ANEW } } },
	{ "`munmap`, `mmap` of one half", CALLS, 0, two_halves, .steps = { { unmap_half, AS_STEP } } },
	{ "`munmap`, `mmap`, and another domain registers first", BY(RAW), BY(RAW), anonymous, .steps = { { unmap_and_other_domain, ANEW } } },

	{ "`mmap` with `MAP_FIXED` over it", CALLS | BY(SIBLING), BY(LIBRARY), anonymous, .steps = { { map_over, ANEW } }, .sibling = "mmap64" },
	{ "`mmap` with `MAP_FIXED` over one page", CALLS | BY(SIBLING), BY(RAW), anonymous,
	  .steps = { { map_over_page, ANEW } }, .sibling = "mmap64" },
	{ "a shared mapping over one page", CALLS | BY(SIBLING), 0, anonymous, .steps = { { shared_over_page, ANEW } }, .sibling = "mmap64" },

	{ "`MADV_DONTNEED`", CALLS | BY(SELF) | BY(RING) | BY(WORKER), CALLS, anonymous, .steps = { { discard, ANEW } } },
	{ "`MADV_DONTNEED_LOCKED`", CALLS, BY(LIBRARY), locked, .steps = { { discard_locked, ANEW } }, .since = LINUX(5, 18) },
	{ "`MADV_GUARD_INSTALL`, `MADV_GUARD_REMOVE` of one page", CALLS, 0, anonymous,
	  .steps = { { guard, ANEW } }, .since = LINUX(6, 13), .limits = BY(RAW) },
	{ "`MADV_FREE`", CALLS, 0, anonymous, .steps = { { advise_free, EITHER } }, .flags = UNKNOWN_AFTER },
	{ "`MADV_PAGEOUT`", CALLS | BY(SELF), BY(LIBRARY), anonymous, .steps = { { advise_pageout, EITHER } } },

	{ "`mremap` away, `mmap`", CALLS, BY(LIBRARY), anonymous, .steps = { { move_away, ANEW } } },
	{ "`mremap` with `MREMAP_FIXED` onto it", CALLS, BY(LIBRARY), anonymous, .steps = { { move_onto, ANEW } } },
	{ "`mremap` that grows it in place", CALLS, 0, half, .steps = { { grow, ANEW } } },
	{ "`mremap` that shrinks it, `mmap` behind it", CALLS, 0, anonymous, .steps = { { shrink, ANEW } } },
	{ "`mremap` with `MREMAP_DONTUNMAP`", CALLS, 0, anonymous, .steps = { { move_without_unmapping, ANEW } } },

	{ "`MADV_REMOVE` through another mapping", BY(LIBRARY), BY(LIBRARY), file, .steps = { { remove_by_other, ANEW } } },
	{ "`fallocate` with `FALLOC_FL_PUNCH_HOLE`", BY(LIBRARY), BY(LIBRARY), file, .steps = { { punch, ANEW } } },
	{ "`ftruncate` to 0 and back", BY(LIBRARY), BY(LIBRARY), file, .steps = { { truncate_and_grow, ANEW } } },
	{ "`shmdt`, `shmat` of another segment", CALLS, BY(LIBRARY), segment, .steps = { { attach_other, ANEW } } },
	{ "`shmat` with `SHM_REMAP` over private memory", CALLS, 0, anonymous, .steps = { { attach_over, ANEW } }, .limits = BY(RAW) },

	{ "`mprotect` to read-only and back", PROTECTING | BY(RAW), BY(LIBRARY), anonymous,
	  .steps = { { make_readable, READABLE }, { make_writable, LANDS } }, .unseen = BY(RAW), .sibling = "pkey_mprotect" },
	{ "`mprotect` to no access and back", PROTECTING, 0, anonymous,
	  .steps = { { make_unreachable, OUT_OF_REACH }, { make_writable, LANDS } }, .sibling = "pkey_mprotect" },

	{ "`fork`, and the child writes", BY(LIBRARY), BY(LIBRARY), anonymous, .steps = { { fork_and_write, EITHER } } },

	{ "the end of the heap given back and taken again", CALLS | BY(SIBLING), 0, heap,
	  .steps = { { give_heap_back, ANEW } }, .flags = NOT_BY_THREAD, .sibling = "sbrk" },
	{ "`free`, `malloc` of a large block", BY(LIBRARY), 0, large_block, .steps = { { free_large, ANEW } }, .flags = ONCE },
};
const size_t change_count = sizeof(changes) / sizeof(changes[0]);

const char *change_name(const struct change *change, int way)
{
	static const char *const suffixes[WAYS] = {
		[LIBRARY] = "",
		[RAW] = " by raw system calls",
		[SELF] = " by `process_madvise`",
		[RING] = " by an io_uring",
		[WORKER] = " by a worker of an io_uring",
	};
	static char name[200];

	if (way == SIBLING)
		snprintf(name, sizeof(name), "%s by `%s`", change->name, change->sibling);
	else
		snprintf(name, sizeof(name), "%s%s", change->name, suffixes[way]);
	return name;
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
