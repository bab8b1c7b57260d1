/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The process that registered memory ends, and with it the library's threads. A task that shares
 * the memory (clone with CLONE_VM, without CLONE_THREAD) goes on: it unmaps and frees memory that
 * the cache watched, by the C library and by a raw system call, and registers memory. It waits for
 * no other task.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <malloc.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "cloned_task.h"
#include "../../lib/stub_device.h"

enum { BUFFERS = 8, LENGTH = 4 << 20, RIGHT = 42 };

static struct {
	atomic_int task, goes;
} *shared;

static char *idle[BUFFERS], *used, *taken;

static struct ibv_mr *registered(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, LENGTH, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

static int goes_on(void *in_use)
{
	struct ibv_mr *mr;

	while (!shared->goes)
		syscall(SYS_sched_yield);
	must(munmap(idle[0], LENGTH) == 0);
	must(raw_munmap(idle[1], LENGTH) == 0);
	must(madvise(idle[2], LENGTH, MADV_DONTNEED) == 0);
	must(mremap(idle[3], LENGTH, 2 * LENGTH, MREMAP_MAYMOVE) != MAP_FAILED);
	for (int n = 4; n < BUFFERS; n++)
		must(munmap(idle[n], LENGTH) == 0);
	free(taken);
	must(ibv_dereg_mr_relaxed(in_use) == 0);
	must(raw_munmap(used, LENGTH) == 0);
	used = pages(LENGTH / PAGE);
	mr = registered(used);
	must(stub_lands(mr));
	must(ibv_dereg_mr_relaxed(mr) == 0);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	must(munmap(used, LENGTH) == 0);
	syscall(SYS_exit_group, RIGHT);
	return 0;
}

/* The process that registers, and ends. */
static void registers(int flags)
{
	struct ibv_mr *mr;

	must(!stub_open(STUB_PIN));
	must(mallopt(M_MMAP_THRESHOLD, 1 << 20));
	for (int time = 0; time < 3; time++) {
		for (int n = 0; n < BUFFERS; n++) {
			if (time == 0)
				idle[n] = pages(LENGTH / PAGE);
			must(ibv_dereg_mr_relaxed(registered(idle[n])) == 0);
		}
	}
	taken = malloc(LENGTH);
	must(taken);
	memset(taken, 1, LENGTH);
	must(ibv_dereg_mr_relaxed(registered(taken)) == 0);
	used = pages(LENGTH / PAGE);
	mr = registered(used);
	shared->task = start_task(BY_CLONE, goes_on, mr, CLONE_PARENT | flags);
	_exit(0);
}

static void outlives(int flags, const char *how)
{
	pid_t first, ended = 0;
	int status = -1;

	shared->task = shared->goes = 0;
	first = fork();
	must(first >= 0);
	if (first == 0)
		registers(flags);
	must(waitpid(first, &status, 0) == first && status == 0);
	shared->goes = true;
	if (!comes(ended || (ended = waitpid(shared->task, &status, WNOHANG)) != 0))
		kill(shared->task, SIGKILL);
	ok(ended == shared->task && WIFEXITED(status) && WEXITSTATUS(status) == RIGHT,
	   "a task that outlives the registering process changes its memory, %s", how);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(shared != MAP_FAILED);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	outlives(CLONE_FILES, "with the process's descriptors");
	outlives(0, "with descriptors of its own");
	outlives(CLONE_FILES | CLONE_SIGHAND, "with the process's signal handlers");
	return done_testing();
}
