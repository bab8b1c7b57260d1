/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread that unmaps watched memory waits for the library's reader. A tracer such as py-spy stops the threads
 * in the order of their start, and waits for each. It waits for ever if it has stopped the reader before a thread
 * that waits for the reader. So the reader is the newest thread, soon after another one was started.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include "../../lib/stub_rows.h"

enum { THREADS = 4, LENGTH = 64 * PAGE, MOST = 64, PATIENCE = 60 };

static _Atomic long unmapped;

static void *unmaps(void *unused)
{
	char *memory = new_place(LENGTH);

	for (;;) {
		must(raw_map_at(memory, LENGTH));
		hits_in(memory, LENGTH, 4);
		must(raw_munmap(memory, LENGTH) == 0);
		unmapped++;
	}
	return unused;
}

/* The threads of a process, in the order of their start. */
static int threads_of(pid_t process, pid_t *list)
{
	char path[64];
	DIR *folder;
	int count = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", process);
	must(folder = opendir(path));
	for (struct dirent *entry; (entry = readdir(folder));)
		if (entry->d_name[0] != '.' && count < MOST)
			list[count++] = atoi(entry->d_name);
	closedir(folder);
	return count;
}

static bool reader_is_newest(void)
{
	pid_t all[MOST], reader = 0;
	int count = threads_of(getpid(), all);

	return threads_named("rdmamr-uffd", &reader, 1) == 1 && all[count - 1] == reader;
}

static void start_threads(void)
{
	for (int n = 0; n < THREADS; n++)
		must_start(unmaps, NULL);
}

static void becomes_newest(void)
{
	leave_idle_in(untouched(LENGTH), LENGTH);
	for (int round = 0; round < 3; round++) {
		pid_t reader;

		start_threads();
		ok(comes(reader_is_newest()), "the reader is newer than the threads that were started");
		must(threads_named("rdmamr-uffd", &reader, 1) == 1);
		usleep(300000);
		ok(reader_is_newest(), "and stays so");
		is(threads_named("rdmamr-uffd", &reader, 1), 1, "it is one thread");
	}
	ok(stats().flushed_event > 0, "it reads events");
}

/* Stops the threads, and lets them go, as py-spy does. A signal ends this process if it waits for too long. */
static int trace(pid_t process, int rounds)
{
	pid_t all[MOST];

	for (int round = 0; round < rounds; round++) {
		int status, count = threads_of(process, all);

		alarm(PATIENCE);
		for (int n = 0; n < count; n++) {
			if (ptrace(PTRACE_ATTACH, all[n], 0, 0))
				all[n] = 0; /* It has ended. */
			else if (waitpid(all[n], &status, __WALL) != all[n])
				return 1;
		}
		for (int n = 0; n < count; n++)
			if (all[n])
				ptrace(PTRACE_DETACH, all[n], 0, 0);
		alarm(0);
		usleep(5000);
	}
	return 0;
}

static void traced(void)
{
	int go[2], status;
	char byte = 0;
	pid_t tracer, process = getpid();
	long before;

	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	must(pipe(go) == 0);
	tracer = must_fork();
	if (!tracer) {
		must(read(go[0], &byte, 1) == 1);
		if (ptrace(PTRACE_SEIZE, process, 0, 0))
			_exit(2);
		ptrace(PTRACE_INTERRUPT, process, 0, 0);
		must(waitpid(process, &status, __WALL) == process && ptrace(PTRACE_DETACH, process, 0, 0) == 0);
		_exit(trace(process, (int)row->value));
	}
	leave_idle_in(untouched(LENGTH), LENGTH);
	start_threads();
	ok(comes(reader_is_newest()), "the reader is the newest thread");
	must(write(go[1], &byte, 1) == 1);
	status = child_status(tracer);
	if (status == 2)
		skip_all("this process may not be traced");
	is(status, 0, "the tracer has stopped each thread, %ld times", row->value);
	before = unmapped;
	ok(comes(unmapped > before), "the program goes on");
}

static const struct row rows[] = {
	{ "the newest thread", becomes_newest, .flags = UNPINNED },
	{ "a tracer waits for no thread for ever", traced, 100, .flags = UNPINNED },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
