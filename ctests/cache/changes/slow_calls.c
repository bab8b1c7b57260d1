/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A library behind ours, as a memory tracker would be: its munmap and mprotect wait at the
 * program's request, and munmap raises a signal in the middle of the call. So does the end of a
 * watch, which the library asks for by syscall(2).
 */
#include "slow_calls.h"
#include <dlfcn.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

void *_Atomic slow_address, *_Atomic slow_unwatched;
_Atomic int slow_state, slow_signal;

static void wait_in(int state)
{
	slow_state = state;
	while (slow_state == state)
		syscall(SYS_sched_yield);
}

int munmap(void *memory, size_t length)
{
	if (memory && memory == slow_address) {
		if (slow_signal)
			raise(slow_signal);
		wait_in(SLOW_INSIDE);
	}
	return (int)syscall(SYS_munmap, memory, length);
}

int mprotect(void *memory, size_t length, int protection)
{
	bool slow = memory && memory == slow_address;
	int result;

	if (slow)
		wait_in(SLOW_INSIDE);
	result = (int)syscall(SYS_mprotect, memory, length, protection);
	if (slow)
		wait_in(SLOW_MADE);
	return result;
}

static long (*next_syscall)(long, ...);

__attribute__((constructor)) static void find_next(void)
{
	next_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
}

static bool unwatches(long number, long request, const struct uffdio_range *range)
{
	uint64_t address = (uintptr_t)slow_unwatched;

	return number == SYS_ioctl && request == (long)UFFDIO_UNREGISTER && address >= range->start &&
	       address < range->start + range->len;
}

long syscall(long number, ...)
{
	va_list list;
	long arguments[6];

	va_start(list, number);
	for (int n = 0; n < 6; n++)
		arguments[n] = va_arg(list, long);
	va_end(list);
	if (unwatches(number, arguments[1], (const struct uffdio_range *)arguments[2]))
		wait_in(SLOW_INSIDE);
	return next_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}
