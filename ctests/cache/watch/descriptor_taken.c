/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The number of the cache's userfaultfd is in the program's table of descriptors: a program closes
 * all numbers that it has not opened, or gives them to files of its own. Whatever it does, no stale
 * region is handed out, no thread waits for a file that is never read, the program's file stays
 * untouched, and a file that the program closes is closed.
 *
 * The device is the stand-in, whose pins are real (stub_device.h). Each part runs in children: a
 * process can lose its watch only once.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"
#include "watched_page.h"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4
#endif

enum { PLACES = 400, RIGHT = 0, WRONG = 1, UNWATCHED = 77 };

static void *nothing(void *argument)
{
	return argument;
}

/* The number of the cache's file, in a process that has a watch. */
static int number_of_the_watch(void)
{
	int fd = -1;

	if (userfaultfds(&fd) != 1)
		_exit(UNWATCHED);
	return fd;
}

static int run(int (*part)(void))
{
	int status;
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		alarm(DEADLOCK);
		if (stub_open(STUB_PIN))
			_exit(UNWATCHED);
		_exit(part());
	}
	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool is_reused(char *memory)
{
	long before = stub_registered();

	return is_right(memory, 1) && stub_registered() == before;
}

/* The number is none of the program's, so the program finds nothing there to close. */
static int kept(void)
{
	char *memory = pages(1), *other = pages(1);
	int fd;

	idle_region(memory);
	idle_region(other);
	in_thread(nothing, NULL);
	fd = number_of_the_watch();
	errno = 0;
	if (close(fd) != -1 || errno != EBADF || close_range((unsigned)fd, (unsigned)fd, 0) ||
	    close_range((unsigned)fd, (unsigned)fd, 0x100) != -1)
		return WRONG;
	must(dup2(0, fd + 1) == fd + 1 && dup2(0, fd + 2) == fd + 2 && dup2(0, fd - 1) == fd - 1);
	if (close_range((unsigned)fd - 1, (unsigned)fd + 1, 0) || fcntl(fd - 1, F_GETFD) >= 0 || fcntl(fd + 1, F_GETFD) >= 0)
		return WRONG;
	closefrom(fd);
	if (fcntl(fd + 2, F_GETFD) >= 0 || number_of_the_watch() != fd)
		return WRONG;
	raw_remap(memory, PAGE);
	return is_right(memory, 1) && is_reused(other) ? RIGHT : WRONG;
}

