/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef SLOW_CALLS_H
#define SLOW_CALLS_H

#include <stddef.h>

/* munmap of this address waits after it has set slow_state to SLOW_INSIDE, until that changes. */
enum { SLOW_IDLE, SLOW_INSIDE };
extern void *_Atomic slow_address;
extern _Atomic int slow_state;
/* Before that it raises this signal, if it is not 0. */
extern _Atomic int slow_signal;

#endif
