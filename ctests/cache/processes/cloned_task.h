/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tasks that share this process's memory and are processes of their own: clone(CLONE_VM) without
 * CLONE_THREAD. They have the thread-local storage of the thread that made them.
 */
#ifndef CLONED_TASK_H
#define CLONED_TASK_H

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include "../../lib/program.h"
#include "../../lib/tap.h"

/* How a task is made: by the C library's clone, or without the library, as by a raw system call. */
enum made { BY_CLONE, PAST_THE_LIBRARY };

static const char *const made_in_words[] = { "the C library's clone", "a clone that bypasses the library" };

typedef int clone_function(int (*)(void *), void *, int, void *, ...);

/* Starts a task and returns its number. Its stack stays mapped. */
static inline pid_t start_task(enum made how, int (*function)(void *), void *argument, int flags)
{
	enum { STACK = 256 << 10 };
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	clone_function *make = clone;
	int task;

	must(stack != MAP_FAILED);
	if (how == PAST_THE_LIBRARY) {
		void *libc = dlopen("libc.so.6", RTLD_NOW);

		must(libc);
		*(void **)&make = dlsym(libc, "clone");
		must(make);
	}
	task = make(function, stack + STACK, CLONE_VM | SIGCHLD | flags, argument, NULL, NULL, NULL);
	must(task > 0);
	return task;
}

#endif