/* A child of vfork has its parent's memory, and numbers of its own. */
static int kept_beside_child(void)
{
	char *memory = pages(1);
	int fd, status;
	pid_t pid;

	idle_region(memory);
	in_thread(nothing, NULL);
	fd = number_of_the_watch();
	pid = vfork();
	if (!pid)
		_exit(dup2(1, fd) == fd && close(fd) == 0 && fcntl(fd, F_GETFD) < 0 ? RIGHT : WRONG);
	must(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return !WEXITSTATUS(status) && number_of_the_watch() == fd && is_reused(memory) ? RIGHT : WRONG;
}

/* Another file takes the number, and ours goes on at another one. */
static int makes_way(void)
{
	char *memory = pages(1);
	int fd;

	idle_region(memory);
	in_thread(nothing, NULL);
	fd = number_of_the_watch();
	must(dup2(0, fd) == fd && close(fd) == 0);
	return number_of_the_watch() != fd && is_reused(memory) ? RIGHT : WRONG;
}

/* The cache's threads begin with a copy of the program's table of descriptors. */
static int closed_after_start(void)
{
	struct pollfd end = { .events = POLLIN };
	int ends[2];

	must(pipe(ends) == 0);
	must(ibv_dereg_mr_relaxed(registered(pages(1))) == 0);
	must(close(ends[1]) == 0);
	end.fd = ends[0];
	must(poll(&end, 1, 0) >= 0);
	return end.revents & POLLHUP ? RIGHT : WRONG;
}

/* The program's next file gets a number that a raw call has closed, and is the program's to close. */
static int own_file_there(void)
{
	struct pollfd end = { .events = POLLIN };
	int ends[2], fd;

	idle_region(pages(1));
	fd = number_of_the_watch();
	must(pipe(ends) == 0 && syscall(SYS_close, fd) == 0 && syscall(SYS_dup3, ends[1], fd, 0) == fd);
	must(close(ends[1]) == 0);
	if (close(fd) || fcntl(fd, F_GETFD) >= 0)
		return WRONG;
	end.fd = ends[0];
	must(poll(&end, 1, 0) >= 0);
	return end.revents & POLLHUP ? RIGHT : WRONG;
}

/* A call that closes nothing in the process: regions in use stay the kernel's until they end. */
static int nothing_closed(void)
{
	struct ibv_mr *mr = registered(pages(1));
	long before = stub_deregistered();

	number_of_the_watch();
	must(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0);
	must(close_range(3, ~0U, 0x100) == -1 && dup3(0, 3, 0x123) == -1);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	ibv_flush_relaxed_mr(stub_pd());
	return stub_deregistered() == before + 1 ? RIGHT : WRONG;
}

/* No other number is allowed, so the number becomes the program's if the call succeeds. */
static int no_other_number(void)
{
	char *memory = pages(1);
	struct rlimit limit;
	int fd;

	idle_region(memory);
	in_thread(nothing, NULL);
	fd = number_of_the_watch();
	must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = 3;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	must(dup2(0, fd) == -1);
	return is_reused(memory) ? RIGHT : WRONG;
}

/* As a daemon starts. */
static int closed_from(void)
{
	char *memory = pages(1), *other = pages(1);
	struct ibv_mr *mr;
	long before;
	bool right;

	idle_region(memory);
	idle_region(other);
	must(syscall(SYS_close_range, number_of_the_watch(), ~0U, 0) == 0);
	in_thread(nothing, NULL);
	raw_remap(memory, PAGE);
	right = is_right(memory, 1);
	/* No region is reused by a fence that gets no answer. */
	before = stub_registered();
	mr = registered(other);
	right = right && stub_registered() == before + 1 && lands_at(mr, other, 2);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return right ? RIGHT : WRONG;
}

static int becomes_a_pipe(void)
{
	char *memory = pages(1);
	int ends[2];

	idle_region(memory);
	must(pipe(ends) == 0 && dup2(ends[0], number_of_the_watch()) >= 0);
	raw_remap(memory, PAGE);
	return is_right(memory, 1) ? RIGHT : WRONG;
}

static int becomes_a_socket(void)
{
	char *memory = pages(1), text[64] = "";
	int ends[2], fd;

	idle_region(memory);
	fd = number_of_the_watch();
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && dup2(ends[0], fd) == fd);
	must(write(ends[1], "the program's", 14) == 14);
	raw_remap(memory, PAGE);
	usleep(100000);
	must(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	if (read(fd, text, sizeof(text)) != 14 || strcmp(text, "the program's"))
		return WRONG;
	return is_right(memory, 1) ? RIGHT : WRONG;
}

/* As a sandbox does: poll(2) fails from now on, and the reader must go on. */
static int no_numbers_left(void)
{
	const struct rlimit none = { 0, 0 };
	char *memory = pages(1), *other = pages(1);
	long before;

	idle_region(memory);
	idle_region(other);
	must(setrlimit(RLIMIT_NOFILE, &none) == 0);
	raw_remap(memory, PAGE);
	if (!is_right(memory, 1))
		return WRONG;
	before = stub_registered();
	if (!is_right(other, 2) || stub_registered() != before)
		return WRONG;
	raw_remap(other, PAGE);
	return is_right(other, 3) ? RIGHT : WRONG;
}

/* A child closes its copy of the cache's file, and no other file. */
static int child_keeps_file(void)
{
	int ends[2], fd, status;
	pid_t pid;

	idle_region(pages(1));
	fd = number_of_the_watch();
	must(pipe(ends) == 0 && dup2(ends[1], fd) == fd);
	pid = fork();
	must(pid >= 0);
	if (!pid)
		_exit(fcntl(fd, F_GETFD) >= 0 && write(fd, "x", 1) == 1 ? RIGHT : WRONG);
	must(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static char *places;
static _Atomic long go;

static void *unmaps(void *argument)
{
	(void)argument;
	for (long n = 0; n < PLACES; n++) {
		while (atomic_load(&go) <= n)
			;
		must(raw_munmap(places + 2 * n * PAGE, PAGE) == 0);
	}
	return NULL;
}

/*
 * The race of race.c, once at each place: new memory is registered as soon as the old is gone,
 * perhaps before the reader has read the event.
 */
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

static int idle_regions(void)
{
	places = (char *)0x10000000000;
	must(mmap(places, 2 * PLACES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		  -1, 0) == places);
	for (long n = 0; n < PLACES; n++)
		idle_region(places + 2 * n * PAGE);
	in_thread(nothing, NULL);
	return number_of_the_watch();
}

static int becomes_epoll(void)
{
	int fd = idle_regions(), other = epoll_create1(EPOLL_CLOEXEC);

	must(other >= 0 && dup2(other, fd) == fd);
	return races();
}

static int becomes_epoll_by_dup3(void)
{
	int fd = idle_regions(), other = epoll_create1(EPOLL_CLOEXEC);

	must(other >= 0 && dup3(other, fd, O_CLOEXEC) == fd);
	return races();
}

static int becomes_another_userfaultfd(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = idle_regions(), other = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	must(other >= 0 && ioctl(other, UFFDIO_API, &api) == 0 && dup2(other, fd) == fd);
	return races();
}

/*
 * Gives the number to another userfaultfd, by a call that the library does not see. That one takes
 * memory as the library's does, and has no events, which no thread would read.
 */
static void give_unseen(int fd)
{
	const uint64_t events = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
				UFFD_FEATURE_EVENT_UNMAP;
	struct uffdio_api api = { .api = UFFD_API, .features = uffd_features() & ~events };
	int other = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	must(other >= 0 && ioctl(other, UFFDIO_API, &api) == 0 && syscall(SYS_dup3, other, fd, O_CLOEXEC) == fd);
}

/*
 * The new memory goes to the other one, which reports nothing. It lies far from memory that the
 * library watches already.
 */
static bool new_memory_is_right(void)
{
	char *memory = (char *)0x20000000000;

	fresh_at(memory, PAGE);
	idle_region(memory);
	raw_remap(memory, PAGE);
	return is_right(memory, 1);
}

static int becomes_another_unseen(void)
{
	give_unseen(idle_regions());
	return new_memory_is_right() && races() == RIGHT ? RIGHT : WRONG;
}

/* A process with one thread asks no userfaultfd before it reuses a region. */
static int becomes_another_of_one_thread(void)
{
	idle_region(pages(1));
	give_unseen(number_of_the_watch());
	return new_memory_is_right() ? RIGHT : WRONG;
}

/* With its number in another thread's table closed, the watch goes on for all others. */
static void *leaves_table(void *memory)
{
	bool right;

	if (unshare(CLONE_FILES))
		return (void *)UNWATCHED;
	must(close_range(700, ~0U, 0) == 0);
	raw_remap(memory, PAGE);
	right = is_right(memory, 1) && is_right(memory, 2);
	return (void *)(uintptr_t)(right ? RIGHT : WRONG);
}

static int thread_leaves_table(void)
{
	char *memory = pages(1), *other = pages(1);
	pthread_t thread;
	long before;
	void *answer;

	idle_region(memory);
	idle_region(other);
	number_of_the_watch();
	must(pthread_create(&thread, NULL, leaves_table, memory) == 0 && pthread_join(thread, &answer) == 0);
	if (answer)
		return (int)(uintptr_t)answer;
	before = stub_registered();
	if (!is_right(other, 3) || stub_registered() != before)
		return WRONG;
	idle_region(memory);
	before = stub_registered();
	return is_right(memory, 4) && stub_registered() == before ? RIGHT : WRONG;
}

/* The reader has none of the program's files open. */
static int files_end(void)
{
	int ends[2];
	char byte;

	must(pipe(ends) == 0);
	idle_region(pages(1));
	number_of_the_watch();
	must(close(ends[1]) == 0);
	return read(ends[0], &byte, 1) == 0 ? RIGHT : WRONG;
}

/* The file lives as long as a process has a number for it, and no thread would read its events. */
static int not_in_child(void)
{
	int status;
	pid_t pid;

	idle_region(pages(1));
	number_of_the_watch();
	pid = fork();
	must(pid >= 0);
	if (!pid)
		_exit(userfaultfds(NULL) == 0 ? RIGHT : WRONG);
	must(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/*
 * Standard error is a pipe without a reader. The munmap finds that the number is gone while it
 * holds the lock of the cache. If it wrote there, no thread could register any more, and each
 * memory call would wait.
 */
static int nobody_reads(void)
{
	char *memory = pages(1), *other = pages(1), text[4096];
	int ends[2], line[2];
	struct pollfd there;

	idle_region(memory);
	must(pipe(ends) == 0 && pipe(line) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
	while (write(ends[1], text, sizeof(text)) > 0)
		;
	must(fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
	must(syscall(SYS_close, number_of_the_watch()) == 0);
	/* If it waits, the alarm of run() ends this process. */
	must(munmap(memory, PAGE) == 0);
	/* The next registration reports it, without a lock. */
	must(dup2(line[1], STDERR_FILENO) >= 0);
	must(is_right(other, 1));
	there = (struct pollfd){ line[0], POLLIN, 0 };
	return poll(&there, 1, 0) == 1 ? RIGHT : WRONG;
}

static const struct part {
	int (*part)(void);
	int times;
	const char *name;
} parts[] = {
	{ kept, 20, "the program closes it and all others: it is none of them" },
	{ kept_beside_child, 3, "a child of vfork uses the number: it is the child's" },
	{ own_file_there, 3, "a raw system call closes it, and the program's file is there: the program closes that" },
	{ nothing_closed, 3, "close_range and dup3 that close nothing: a region in use ends in the kernel" },
	{ no_other_number, 3, "a dup2 onto it fails: regions are reused" },
	{ makes_way, 3, "a file of the program's takes the number: regions are reused" },
	{ closed_from, 20, "closed by a raw system call: the next registrations are right, and made anew" },
	{ becomes_a_pipe, 3, "the number becomes a pipe: no munmap waits" },
	{ becomes_a_socket, 3, "the number becomes a socket: the program's bytes stay there" },
	{ no_numbers_left, 3, "no number is allowed any more: no munmap waits, and other regions are reused" },
	{ child_keeps_file, 3, "the number becomes a pipe: a forked child has it" },
	{ becomes_epoll, 5, "the number becomes an epoll file: no stale region" },
	{ becomes_epoll_by_dup3, 5, "the same by dup3: no stale region" },
	{ becomes_another_userfaultfd, 5, "the number becomes another userfaultfd: no stale region" },
	{ becomes_another_unseen, 2, "the same by a raw system call, then new memory: no stale region" },
	{ becomes_another_of_one_thread, 2, "the same in a process with one thread: no stale region" },
	{ thread_leaves_table, 3, "a thread with a table of its own closes it: the others go on" },
	{ closed_after_start, 50, "a file that the program closes as soon as the cache has started is closed" },
	{ files_end, 3, "a file that the program closes is closed" },
	{ not_in_child, 3, "a forked child has no number of the file" },
	{ nobody_reads, 3, "closed while standard error has no reader: no munmap waits, and the next registration reports it" },
};

int main(int argc, char **argv)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC), err = dup(STDERR_FILENO);

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	must(null >= 0 && err >= 0);
	for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++) {
		int wrong = 0, status = RIGHT;

		/* Each child reports that its descriptor is gone. */
		must(dup2(null, STDERR_FILENO) >= 0);
		for (int round = 0; round < parts[n].times && status != UNWATCHED; round++) {
			status = run(parts[n].part);
			wrong += status != RIGHT;
			if (status > WRONG && status != UNWATCHED)
				printf("# a child ended with %d\n", status);
		}
		must(dup2(err, STDERR_FILENO) >= 0);
		if (status == UNWATCHED)
			skip(parts[n].name, "userfaultfd, io_uring or unshare is refused here");
		else
			is(wrong, 0, "%s (%d processes)", parts[n].name, parts[n].times);
	}
	return done_testing();
}
