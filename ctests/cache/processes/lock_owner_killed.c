/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A task that shares the memory and is no thread of the process is killed inside an interposed
 * munmap, while it holds the cache's lock. Every call of the process returns, with the result that
 * it has without the library, and no stale region is handed out.
 *
 * If the C library's clone made the task, it never takes the lock: the cache has given up before.
 * If a clone that bypasses the library made it, it does. The device is the stand-in, whose pins are
 * real (stub_device.h).
 */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "cloned_task.h"
#include "../../lib/stub_device.h"

enum { COUNT = 8, LENGTH = COUNT * PAGE, TIMES = 3, RIGHT = 42 };

static _Atomic pid_t task;
static char *changed;

/* Runs before each system call of the library. */
static void dies(long number, const long *argument)
{
	if (stub_syscall(SYS_gettid) != task)
		return;
	if (number == SYS_ioctl && argument[1] == (long)UFFDIO_UNREGISTER)
		stub_syscall(SYS_tkill, task, SIGKILL);
}

static int unmaps(void *unused)
{
	(void)unused;
	task = (pid_t)syscall(SYS_gettid);
	munmap(changed, LENGTH);
	for (;;)
		syscall(SYS_pause);
	return 0;
}

static struct ibv_mr *registered(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, LENGTH, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

static char *idle(void)
{
	char *memory = pages(COUNT);

	for (int time = 0; time < TIMES; time++)
		must(ibv_dereg_mr_relaxed(registered(memory)) == 0);
	return memory;
}

static void *uses_everything(void *in_use)
{
	char *memory = idle(), *other = pages(COUNT);
	struct ibv_mr *mr;
	pid_t child;
	int status;

	for (int time = 0; time < 100; time++) {
		memory[0] = 1;
		mr = registered(memory);
		must(stub_lands(mr));
		must(ibv_dereg_mr_relaxed(mr) == 0);
		must(munmap(memory, LENGTH) == 0);
		fresh_at(memory, LENGTH);
	}
	mr = ibv_reg_mr(stub_pd(), other, LENGTH, LOCAL_AND_REMOTE);
	must(mr && stub_lands(mr) && ibv_dereg_mr(mr) == 0);
	must(ibv_dereg_mr_relaxed(in_use) == 0);
	must(ibv_dereg_mr_relaxed(in_use) != 0);
	child = fork();
	must(child >= 0);
	if (child == 0)
		_exit(RIGHT);
	must(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == RIGHT);
	ibv_flush_relaxed_mr(stub_pd());
	return NULL;
}

static void is_hung(int number)
{
	static const char text[] = "# a call waits for a task that is dead\n";

	(void)number;
	if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0)
		_exit(2);
	_exit(1);
}

static int in_a_process(enum made how)
{
	pthread_t thread;
	struct ibv_mr *mr;
	pid_t made;
	int status;

	signal(SIGALRM, is_hung);
	alarm(DEADLOCK);
	must(!stub_open(STUB_PIN));
	changed = idle();
	idle();
	mr = registered(pages(COUNT));
	stub_before = dies;
	made = start_task(how, unmaps, NULL, CLONE_FILES);
	if (how == BY_CLONE) {
		/* It does not die by itself: no memory is watched. */
		must(comes(task != 0));
		usleep(100000);
		must(kill(made, SIGKILL) == 0);
	}
	must(waitpid(made, &status, 0) == made && WIFSIGNALED(status));
	stub_before = NULL;
	/* Another thread: the task had the thread-local storage of this one. */
	must(pthread_create(&thread, NULL, uses_everything, mr) == 0);
	must(pthread_join(thread, NULL) == 0);
	if (stub_deregistered() != stub_registered())
		printf("# %ld of %ld regions stay registered\n", stub_registered() - stub_deregistered(), stub_registered());
	/* A lock that is never free keeps what is idle (docs/limits.md). */
	if (how == BY_CLONE && !comes(stub_deregistered() == stub_registered()))
		return 3;
	return RIGHT;
}

static void goes_on(enum made how)
{
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	must(child >= 0);
	if (child == 0) {
		status = in_a_process(how);
		fflush(stdout);
		_exit(status);
	}
	must(waitpid(child, &status, 0) == child);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == RIGHT, "the process goes on after a task of %s was killed", made_in_words[how]);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	goes_on(BY_CLONE);
	goes_on(PAST_THE_LIBRARY);
	return done_testing();
}
