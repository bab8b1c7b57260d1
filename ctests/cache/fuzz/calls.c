/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The calls. Each function draws its arguments from the words of its step, makes the call by the C
 * library or by its number, and writes the answer to the log.
 *
 * Known differences are not drawn (docs/limits.md, "Where the proof of relaxed registration ends"):
 * where memory was registered, raw system calls that the library cannot see go through the C
 * library.
 */
#include "../../lib/program.h"
#include "fuzz.h"
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#ifndef PROT_GROWSUP
#define PROT_GROWSUP 0x02000000
#endif
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, DONTNEED_LOCKED = 24 };
/* The numbers of the files, the same in each run. The library's own begin at 60. */
enum { MEMFD = 50, SEALED, DISK, ZERO, PIDFD };
static const int file_pages[] = { [MEMFD] = 64, [SEALED] = 32, [DISK] = 24, [ZERO] = 0 };
enum { SEGMENTS = 3 };
static const size_t segment_sizes[SEGMENTS] = { 4 * PAGE, 9 * PAGE - 100, 20 * PAGE };

int step_number;
bool calm_sequence;
static int segments[SEGMENTS], to_parent[2];
/*
 * Whether mremap takes a page at a time from now on: the library joins mappings that the kernel left apart when
 * one grew down to another, or at the ends of an mmap that the kernel refused (docs/limits.md).
 */
static bool page_by_page;
/*
 * Whether memory was mapped that may lie beside watched memory: by a raw system call, or while memory
 * was registered. The kernel does not merge the two, and cannot once both were touched
 * (docs/limits.md). Since Linux 6.17 such VMAs can be moved, but not resized, and not those of
 * /dev/zero. The same holds for VMAs that crosses_chunk() finds, and beside a read-only segment:
 * userfaultfd refuses it, so that the watch ends at the region.
 */
static bool in_pieces, moves_pieces;
/* MREMAP_DONTUNMAP unlocks the whole mapping if it moves a part of it: a split leaves the rest locked. */
static bool some_locked;

/* Arguments. */

static char *at_of(const struct step *step) { return page_at(step->first); }
static size_t length_of(const struct step *step) { return step->count * (size_t)PAGE; }

/* The same, but seldom not of whole pages, empty, or far too long. */
static char *odd_at(const struct step *step)
{
	return at_of(step) + (step->word[7] % 64 == 0 ? 1 + step->word[7] / 64 % (PAGE - 1) : 0);
}

static size_t odd_length(const struct step *step)
{
	static const size_t far_too_long[] = {
		SIZE_MAX, SIZE_MAX - PAGE + 1, SIZE_MAX / 2, 1UL << 47, 1UL << 38, SSIZE_MAX - PAGE + 1,
	};
	uint32_t how = step->word[6] % 64, word = step->word[6] / 64;

	if (how == 0)
		return 0;
	if (how == 1)
		return far_too_long[word % (sizeof(far_too_long) / sizeof(*far_too_long))];
	return length_of(step) - (how < 8 ? word % PAGE : 0);
}

static int a_protection(uint32_t word)
{
	static const int list[6] = {
		PROT_READ, PROT_READ, PROT_NONE, PROT_WRITE, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC,
	};

	return word % 32 < 6 ? list[word % 32] : PROT_READ | PROT_WRITE;
}

static uint32_t a_file(uint32_t word)
{
	return word % 4 < 2 ? MEMFD : word % 4 == 2 ? DISK : SEALED;
}

typedef long any_call(long, long, long, long, long, long);

/*
 * Makes a call by its number, or by the C library's function if that is -1, and writes it and its
 * answer to the log.
 */
static long call(const char *name, long number, void *function, const long a[6], size_t count)
{
	any_call *of_library = (any_call *)function;
	long answer = number >= 0 ? syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) :
				    of_library(a[0], a[1], a[2], a[3], a[4], a[5]);
	int err = errno;

	if (function != (void *)mmap && function != (void *)mremap)
		answer = (int)answer;
	note("%s%s", number >= 0 ? "raw " : "", name);
	for (size_t n = 0; n < count; n++) {
		note(n ? ", " : "(");
		note_value(a[n]);
	}
	note(")");
	errno = err;
	note_result(answer);
	errno = err;
	return answer;
}
#define CALL(name, raw, ...)                                                                      \
	call(#name, (raw) ? SYS_##name : -1, (void *)(name), (const long[6]){ __VA_ARGS__ },      \
	     sizeof((long[]){ __VA_ARGS__ }) / sizeof(long))

/* Calls. */

