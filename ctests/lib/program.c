/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "program.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include "tap.h"

void with_setting(char **argv, const char *name, const char *value)
{
	const char *now = getenv(name);

	if (now && !strcmp(now, value))
		return;
	must(setenv(name, value, 1) == 0);
	/* /proc/self is empty once the first thread has ended. */
	execv("/proc/thread-self/exe", argv);
	must(!"execv");
}

void go_on_with(char **argv, const char *name, const char *value)
{
	char count[16];

	snprintf(count, sizeof(count), "%d", tap_count);
	must(setenv("TAP_COUNT", count, 1) == 0);
	with_setting(argv, name, value);
	must(!"the setting is new");
}

void continue_report(void)
{
	if (getenv("TAP_COUNT"))
		tap_count = atoi(getenv("TAP_COUNT"));
}

void in_thread(void *(*function)(void *), void *argument)
{
	pthread_t thread;

	must(pthread_create(&thread, NULL, function, argument) == 0);
	must(pthread_join(thread, NULL) == 0);
}

double seconds_now(void)
{
	struct timespec now;

	must(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int once_more(const char *argument, const char *const *settings)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		for (; settings && *settings; settings++)
			if (putenv((char *)(uintptr_t)*settings))
				_exit(126);
		execl("/proc/self/exe", "once-more", argument, (char *)NULL);
		_exit(127);
	}
	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
