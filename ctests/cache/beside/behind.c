/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A library behind ours, as a memory tracker or a socket library would be: it counts each call, and
 * forwards it; munmap and mprotect are slow at the program's request (behind.h). The C library's headers
 * of these calls are missing: their declarations have "..." in the place of the last argument.
 */
#include "behind.h"
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>

long syscall(long number, ...);
void *__libc_realloc(void *block, size_t size);

_Atomic int behind_came[BEHIND_CALLS];

#define FORWARDS(type, name, parameters, answer) \
	type name parameters                     \
	{                                        \
		behind_came[BEHIND_##name]++;    \
		return (type)(answer);           \
	}

FORWARDS(void *, mmap, (void *at, size_t length, int access, int flags, int fd, long from),
	 syscall(SYS_mmap, at, length, access, flags, fd, from))
FORWARDS(void *, mmap64, (void *at, size_t length, int access, int flags, int fd, long from),
	 syscall(SYS_mmap, at, length, access, flags, fd, from))
FORWARDS(void *, mremap, (void *at, size_t length, size_t longer, int flags, void *to),
	 syscall(SYS_mremap, at, length, longer, flags, to))
FORWARDS(int, madvise, (void *at, size_t length, int advice), syscall(SYS_madvise, at, length, advice))
FORWARDS(long, process_madvise, (int process, const struct iovec *at, size_t count, int advice, unsigned int flags),
	 syscall(SYS_process_madvise, process, at, count, advice, flags))
FORWARDS(int, pkey_mprotect, (void *at, size_t length, int access, int key),
	 syscall(SYS_pkey_mprotect, at, length, access, key))
/* The end of the program's data, of which the C library has another record. */
FORWARDS(int, brk, (void *end), (void *)syscall(SYS_brk, end) == end ? 0 : -1)
FORWARDS(void *, sbrk, (intptr_t more), syscall(SYS_brk, syscall(SYS_brk, 0) + more) - more)
FORWARDS(void *, realloc, (void *block, size_t size), __libc_realloc(block, size))
FORWARDS(void *, shmat, (int id, const void *at, int flags), syscall(SYS_shmat, id, at, flags))
FORWARDS(int, close, (int fd), syscall(SYS_close, fd))
FORWARDS(void, closefrom, (int first), syscall(SYS_close_range, first, ~0U, 0))
FORWARDS(int, close_range, (unsigned int first, unsigned int last, int flags), syscall(SYS_close_range, first, last, flags))
FORWARDS(int, dup2, (int fd, int other), fd == other ? fd : syscall(SYS_dup3, fd, other, 0))
FORWARDS(int, dup3, (int fd, int other, int flags), syscall(SYS_dup3, fd, other, flags))
FORWARDS(int, ioctl, (int fd, unsigned long request, void *argument), syscall(SYS_ioctl, fd, request, argument))

void *_Atomic slow_address;
_Atomic int slow_state, slow_signal;

static void wait_in(const void *at, int state)
{
	if (!at || at != slow_address)
		return;
	slow_state = state;
	while (slow_state == state)
		syscall(SYS_sched_yield);
}

int munmap(void *at, size_t length)
{
	behind_came[BEHIND_munmap]++;
	if (at && at == slow_address && slow_signal)
		raise(slow_signal);
	else
		wait_in(at, SLOW_INSIDE);
	return (int)syscall(SYS_munmap, at, length);
}

int mprotect(void *at, size_t length, int access)
{
	int answer;

	behind_came[BEHIND_mprotect]++;
	wait_in(at, SLOW_INSIDE);
	answer = (int)syscall(SYS_mprotect, at, length, access);
	wait_in(at, SLOW_MADE);
	return answer;
}