static void map_step(const struct step *step)
{
	char *at = odd_at(step);
	size_t length = odd_length(step), offset = 0;
	int protection = a_protection(step->word[0]), file = -1;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	uint32_t object = step->word[1] % 20, extra = step->word[2] % 32;
	long result;

	if (length > 1UL << 30 && length < 1UL << 47) /* the kernel would really map it */
		length = PAGE;

	if (object == 14 || object == 15) {
		flags = MAP_SHARED | MAP_ANONYMOUS;
	} else if (object >= 16) {
		file = (int)(step->word[3] % 8);
		file = file < 4 ? MEMFD : file < 6 ? SEALED : file < 7 ? DISK : ZERO;
		flags = object < 18 ? MAP_SHARED : MAP_PRIVATE;
		offset = file_pages[file] ? (size_t)(step->word[4] % (uint32_t)file_pages[file]) * PAGE : 0;
	} else if (object == 13) {
		flags |= MAP_GROWSDOWN;
	}
	flags |= step->word[5] % 8 < 6 ? MAP_FIXED : MAP_FIXED_NOREPLACE;
	flags |= extra == 1 ? MAP_LOCKED : extra == 2 ? MAP_NORESERVE : extra < 6 ? MAP_POPULATE : 0;
	some_locked |= flags & MAP_LOCKED;
	/* Never let the kernel choose an address: it would differ from run to run. */
	result = CALL(mmap, step->raw, (long)at, length, protection, flags, file, offset);
	page_by_page |= result == -1 && errno == ENOMEM;
	if (result == (long)at) {
		page_by_page |= flags & MAP_GROWSDOWN;
		in_pieces |= step->raw || was_registered(page_at(0), ALL_PAGES * (size_t)PAGE);
		moves_pieces &= file != ZERO;
		is_new(at, length);
	}
}

static void unmap_step(const struct step *step)
{
	char *at = odd_at(step);
	size_t length = odd_length(step);

	if (!CALL(munmap, step->raw, (long)at, length))
		is_new(at, length);
}

static bool is_inside(const char *at)
{
	return (at >= page_at(0) && at <= page_at(PLACE_PAGES - 1)) ||
	       (at >= page_at(PLACE_PAGES) && at <= page_at(ALL_PAGES - 1));
}

/* As Linux 6.17 does with several mappings. */
static bool is_move(int flags, size_t old_length, size_t new_length)
{
	return flags & MREMAP_FIXED && (old_length + PAGE - 1) / PAGE == (new_length + PAGE - 1) / PAGE;
}

/* Watched memory ends at 2 MiB, and its VMAs may have separate anon_vmas. */
static bool crosses_chunk(const char *at, size_t length)
{
	return at < page_at(PLACE_PAGES / 2) && at + length > page_at(PLACE_PAGES / 2);
}

static void remap_step(const struct step *step)
{
	size_t old_length = odd_length(step), new_length = old_length;
	uint32_t how = step->word[0] % 16, size = step->word[1] % 8;
	char *old = odd_at(step), *new = page_at(step->other);
	int flags = how < 3 ? 0 : how < 6 ? MREMAP_MAYMOVE : MREMAP_MAYMOVE | MREMAP_FIXED;
	bool raw = step->raw;
	long result;

	if (size == 0)
		new_length += (1 + step->word[2] % 8) * (size_t)PAGE;
	else if (size == 1 || flags == 0)
		new_length = step->word[2] % (step->count + 4U) * PAGE;
	else if (size == 2)
		new_length -= step->word[2] % PAGE;
	if (how == 12 && !some_locked) {
		flags |= MREMAP_DONTUNMAP;
		new_length = old_length;
	} else if (how == 13) {
		old_length = 0; /* a second mapping of shared memory */
	} else if (how == 14) {
		flags = (int)(step->word[3] % 16) & (some_locked ? ~MREMAP_DONTUNMAP : -1);
	}
	/* Here the kernel would choose the address of the part that stays: it differs from run to run. */
	if (flags & MREMAP_DONTUNMAP)
		flags |= MREMAP_FIXED;
	/* The target stays in its window, unless the call is refused. */
	if (new_length > PLACE_PAGES * (size_t)PAGE && new_length < 1UL << 47)
		new_length = PAGE;
	if (step->other + new_length / PAGE > PLACE_PAGES)
		new = page_at(PLACE_PAGES - 1) + PAGE - (new_length + PAGE - 1) / PAGE * PAGE;
	/*
	 * docs/limits.md, "Other owners of the address space": the watch splits mappings, and a raw
	 * mremap over several VMAs fails. One page is never several.
	 */
	if (raw && old_length > PAGE)
		raw = false;
	if (old_length > PAGE && !(moves_pieces && is_move(flags, old_length, new_length)) &&
	    (in_pieces || crosses_chunk(old, old_length)))
		old_length = new_length = PAGE;
	if (old_length > PAGE && page_by_page)
		old_length = new_length = PAGE;
	result = CALL(mremap, raw, (long)old, old_length, new_length, flags, (long)new);
	if (result != -1 && !is_inside((char *)result)) {
		new = page_at(step->other);
		if (step->other + (new_length + PAGE - 1) / PAGE > PLACE_PAGES)
			new = page_at(0);
		old = (char *)result;
		note(", then ");
		flags = MREMAP_MAYMOVE | MREMAP_FIXED;
		result = (long)mremap(old, new_length, new_length, flags, new);
		note_result(result);
		if (result == -1) {
			note(", then munmap");
			note_result(result = munmap(old, new_length));
		}
	}
	if (result == -1)
		return;
	/* Memory that stays in its place stays registered. */
	if ((char *)result != odd_at(step)) {
		is_new(odd_at(step), old_length);
		is_new((char *)result, new_length);
	} else if (new_length < old_length) {
		is_new((char *)result + new_length, old_length - new_length);
	}
}

