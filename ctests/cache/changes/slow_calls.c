/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A library behind ours, as a memory tracker would be: its munmap and mprotect wait at the
 * program's request, and munmap raises a signal in the middle of the call.
 */
#include "slow_calls.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

void *_Atomic slow_address;
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
		else
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
