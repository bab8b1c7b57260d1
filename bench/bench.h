/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The time, and the end of a program that cannot go on. */
#ifndef BENCH_H
#define BENCH_H

#include <errno.h>
#include <error.h>
#include <time.h>

/* In ns. */
static inline double clock_of(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

#define die(what) error(1, errno, "%s", what)

#endif