static void protect_step(const struct step *step)
{
	static const int list[] = { PROT_READ, PROT_NONE, PROT_WRITE, PROT_READ | PROT_WRITE };
	char *at = odd_at(step);
	size_t length = odd_length(step);
	uint32_t how = step->word[1] % 16;
	int protection = list[step->word[0] % 4] | (step->word[2] % 16 ? 0 : PROT_GROWSUP);
	bool raw = step->raw, by_key = how >= 14;

	if (how == 0)
		protection |= 0x40; /* no such right */
	if ((protection & 3) != 3 && was_registered(at, length))
		raw = false;
	if (by_key) /* no key: as mprotect; or one that was never allocated */
		CALL(pkey_mprotect, raw, (long)at, length, protection, how == 14 ? -1 : 7);
	else
		CALL(mprotect, raw, (long)at, length, protection);
}

/*
 * After a raw call has dropped pages, the cache keeps no region there for a second, which is longer
 * than a sequence: some sequences have no such calls.
 */
static bool drops(int advice)
{
	return calm_sequence && (advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE ||
				 advice == DONTNEED_LOCKED);
}

static int an_advice(uint32_t word)
{
	static const int list[] = {
		MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_REMOVE,
		DONTNEED_LOCKED, GUARD_INSTALL, GUARD_INSTALL, GUARD_REMOVE, MADV_DONTFORK, MADV_DOFORK,
		MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_COLD, MADV_WILLNEED,
		MADV_SEQUENTIAL, MADV_NORMAL, MADV_DONTDUMP, MADV_DODUMP, MADV_HUGEPAGE, MADV_NOHUGEPAGE, 77,
	};

	return list[word % (sizeof(list) / sizeof(*list))];
}

/* Advice continues beyond holes: no length reaches the memory of others. */
static size_t advised_length(const struct step *step)
{
	size_t length = odd_length(step);

	return length >= 1UL << 47 && length < SIZE_MAX - PAGE ? 1UL << 38 : length;
}

static void advise_step(const struct step *step)
{
	char *at = odd_at(step);
	size_t length = advised_length(step);
	int advice = an_advice(step->word[0]);
	bool raw = step->raw && !drops(advice) && !(advice == GUARD_INSTALL && was_registered(at, length));

	CALL(madvise, raw, (long)at, length, advice);
}

static void process_advise_step(const struct step *step)
{
	struct iovec ranges[2] = {
		{ odd_at(step), advised_length(step) },
		{ page_at(step->other), PAGE },
	};
	int advice = an_advice(step->word[0]), process = step->word[2] % 8 ? PIDFD : 99;
	size_t count = 1 + step->word[1] % 2;
	bool raw = step->raw && !drops(advice);

	if (advice == GUARD_INSTALL && (was_registered(ranges[0].iov_base, ranges[0].iov_len) ||
					was_registered(ranges[1].iov_base, PAGE)))
		raw = false;
	for (size_t n = 0; n < count; n++) {
		note("range ");
		note_value((long)ranges[n].iov_base);
		note(", %#zx: ", ranges[n].iov_len);
	}
	note("%sprocess_madvise(%d, %d)", raw ? "raw " : "", process, advice);
	note_result(raw ? syscall(SYS_process_madvise, process, ranges, count, advice, 0) :
			   process_madvise(process, ranges, count, advice, 0));
}

