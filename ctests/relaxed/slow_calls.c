/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A library behind ours, as a memory tracker would be: its munmap waits where the program wants, or
 * raises a signal in the middle of the call.
 */
#include "slow_calls.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

void *_Atomic slow_address;
_Atomic int slow_state, slow_signal;

int munmap(void *memory, size_t length)
{
	if (memory && memory == slow_address) {
		if (slow_signal)
			raise(slow_signal);
		slow_state = SLOW_INSIDE;
		while (slow_state == SLOW_INSIDE)
			syscall(SYS_sched_yield);
	}
	return (int)syscall(SYS_munmap, memory, length);
}
