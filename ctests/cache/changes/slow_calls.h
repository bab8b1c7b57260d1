/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef SLOW_CALLS_H
#define SLOW_CALLS_H

#include <stddef.h>

/*
 * munmap and mprotect of this address wait after they have set slow_state to SLOW_INSIDE, until
 * that changes. mprotect waits once more, in the state SLOW_MADE, when the kernel has made the
 * change.
 */
enum { SLOW_IDLE, SLOW_INSIDE, SLOW_MADE };
extern void *_Atomic slow_address;
extern _Atomic int slow_state;
/* Before that, munmap raises this signal, if it is not 0. */
extern _Atomic int slow_signal;

#endif