static void break_step(const struct step *step)
{
	char *end = page_at(PLACE_PAGES) + step->word[0] % (HEAP_PAGES * PAGE);
	int how = (int)(step->word[1] % 3);

	if (step->word[2] % 2)
		end = (char *)((uintptr_t)end & ~(uintptr_t)(PAGE - 1));
	note("%s to ", how == 0 ? "brk" : how == 1 ? "sbrk" : "raw brk");
	note_value((long)end);
	note_result(how == 0 ? brk(end) : how == 1 ? (long)sbrk(end - (char *)sbrk(0)) :
		    syscall(SYS_brk, end));
}

static void attach_step(const struct step *step)
{
	uint32_t n = step->word[0] % (SEGMENTS + 1);
	int flags = (step->word[1] % 2 ? SHM_REMAP : 0) | (step->word[1] / 2 % 4 == 0 ? SHM_RDONLY : 0) |
		    (step->word[1] / 8 % 8 == 0 ? SHM_RND : 0);
	int id = n < SEGMENTS ? segments[n] : 123456;
	size_t size = n < SEGMENTS ? segment_sizes[n] : PAGE;
	char *at = odd_at(step);
	bool raw = step->raw;
	long result;

	if (at < page_at(PLACE_PAGES - 1) && at + size > page_at(PLACE_PAGES - 1))
		at = page_at(0);
	if (flags & SHM_REMAP && was_registered(at, size))
		raw = false;
	note("%sshmat(segment %u, ", raw ? "raw " : "", n);
	note_value((long)at);
	note(", %#x)", flags);
	result = raw ? syscall(SYS_shmat, id, at, flags) : (long)shmat(id, at, flags);
	note_result(result);
	if (result != -1) {
		in_pieces |= flags & SHM_RDONLY;
		is_new((void *)result, size);
	}
}

static void detach_step(const struct step *step) { CALL(shmdt, step->raw, (long)odd_at(step)); }

static void cut_file(uint32_t word, bool raw)
{
	uint32_t file = a_file(word);
	off_t length = (off_t)(word / 4 % (uint32_t)(file_pages[file] + 4)) * PAGE - (word / 1024 % 8 == 0 ? 9 : 0);

	CALL(ftruncate, raw, file, length < 0 ? 0 : length);
}

static void cut_step(const struct step *step) { cut_file(step->word[0], step->raw); }

static void punch_step(const struct step *step)
{
	static const int modes[] = { FALLOC_FL_PUNCH_HOLE, FALLOC_FL_PUNCH_HOLE, 0, FALLOC_FL_ZERO_RANGE };
	uint32_t file = a_file(step->word[0]);
	off_t offset = (off_t)(step->word[1] % (uint32_t)file_pages[file]) * PAGE;

	CALL(fallocate, step->raw, file, modes[step->word[2] % 4] | FALLOC_FL_KEEP_SIZE, offset,
	     length_of(step));
}

static void write_file_step(const struct step *step)
{
	int file = step->word[0] % 2 ? SEALED : MEMFD;
	uint64_t value = 0xf000000000000000 | (uint64_t)step_number << 16;
	off_t offset = (off_t)(step->word[1] % (uint32_t)file_pages[file]) * PAGE;

	note("pwrite(%d, %ld)", file, (long)offset);
	note_result(pwrite(file, &value, sizeof(value), offset));
}

/* The kernel writes to memory, or refuses. */
static void read_into_step(const struct step *step)
{
	CALL(pread64, false, SEALED, (long)at_of(step), length_of(step), 0);
}

static void lock_step(const struct step *step)
{
	long at = (long)odd_at(step);
	size_t length = odd_length(step);
	uint32_t how = step->word[0] % 4;

	some_locked |= how >= 2;
	if (how < 2)
		CALL(munlock, false, at, length);
	else if (how == 2)
		CALL(mlock, false, at, length);
	else
		CALL(mlock2, false, at, length, MLOCK_ONFAULT);
}

static void sync_step(const struct step *step)
{
	CALL(msync, false, (long)odd_at(step), odd_length(step),
	     step->word[0] % 2 ? MS_SYNC : MS_ASYNC | MS_INVALIDATE);
}

/* Writes to each page, and records which writes fail. */
static void write_step(const struct step *step)
{
	note("write(page %d, %d)", step->first, step->count);
	for (int page = step->first; page < step->first + step->count; page++) {
		uint64_t value = 0xa000000000000000 | (uint64_t)step_number << 16 | (uint64_t)page;
		int fault = poke(page_at(page) + step->word[0] % (PAGE - 8), value);

		if (fault)
			note(" %d:%d", page, fault);
	}
}

