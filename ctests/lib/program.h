/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The running program: its settings, copies of itself, its threads and the time. */
#ifndef CTESTS_PROGRAM_H
#define CTESTS_PROGRAM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

/* The seconds after which a program counts as hung; on a busy machine an emulated clock jumps by minutes. */
enum { DEADLOCK = 500 };

/* Waits for the condition, for a minute or two at most. Returns whether it holds. */
#define comes(condition)                                                     \
	({                                                                   \
		for (int left = 10000; !(condition) && left > 0; left--)     \
			usleep(10000);                                       \
		(condition);                                                 \
	})

/*
 * Starts the program anew with a setting, unless it has it: the library reads its settings when it is loaded.
 * Most tests set RDMAMR_CACHE_LINGER to FOREVER: on a busy host the clock of an emulated machine jumps by minutes.
 */
#define FOREVER "1000000"
void with_setting(char **argv, const char *name, const char *value);

/* Starts the program anew with another setting; its report goes on, by continue_report(). */
void go_on_with(char **argv, const char *name, const char *value);
void continue_report(void);

/* Runs this program with one argument and settings ("NAME=VALUE", up to a NULL). Its status, as child_status(). */
int once_more(const char *argument, const char *const *settings);

/* fork(), after standard output is flushed. */
pid_t must_fork(void);

/* Waits for a child. Returns its exit status, or 128 and more for a signal. */
int child_status(pid_t child);

/* Runs a function in a forked child, which ends by _exit. Returns its status. */
int in_forked(int (*function)(void));

/* The status of a child of vfork, which has this process's memory, and ends with it by _exit. */
#define in_vforked(status)                                                   \
	({                                                                   \
		pid_t child = vfork();                                       \
		if (!child)                                                  \
			_exit(status);                                       \
		child_status(child);                                         \
	})

/* A barrier of that many threads and processes. */
pthread_barrier_t *shared_barrier(unsigned count);

/* Runs a part in a forked child, which continues the count of results, and ends by exit(0). */
void in_part(void (*part)(void));

/* A thread, and what it returned. */
pthread_t must_start(void *(*function)(void *), void *argument);
void *must_join(pthread_t thread);

/* Runs a function in a new thread, and waits for its end. */
void in_thread(void *(*function)(void *), void *argument);

/* Lists the threads whose names begin so, as the library's do by "rdmamr-". Returns their number. */
int threads_named(const char *name, pid_t *list, int most);

/* A thread that does nothing. */
void become_threaded(void);

/*
 * From now on a seccomp filter answers a system call by `action` (SECCOMP_RET_...) if that argument, from 0 on, has
 * this value, in this thread and those that it starts. Returns what seccomp(2) does; -1: no filter is possible.
 */
int filter_calls(long number, int argument, uint32_t value, uint32_t action, unsigned flags);

/* Makes such a call fail with `error`. Returns false if this process can have no seccomp filter. */
bool refuse_calls(long number, int argument, uint32_t value, int error);

/* The same `action` for each of these calls, whatever its arguments. */
bool filter_each_in(const int *numbers, size_t count, uint32_t action, unsigned flags);
#define filter_each(numbers, count, action) filter_each_in(numbers, count, action, 0)

/* An executable copy of a file with words replaced, each by one of the same length; a NULL ends the list. */
void copy_file(const char *original, const char *path, const char *const words[][2]);

/* From now on standard error is kept, and times_said() counts how often it has these words; hear_no_more() ends that. */
void hear_errors(void);
void hear_no_more(void);
int times_said(const char *words);

double seconds_now(void);

/* Whether the kernel is older than this version. */
bool kernel_is_before(int major, int minor);

/* Writes words to a file that is there, such as one of /sys. Returns whether that succeeded. */
__attribute__((format(printf, 2, 3)))
bool write_to(const char *path, const char *format, ...);

/* The number of entries of a folder, including "." and ".."; of /proc/self/fd, also the folder itself. */
int entries(const char *folder);

#endif
