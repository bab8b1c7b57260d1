/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread with a table of descriptors of its own has other files at the library's numbers: at that
 * of the userfaultfd a file that answers its requests as an idle userfaultfd does, at that of the
 * device another device. Meanwhile another thread, whose numbers are the library's, verifies them.
 * One thread's check says nothing about the other's table: no stale region is handed out, and no
 * region is deregistered on another device.
 *
 * The device is the stand-in, whose pins are real (stub_device.h). Each part runs in children.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"
#include "watched_page.h"

enum { PLACES = 400, PROCESSES = 5, RIGHT = 0, WRONG = 1, UNTESTED = 77 };

static char *places, *other;
static _Atomic long go;
static _Atomic int step;

static void reach(int wanted)
{
	while (atomic_load(&step) < wanted)
		sched_yield();
}

static int run(int (*part)(void))
{
	int status;
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		alarm(DEADLOCK);
		if (stub_open(STUB_PIN))
			_exit(UNTESTED);
		_exit(part());
	}
	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void *unmaps(void *unused)
{
	for (long n = 0; n < PLACES; n++) {
		while (atomic_load(&go) <= n)
			;
		must(syscall(SYS_munmap, places + 2 * n * PAGE, PAGE) == 0);
	}
	return unused;
}

/* The race of race.c, once at each place. */
static int races(void)
{
	int stale = 0;
	pthread_t thread;

	must(pthread_create(&thread, NULL, unmaps, NULL) == 0);
	for (long n = 0; n < PLACES; n++) {
		char *place = places + 2 * n * PAGE;

		atomic_store(&go, n + 1);
		while (!raw_map_at(place, PAGE))
			;
		stale += !is_right(place, (char)n);
	}
	must(pthread_join(thread, NULL) == 0);
	return stale ? WRONG : RIGHT;
}

static int epoll_file(void)
{
	return epoll_create1(EPOLL_CLOEXEC);
}

/* It has no events, which no thread would read. */
static int another_userfaultfd(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int other = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	must(other >= 0 && ioctl(other, UFFDIO_API, &api) == 0);
	return other;
}

/* How the thread gets its table, and the file to put there. */
static struct {
	bool early, asked_before, by_close_range, raw;
	int (*file)(void);
} how;

static bool leave(void)
{
	if (how.by_close_range)
		return close_range(~0U, ~0U, CLOSE_RANGE_UNSHARE) == 0;
	return how.raw ? syscall(SYS_unshare, CLONE_FILES) == 0 : unshare(CLONE_FILES) == 0;
}

static void *apart(void *unused)
{
	int fd = -1, file;

	if (how.early) {
		if (!leave())
			return (void *)UNTESTED;
		atomic_store(&step, 1);
	}
	reach(2);
	if (how.asked_before && !is_right(other, 1))
		return (void *)WRONG;
	if (!how.early && !leave())
		return (void *)UNTESTED;
	if (how.early)
		fd = 60; /* src/cache/watch/userfaultfd.rs; a program cannot know */
	else if (userfaultfds(&fd) != 1)
		return (void *)UNTESTED;
	file = how.file();
	must(file >= 0 && (how.raw ? syscall(SYS_dup3, file, fd, O_CLOEXEC) : dup2(file, fd)) == fd);
	/* The other thread verifies its own number. */
	atomic_store(&step, 3);
	reach(4);
	(void)unused;
	return (void *)(uintptr_t)races();
}

static int with_table(void)
{
	pthread_t thread;
	void *answer;
	long before;

	must(pthread_create(&thread, NULL, apart, NULL) == 0);
	if (how.early)
		reach(1);
	places = (char *)0x10000000000;
	must(mmap(places, 2 * PLACES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		  -1, 0) == places);
	other = pages(1);
	idle_region(other);
	for (long n = 0; n < PLACES; n++)
		idle_region(places + 2 * n * PAGE);
	if (userfaultfds(NULL) != 1)
		return UNTESTED;
	atomic_store(&step, 2);
	reach(3);
	/* A hit, for which this thread verifies the number. Later ones stay hits. */
	for (int round = 0; round < 3; round++)
		if (!is_right(other, 2))
			return WRONG;
	before = stub_registered();
	if (!is_right(other, 3) || stub_registered() != before)
		return WRONG;
	atomic_store(&step, 4);
	must(pthread_join(thread, &answer) == 0);
	if (answer)
		return (int)(uintptr_t)answer;
	before = stub_registered();
	return is_right(other, 4) && stub_registered() == before ? RIGHT : WRONG;
}

static char *idle;

static bool ends(long before)
{
	for (int left = 1000; stub_deregistered() == before && left > 0; left--)
		usleep(10000);
	return stub_deregistered() == before + 1;
}

static void *unmaps_apart(void *by_hook)
{
	long before = stub_deregistered();

	if (unshare(CLONE_FILES))
		return (void *)UNTESTED;
	stub_is_another = true;
	if (by_hook) {
		must(munmap(idle, PAGE) == 0);
		return (void *)(uintptr_t)(ends(before) && stub_misled() == 0 ? RIGHT : WRONG);
	}
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	return (void *)(uintptr_t)(stub_deregistered() == before + 1 && stub_misled() == 0 ? RIGHT : WRONG);
}

static int other_device(bool by_hook)
{
	pthread_t thread;
	void *answer;

	idle = pages(1);
	idle_region(idle);
	if (userfaultfds(NULL) != 1)
		return UNTESTED;
	must(pthread_create(&thread, NULL, unmaps_apart, by_hook ? idle : NULL) == 0 && pthread_join(thread, &answer) == 0);
	return (int)(uintptr_t)answer;
}

static int other_device_hook(void)
{
	return other_device(true);
}

static int other_device_flush(void)
{
	return other_device(false);
}

static void part(int (*part)(void), const char *name)
{
	int wrong = 0, status = RIGHT;

	for (int round = 0; round < PROCESSES && status != UNTESTED; round++) {
		status = run(part);
		wrong += status != RIGHT;
		if (status > WRONG && status != UNTESTED)
			printf("# a child ended with %d\n", status);
	}
	if (status == UNTESTED)
		skip(name, "userfaultfd, io_uring or unshare is refused here");
	else
		is(wrong, 0, "%s (%d processes)", name, PROCESSES);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	for (int another = 0; another < 2; another++) {
		how.file = another ? another_userfaultfd : epoll_file;
		how.asked_before = true;
		part(with_table, another ? "unshare, then another userfaultfd at the number: no stale region" :
					   "unshare, then an epoll file at the number: no stale region");
		how.by_close_range = true;
		part(with_table, another ? "close_range that unshares, then another userfaultfd: no stale region" :
					   "close_range that unshares, then an epoll file: no stale region");
		how.by_close_range = how.asked_before = false;
		how.raw = true;
		part(with_table, another ? "raw system calls, by a thread that has not registered: no stale region" :
					   "raw system calls and an epoll file, likewise: no stale region");
		how.early = true;
		part(with_table, another ? "a table from before the library's start, and another userfaultfd" :
					   "a table from before the library's start, and an epoll file");
		how.early = how.raw = false;
	}
	part(other_device_hook, "a munmap in another table deregisters nothing on another device");
	part(other_device_flush, "a flush in another table deregisters nothing there, and all here");
	return done_testing();
}
