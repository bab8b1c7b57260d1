/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counts the threads that the library starts. For one source file of a program. */
#ifndef CTESTS_STARTED_H
#define CTESTS_STARTED_H

#include <dlfcn.h>
#include <stdarg.h>

static _Atomic int started;

/* The library starts its threads by this call, and nothing else does. */
int __clone(int (*run)(void *), void *stack, int flags, void *argument, ...)
{
	static int (*next)(int (*)(void *), void *, int, void *, ...);
	va_list args;
	void *more[3];

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "__clone");
	va_start(args, argument);
	for (int n = 0; n < 3; n++)
		more[n] = va_arg(args, void *);
	va_end(args);
	started++;
	return next(run, stack, flags, argument, more[0], more[1], more[2]);
}

#endif
