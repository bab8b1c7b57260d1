/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Each memory and descriptor call that the library interposes reaches the next library that has it,
 * once, and the program sees the answer and the errno of that library: memory trackers and socket
 * libraries go on working. The same holds before and after the cache is in use.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "../../lib/stub_rows.h"
#include "behind.h"
#pragma weak behind_came

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Numbers that are free. The library's own begin at 60. */
enum { FREE = 700 };

/* The call reaches the library behind ours once. Returns whether its answer fits. */
#define comes_once(name, fits)                                                           \
	do {                                                                             \
		int before = behind_came[BEHIND_##name];                                 \
		bool right;                                                              \
                                                                                         \
		errno = 0;                                                               \
		right = (fits);                                                          \
		ok(right, "%s: the answer", #name);                                      \
		is(behind_came[BEHIND_##name] - before, 1, "%s reaches the library behind once", #name); \
	} while (0)

#define fails_with(call, error) ((call) == -1 && errno == (error))

static void memory_calls(void)
{
	const int SHARES = PROT_READ | PROT_WRITE, KIND = MAP_PRIVATE | MAP_ANONYMOUS;
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	char *memory = NULL, *other = NULL;
	struct iovec vector;

	comes_once(mmap, (memory = mmap(NULL, 4 * PAGE, SHARES, KIND, -1, 0)) != MAP_FAILED);
	comes_once(mmap64, (other = mmap64(memory + PAGE, PAGE, SHARES, KIND | MAP_FIXED, -1, 0)) == memory + PAGE);
	comes_once(mmap, mmap(NULL, 0, SHARES, KIND, -1, 0) == MAP_FAILED && errno == EINVAL);
	comes_once(mremap, (other = mremap(memory + 3 * PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE)) != MAP_FAILED);
	comes_once(mremap, mremap(other, 2 * PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + 3 * PAGE) == memory + 3 * PAGE);
	comes_once(mremap, mremap(memory + 1, PAGE, PAGE, 0) == MAP_FAILED && errno == EINVAL);
	comes_once(madvise, madvise(memory, PAGE, MADV_DONTNEED) == 0);
	comes_once(madvise, fails_with(madvise(memory + 1, PAGE, MADV_DONTNEED), EINVAL));
	vector = (struct iovec){ memory, PAGE };
	comes_once(process_madvise, process_madvise(self, &vector, 1, MADV_COLD, 0) == (ssize_t)PAGE);
	comes_once(process_madvise, fails_with(process_madvise(-1, &vector, 1, MADV_COLD, 0), EBADF));
	comes_once(mprotect, mprotect(memory, PAGE, PROT_READ) == 0);
	comes_once(mprotect, fails_with(mprotect(memory + 1, PAGE, PROT_READ), EINVAL));
	comes_once(pkey_mprotect, pkey_mprotect(memory, PAGE, PROT_READ, -1) == 0);
	comes_once(pkey_mprotect, fails_with(pkey_mprotect(memory + 1, PAGE, PROT_READ, -1), EINVAL));
	comes_once(sbrk, sbrk(0) == (void *)syscall(SYS_brk, 0));
	comes_once(brk, brk((void *)syscall(SYS_brk, 0)) == 0);
	comes_once(madvise, fails_with(madvise(memory + 1, PAGE, MADV_COLLAPSE), EINVAL));
	comes_once(process_madvise, fails_with(process_madvise(self, (void *)8, 1, MADV_COLLAPSE, 0), EFAULT));
	must((other = malloc(100)) != NULL);
	comes_once(realloc, (other = realloc(other, 1 << 20)) != NULL);
	free(other);
	comes_once(shmat, shmat(-1, NULL, 0) == (void *)-1 && errno == EINVAL);
	comes_once(munmap, munmap(memory, 4 * PAGE) == 0);
	comes_once(munmap, fails_with(munmap(memory + 1, PAGE), EINVAL));
	must(syscall(SYS_close, self) == 0);
}

static void descriptor_calls(void)
{
	struct uffdio_range range = { 0, PAGE };
	/* The stand-in has an ioctl of its own before the library's. */
	int (*after)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
	int ends[2], waiting = -1;

	must(after && pipe(ends) == 0 && write(ends[1], "abc", 3) == 3);
	comes_once(ioctl, after(ends[0], FIONREAD, &waiting) == 0 && waiting == 3);
	comes_once(ioctl, fails_with(after(ends[0], UFFDIO_UNREGISTER, &range), ENOTTY));
	comes_once(dup2, dup2(ends[0], FREE) == FREE);
	comes_once(dup2, dup2(FREE, FREE) == FREE);
	comes_once(dup3, dup3(ends[0], FREE + 1, O_CLOEXEC) == FREE + 1);
	comes_once(dup3, fails_with(dup3(FREE, FREE, 0), EINVAL));
	comes_once(close, close(FREE) == 0);
	comes_once(close, fails_with(close(FREE), EBADF));
	comes_once(close_range, close_range(FREE, FREE + 1, 0) == 0);
	comes_once(close_range, fails_with(close_range(1, 0, 0), EINVAL));
	must(syscall(SYS_dup3, ends[0], FREE, 0) == FREE);
	comes_once(closefrom, (closefrom(FREE), true));
	is(fcntl(FREE, F_GETFD), -1, "closefrom has closed it");
	must(syscall(SYS_close, ends[0]) == 0 && syscall(SYS_close, ends[1]) == 0);
}

static const struct row rows[] = {
	{ "memory calls before the cache is in use", memory_calls },
	{ "descriptor calls before the cache is in use", descriptor_calls },
	{ "memory calls beside the cache", memory_calls, .then = HIT },
	{ "descriptor calls beside the cache", descriptor_calls, .then = HIT },
};

/* Beside the cache (row->then), a page has an idle region before and after the calls. */
static void around(void)
{
	must(&behind_came && ibv_reg_mr_relaxed);
	(row->then ? on_stub : row->act)();
}

RUN_ROWS(NULL, around)
