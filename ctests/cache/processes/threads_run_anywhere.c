/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program binds its threads to processors, and they poll there. The first thread that registers
 * is one of them. The library's threads inherit neither its processor nor its scheduling: a thread
 * that unmaps watched memory waits for them. They keep a real-time class, because other threads
 * wait for them.
 *
 * The device is the stand-in (stub_device.h). Each part runs in a child: the library's threads
 * start once.
 */
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/observe.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { MOST = 64, RIGHT = 0, WRONG = 1, UNTESTED = 77 };

/* The library's thread may only just have reached its first instructions: waits up to ten seconds. */
#define soon(condition)                                                      \
	({                                                                   \
		for (int left = 1000; !(condition) && left > 0; left--)      \
			usleep(10000);                                       \
		(condition);                                                 \
	})

static pid_t before[MOST], library[MOST];
static int had;

static void start(void)
{
	char *memory = pages(1);
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
}

/* The library's threads, at least two. */
static int started(void)
{
	int count;

	had = all_threads(before, MOST);
	start();
	count = new_threads(before, had, library, MOST);
	return count;
}

static int run(int (*part)(void))
{
	int status;
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		alarm(DEADLOCK);
		if (stub_open(STUB_NOTHING))
			_exit(UNTESTED);
		_exit(part());
	}
	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int processor(void)
{
	cpu_set_t all, one, its;
	int first = 0, count;

	must(sched_getaffinity(0, sizeof(all), &all) == 0);
	if (CPU_COUNT(&all) < 2)
		return UNTESTED;
	while (!CPU_ISSET(first, &all))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	must(sched_setaffinity(0, sizeof(one), &one) == 0);
	count = started();
	if (count < 2)
		return UNTESTED;
	for (int n = 0; n < count; n++) {
		if (!soon(sched_getaffinity(library[n], sizeof(its), &its) == 0 && CPU_COUNT(&its) >= CPU_COUNT(&all)))
			return WRONG;
	}
	must(sched_getaffinity(0, sizeof(its), &its) == 0);
	return CPU_EQUAL(&its, &one) ? RIGHT : WRONG;
}

static int is_scheduled(int policy, int priority)
{
	struct sched_param param;
	int count = started();

	if (count < 2)
		return UNTESTED;
	for (int n = 0; n < count; n++)
		if (!soon(sched_getscheduler(library[n]) == policy && sched_getparam(library[n], &param) == 0 &&
			   param.sched_priority == priority))
			return WRONG;
	return RIGHT;
}

static int idle_class(void)
{
	must(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }) == 0);
	return is_scheduled(SCHED_OTHER, 0);
}

static int batch_class(void)
{
	must(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 }) == 0);
	return is_scheduled(SCHED_OTHER, 0);
}

static int real_time_class(void)
{
	if (sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ .sched_priority = 3 }))
		return UNTESTED;
	return is_scheduled(SCHED_FIFO, 3);
}

static int nice_value(void)
{
	int count;

	/* To become less nice takes a privilege. */
	must(setpriority(PRIO_PROCESS, 0, 7) == 0);
	if (setpriority(PRIO_PROCESS, 0, 6))
		return UNTESTED;
	must(setpriority(PRIO_PROCESS, 0, 7) == 0);
	count = started();
	if (count < 2)
		return UNTESTED;
	for (int n = 0; n < count; n++)
		if (!soon(getpriority(PRIO_PROCESS, (id_t)library[n]) == 0))
			return WRONG;
	return getpriority(PRIO_PROCESS, 0) == 7 ? RIGHT : WRONG;
}

static int nicer_than_others(void)
{
	int count;

	if (setpriority(PRIO_PROCESS, 0, -5))
		return UNTESTED;
	count = started();
	if (count < 2)
		return UNTESTED;
	usleep(100000);
	for (int n = 0; n < count; n++)
		if (getpriority(PRIO_PROCESS, (id_t)library[n]) != -5)
			return WRONG;
	return RIGHT;
}

static const struct part {
	int (*part)(void);
	const char *name;
} parts[] = {
	{ processor, "the first to register is bound to a processor: the library's threads are not" },
	{ idle_class, "it is of the class SCHED_IDLE: they are not" },
	{ batch_class, "it is of the class SCHED_BATCH: they are not" },
	{ nice_value, "it has a nice value: they have none" },
	{ nicer_than_others, "it has a negative nice value: so have they" },
	{ real_time_class, "it is of a real-time class: so are they" },
};

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++) {
		int status = run(parts[n].part);

		if (status == UNTESTED)
			skip(parts[n].name, "one processor, no privilege or no userfaultfd");
		else
			is(status, RIGHT, "%s", parts[n].name);
	}
	return done_testing();
}
