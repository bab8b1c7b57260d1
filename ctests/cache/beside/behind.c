/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A library behind ours, as a memory tracker or a socket library would be: it counts each call, and
 * forwards it.
 */
#include "behind.h"
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

_Atomic int behind_came[BEHIND_CALLS];

#define CAME(name) behind_came[BEHIND_##name]++

int munmap(void *memory, size_t length)
{
	CAME(munmap);
	return (int)syscall(SYS_munmap, memory, length);
}

void *mmap(void *memory, size_t length, int protection, int flags, int fd, off_t offset)
{
	CAME(mmap);
	return (void *)syscall(SYS_mmap, memory, length, protection, flags, fd, offset);
}

void *mmap64(void *memory, size_t length, int protection, int flags, int fd, off64_t offset)
{
	CAME(mmap64);
	return (void *)syscall(SYS_mmap, memory, length, protection, flags, fd, offset);
}

void *mremap(void *memory, size_t length, size_t longer, int flags, ...)
{
	va_list arguments;
	void *place;

	CAME(mremap);
	va_start(arguments, flags);
	place = va_arg(arguments, void *);
	va_end(arguments);
	return (void *)syscall(SYS_mremap, memory, length, longer, flags, place);
}

int madvise(void *memory, size_t length, int advice)
{
	CAME(madvise);
	return (int)syscall(SYS_madvise, memory, length, advice);
}

ssize_t process_madvise(int process, const struct iovec *memory, size_t count, int advice, unsigned int flags)
{
	CAME(process_madvise);
	return syscall(SYS_process_madvise, process, memory, count, advice, flags);
}

int mprotect(void *memory, size_t length, int protection)
{
	CAME(mprotect);
	return (int)syscall(SYS_mprotect, memory, length, protection);
}

int pkey_mprotect(void *memory, size_t length, int protection, int key)
{
	CAME(pkey_mprotect);
	return (int)syscall(SYS_pkey_mprotect, memory, length, protection, key);
}

/* The end of the program's data, of which the C library has another record. */
int brk(void *end)
{
	CAME(brk);
	return (void *)syscall(SYS_brk, end) == end ? 0 : -1;
}

void *sbrk(intptr_t increment)
{
	char *end = (char *)syscall(SYS_brk, 0);

	CAME(sbrk);
	syscall(SYS_brk, end + increment);
	return end;
}

void *__libc_realloc(void *block, size_t size);

void *realloc(void *block, size_t size)
{
	CAME(realloc);
	return __libc_realloc(block, size);
}

void *shmat(int id, const void *memory, int flags)
{
	CAME(shmat);
	return (void *)syscall(SYS_shmat, id, memory, flags);
}

int close(int fd)
{
	CAME(close);
	return (int)syscall(SYS_close, fd);
}

void closefrom(int first)
{
	CAME(closefrom);
	syscall(SYS_close_range, first, ~0U, 0);
}

int close_range(unsigned int first, unsigned int last, int flags)
{
	CAME(close_range);
	return (int)syscall(SYS_close_range, first, last, flags);
}

int dup2(int fd, int other)
{
	CAME(dup2);
	return fd == other ? fd : (int)syscall(SYS_dup3, fd, other, 0);
}

int dup3(int fd, int other, int flags)
{
	CAME(dup3);
	return (int)syscall(SYS_dup3, fd, other, flags);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	void *argument;

	CAME(ioctl);
	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	return (int)syscall(SYS_ioctl, fd, request, argument);
}
