/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef BEHIND_H
#define BEHIND_H

/* The calls that the library interposes, without those of libibverbs and libfabric. */
#define CALLS(call)                                                                      \
	call(munmap) call(mmap) call(mmap64) call(mremap) call(madvise)                  \
	call(process_madvise) call(mprotect) call(pkey_mprotect) call(brk) call(sbrk)    \
	call(realloc) call(shmat) call(close) call(closefrom) call(close_range) call(dup2) call(dup3) \
	call(ioctl)

#define NUMBER_OF(name) BEHIND_##name,
enum behind { CALLS(NUMBER_OF) BEHIND_CALLS };
#undef NUMBER_OF

/* The number of times that each call has reached the library behind ours. */
extern _Atomic int behind_came[BEHIND_CALLS];

/*
 * munmap and mprotect of this address wait after they have set slow_state to SLOW_INSIDE, until
 * that changes. mprotect waits once more, in the state SLOW_MADE, when the kernel has made the
 * change. If slow_signal is not 0, munmap raises that signal instead.
 */
enum { SLOW_IDLE, SLOW_INSIDE, SLOW_MADE };
extern void *_Atomic slow_address;
extern _Atomic int slow_state, slow_signal;

#endif
