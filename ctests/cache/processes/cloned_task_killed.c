/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A task that shares the memory and is a process of its own (clone with CLONE_VM, without
 * CLONE_THREAD) changes memory by a raw system call, and is killed in that call: the kernel then
 * drops the event that the library's reader has not read. No stale region is handed out: the cache
 * keeps no region once the program makes such a task, even if the cache starts later.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "cloned_task.h"
#include "../../lib/stub_device.h"

/* This much memory beside the region makes the call long enough for the signal to come during it. */
enum { LARGE = 192 << 20, ROUNDS = 10, TIMES = 3 };

enum change { UNMAPS, REPLACES };

static struct {
	char *memory;
	enum change change;
	atomic_bool begins;
} job;

__attribute__((noreturn)) static int changes(void *unused)
{
	(void)unused;
	job.begins = true;
	if (job.change == UNMAPS)
		syscall(SYS_munmap, job.memory, LARGE);
	else
		syscall(SYS_mmap, job.memory, LARGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	for (;;)
		syscall(SYS_pause);
}

static struct ibv_mr *registered(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

/* Whether no mapping is at this address. */
static bool is_gone(char *memory)
{
	unsigned char there;

	return syscall(SYS_mincore, memory, PAGE, &there) < 0 && errno == ENOMEM;
}

/* Whether a region was stale: 0 or 1; -1 if the signal came before the change. */
static int is_stale_once(enum change change)
{
	char *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;
	bool lands;
	pid_t task;

	must(memory != MAP_FAILED);
	must(madvise(memory, LARGE, MADV_NOHUGEPAGE) == 0);
	for (size_t at = 0; at < LARGE; at += PAGE)
		memory[at] = 1;
	for (int time = 0; time < TIMES; time++)
		must(ibv_dereg_mr(registered(memory)) == 0);
	job.memory = memory;
	job.change = change;
	job.begins = false;
	task = start_task(BY_CLONE, changes, NULL, CLONE_FILES);
	while (!job.begins)
		continue;
	usleep(1000);
	must(kill(task, SIGKILL) == 0);
	must(waitpid(task, NULL, 0) == task);
	if (change == UNMAPS ? !is_gone(memory) : memory[0] != 0)
		return -1;
	must(change == REPLACES || raw_map_at(memory, PAGE));
	memory[0] = 1;
	mr = registered(memory);
	lands = stub_lands(mr);
	must(ibv_dereg_mr(mr) == 0);
	return !lands;
}

/* A process of its own for each round: the cache gives up only once. */
static void killed_in(enum change change, const char *what)
{
	int stale = 0, counted = 0;

	for (int round = 0; round < ROUNDS; round++) {
		pid_t child = fork();
		int status;

		must(child >= 0);
		if (child == 0) {
			const char *why = stub_open(STUB_PIN);

			must(!why);
			_exit(is_stale_once(change) & 3);
		}
		must(waitpid(child, &status, 0) == child && WIFEXITED(status));
		counted += WEXITSTATUS(status) != 3;
		stale += WEXITSTATUS(status) == 1;
	}
	printf("# killed in the call in %d rounds of %d\n", counted, ROUNDS);
	is(stale, 0, "no region is stale after a task was killed while it %s registered memory", what);
}

static int nothing(void *unused)
{
	(void)unused;
	return 0;
}

/*
 * Whether memory is registered anew each time once such a task was made, also by a later start of
 * the cache.
 */
static void keeps_nothing(bool starts_before)
{
	pid_t child = fork();
	int status;

	must(child >= 0);
	if (child == 0) {
		char *memory;
		long before;
		pid_t task;

		must(!stub_open(STUB_PIN));
		memory = pages(1);
		for (int time = 0; starts_before && time < TIMES; time++)
			must(ibv_dereg_mr(registered(memory)) == 0);
		must(!starts_before || stub_registered() < TIMES);
		task = start_task(BY_CLONE, nothing, NULL, 0);
		must(waitpid(task, &status, 0) == task);
		before = stub_registered();
		/* Regions that the cleaner is ending take some time. */
		must(comes(stub_deregistered() == before));
		for (int time = 0; time < 2 * TIMES; time++)
			must(ibv_dereg_mr(registered(memory)) == 0);
		must(comes(stub_deregistered() == stub_registered()));
		_exit(stub_registered() - before == 2 * TIMES ? 0 : 1);
	}
	must(waitpid(child, &status, 0) == child);
	is(status, 0, "nothing stays registered and nothing is reused after a task was made %s the cache started",
	   starts_before ? "after" : "before");
}

/* A forked child shares its memory with no other process, whatever tasks its parent has made. */
static void child_reuses(void)
{
	pid_t child = fork();
	int status;

	must(child >= 0);
	if (child == 0) {
		pid_t task, grandchild;

		must(!stub_open(STUB_NOTHING));
		task = start_task(BY_CLONE, nothing, NULL, 0);
		must(waitpid(task, &status, 0) == task);
		grandchild = fork();
		must(grandchild >= 0);
		if (grandchild == 0) {
			char *memory = pages(1);

			for (int time = 0; time < 2 * TIMES; time++)
				must(ibv_dereg_mr(registered(memory)) == 0);
			_exit(stub_registered() < 2 * TIMES ? 0 : 1);
		}
		must(waitpid(grandchild, &status, 0) == grandchild);
		_exit(status ? 1 : 0);
	}
	must(waitpid(child, &status, 0) == child);
	is(status, 0, "a child of fork reuses regions, though its parent has made a task");
}

int main(int argc, char **argv)
{
	const char *why;
	pid_t child;
	int status;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE", "all");
	fflush(stdout);
	child = fork();
	must(child >= 0);
	if (child == 0) {
		why = stub_open(STUB_PIN);
		if (why)
			skip_all(why);
		_exit(42);
	}
	must(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 42)
		return WEXITSTATUS(status);
	killed_in(UNMAPS, "unmapped");
	killed_in(REPLACES, "replaced");
	keeps_nothing(true);
	keeps_nothing(false);
	child_reuses();
	return done_testing();
}