/* A child sees its parent's memory; its changes are its own, except in shared memory. */
static void child(const struct step *step)
{
	uint64_t sum = look_pages(false);

	if (step->word[0] % 2)
		for (int page = step->first; page < step->first + step->count; page++)
			poke(page_at(page) + 16, 0xc000000000000000 | (uint64_t)step_number);
	if (step->word[1] % 4 == 0)
		munmap(at_of(step), length_of(step));
	if (step->word[1] % 4 == 1)
		syscall(SYS_mmap, at_of(step), length_of(step), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (step->word[1] % 4 == 2)
		madvise(at_of(step), length_of(step), MADV_DONTNEED);
	if (step->word[2] % 8 == 0)
		cut_file(step->word[3], step->raw);
	sum = sum * 31 + look_pages(false);
	write(to_parent[1], &sum, sizeof(sum));
	_exit(0);
}

static void fork_step(const struct step *step)
{
	uint64_t sum = 0;
	int status = 0;
	pid_t pid;

	note("fork, child's word %u %u:", step->word[0] % 2, step->word[1] % 4);
	pid = fork();
	if (!pid) {
		alarm(DEADLOCK);
		child(step);
	}
	if (pid < 0) {
		note_result(-1);
		return;
	}
	must(waitpid(pid, &status, 0) == pid);
	if (!status)
		must(read(to_parent[0], &sum, sizeof(sum)) == sizeof(sum));
	note(" status %#x, sees %016llx", (unsigned int)status, (unsigned long long)sum);
}

const struct kind kinds[] = {
	{ "mmap", 150, map_step },
	{ "munmap", 50, unmap_step },
	{ "mremap", 110, remap_step },
	{ "mprotect", 50, protect_step },
	{ "madvise", 120, advise_step },
	{ "process_madvise", 30, process_advise_step },
	{ "brk", 40, break_step },
	{ "shmat", 40, attach_step },
	{ "shmdt", 30, detach_step },
	{ "ftruncate", 20, cut_step },
	{ "fallocate", 20, punch_step },
	{ "pwrite", 15, write_file_step },
	{ "pread", 15, read_into_step },
	{ "mlock", 25, lock_step },
	{ "msync", 8, sync_step },
	{ "write", 110, write_step },
	{ "fork", 20, fork_step },
	{ "register", 330, register_step },
	{ "deregister", 150, deregister_step },
	{ "device", 50, device_step },
};
const int kinds_count = sizeof(kinds) / sizeof(*kinds);

static void open_file(int file, int fd)
{
	must(fd >= 0 && dup3(fd, file, O_CLOEXEC) == file && close(fd) == 0);
}

static void pattern_file(int file, int fd)
{
	open_file(file, fd);
	must(ftruncate(file, (off_t)file_pages[file] * PAGE) == 0);
	for (int page = 0; page < file_pages[file]; page += 2)
		must(pwrite(file, &(uint64_t){ 0xe000000000000000 | (uint64_t)page }, 8,
			    (off_t)page * PAGE + 24) == 8);
}

void calls_open(void)
{
	/* Below both windows, out of reach of any length: a segment without a mapping would be gone. */
	char *keep = (char *)0x1ff000000000;
	char name[] = "/tmp/fuzz.XXXXXX";

	moves_pieces = !kernel_is_before(6, 17);

	/* malloc leaves the break alone from now on. */
	mallopt(M_TOP_PAD, 64 << 20);
	/* Nor do threads get heaps of their own, which a limit would refuse to the first thread that asks. */
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_TRIM_THRESHOLD, INT_MAX);
	mallopt(M_MMAP_THRESHOLD, 1 << 25);
	spare_in_heap(1 << 20);

	pattern_file(MEMFD, memfd_create("fuzz", MFD_CLOEXEC));
	pattern_file(SEALED, memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	must(fcntl(SEALED, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	pattern_file(DISK, mkstemp(name));
	open_file(ZERO, open("/dev/zero", O_RDWR));
	open_file(PIDFD, (int)syscall(SYS_pidfd_open, getpid(), 0));
	must(unlink(name) == 0 && pipe2(to_parent, O_CLOEXEC) == 0);
	for (int n = 0; n < SEGMENTS; n++) {
		segments[n] = shmget(IPC_PRIVATE, segment_sizes[n], IPC_CREAT | 0600);
		must(segments[n] >= 0 && shmat(segments[n], keep + n * (64L << 20), 0) != (void *)-1);
		must(shmctl(segments[n], IPC_RMID, NULL) == 0);
	}
	look_windows();
}

void run_step(const struct step *step)
{
	note("%d %s", step_number, step->thread ? "[second] " : "");
	kinds[step->kind].run(step);
}
