/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The numbers of the cache's userfaultfd and of the device are in the program's table of descriptors. Whatever
 * the program does with them, no stale region is handed out, no region is deregistered on another device, no
 * thread waits for a file that is never read, the program's files stay untouched, and a file that the program
 * closes is closed. The stand-in's file is a memfd.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "../../lib/stub_rows.h"

/* The number of the cache's file, in a process that has a watch, and several threads. */
static int watch_number(void)
{
	int fd = -1;

	become_threaded();
	must(userfaultfds(&fd) == 1);
	return fd;
}

static bool has_ended(int end)
{
	struct pollfd there = { end, POLLIN, 0 };

	return poll(&there, 1, 0) == 1 && there.revents & POLLHUP;
}

/* The number of the userfaultfd. row->then is the rest of each check. */

/* It is none of the program's, so the program finds nothing there to close. */
static void kept(void)
{
	char *page = idle();
	int fd = watch_number();

	errno = 0;
	ok(close(fd) == -1 && errno == EBADF, "close: EBADF");
	is(close_range((unsigned)fd, (unsigned)fd, 0), 0, "close_range finds nothing there");
	is(close_range((unsigned)fd, (unsigned)fd, 0x100), -1, "close_range with wrong flags fails");
	must(dup2(0, fd + 1) == fd + 1 && dup2(0, fd + 2) == fd + 2 && dup2(0, fd - 1) == fd - 1);
	is(close_range((unsigned)fd - 1, (unsigned)fd + 1, 0), 0, "close_range around it");
	ok(fcntl(fd - 1, F_GETFD) < 0 && fcntl(fd + 1, F_GETFD) < 0, "the numbers beside it are closed");
	closefrom(fd);
	ok(fcntl(fd + 2, F_GETFD) < 0, "closefrom closes the next one");
	is(watch_number(), fd, "the cache's file is there");
	raw_remap(page, PAGE);
	served(page, FRESH, "other memory, mapped anew");
}

/* A child of vfork has its parent's memory, and numbers of its own. */
static void kept_beside_child(void)
{
	int fd = watch_number();

	is(in_vforked(dup2(1, fd) == fd && close(fd) == 0 && fcntl(fd, F_GETFD) < 0), 1,
	   "the number is the child's");
	is(watch_number(), fd, "and the cache's");
}

static void makes_way(void)
{
	int fd = watch_number();

	must(dup2(0, fd) == fd && close(fd) == 0);
	ok(watch_number() != fd, "the cache's file has another number");
}

static void no_other_number(void)
{
	int fd = watch_number();
	struct rlimit limit;

	must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = 3;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	is(dup2(0, fd), -1, "dup2 fails");
}

/* The program's next file gets a number that a raw call has closed, and is the program's to close. */
static void own_file_there(void)
{
	int ends[2], fd = watch_number();

	must(pipe(ends) == 0 && syscall(SYS_close, fd) == 0 && syscall(SYS_dup3, ends[1], fd, 0) == fd);
	must(close(ends[1]) == 0);
	is(close(fd), 0, "the program closes its file");
	ok(fcntl(fd, F_GETFD) < 0 && has_ended(ends[0]), "it is closed");
}

/* As a daemon starts. No region is reused by a fence that gets no answer. */
static void closed_from(void)
{
	char *page = idle();

	must(syscall(SYS_close_range, watch_number(), ~0U, 0) == 0);
	raw_remap(page, PAGE);
	served(page, PLAIN, "memory mapped anew");
}

static void becomes_a_socket(void)
{
	char text[64] = "";
	int ends[2], fd = watch_number();

	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && dup2(ends[0], fd) == fd);
	must(write(ends[1], "the program's", 14) == 14);
	raw_remap(idle_page, PAGE);
	usleep(100000);
	must(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	ok(read(fd, text, sizeof(text)) == 14 && !strcmp(text, "the program's"), "the program's bytes stay there");
}

/* As a sandbox does: poll(2) fails from now on, and the reader must go on. */
static void no_numbers_left(void)
{
	const struct rlimit none = { 0, 0 };
	char *page = idle();

	idle_page = idle();
	must(setrlimit(RLIMIT_NOFILE, &none) == 0);
	raw_remap(page, PAGE);
	is(hits(page, 1), 0, "memory mapped anew is registered anew");
	served(idle_page, HIT, "other memory");
	raw_remap(idle_page, PAGE);
	is(hits(idle_page, 1), 0, "mapped anew, it is registered anew");
}

static int fd, ends[2];

static int writes_there(void) { return !(fcntl(fd, F_GETFD) >= 0 && write(fd, "x", 1) == 1); }

/* A child closes its copy of the cache's file, and no other file. */
static void child_keeps_file(void)
{
	fd = watch_number();
	must(pipe(ends) == 0 && dup2(ends[1], fd) == fd);
	is(in_forked(writes_there), 0, "the child has the pipe");
}

static int has_watch(void) { return userfaultfds(NULL); }

static void not_in_child(void)
{
	is(in_forked(has_watch), 0, "the child has no number of the file, whose events no thread would read");
}

/* The cache's threads begin with a copy of the program's table of descriptors. */
static void closed_after_start(void)
{
	must(pipe(ends) == 0);
	dereg(reg(pages(1), PAGE));
	must(close(ends[1]) == 0);
	ok(has_ended(ends[0]), "the pipe has ended");
}

static _Atomic int closed, held;

static void *closes(void *unused)
{
	for (; closed >= 0; closed++) {
		int pair[2];

		must(pipe(pair) == 0 && close(pair[1]) == 0);
		held += !has_ended(pair[0]);
		must(close(pair[0]) == 0);
	}
	return unused;
}

/* The kernel copies the first 64 numbers of a table in any case. */
static void closed_during_start(void)
{
	struct rlimit limit;
	pthread_t thread;

	if (syscall(SYS_pidfd_getfd, -1, 0, 0) == 0 || errno != EBADF)
		skip_all("pidfd_getfd(2) is refused: the start copies the table up to its own file");
	must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max < 16384 ? limit.rlim_max : 16384;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while (dup(0) < (int)limit.rlim_cur - 64)
		;
	thread = must_start(closes, NULL);
	while (closed < 20)
		sched_yield();
	dereg(reg(pages(1), PAGE));
	closed = -1000;
	must_join(thread);
	is(held, 0, "each pipe ends when the program closes it");
}

/* As the filters of containers do. */
static void table_not_fetched(void)
{
	char *page = pages(1);

	must(refuse_calls(SYS_pidfd_getfd, 0, UINT32_MAX, EPERM));
	once(page);
	served(page, HIT, "the same memory");
}

/*
 * Standard error is a pipe without a reader. The munmap finds that the number is gone while it holds
 * the lock of the cache. If it wrote there, each memory call would wait.
 */
static void nobody_reads(void)
{
	char text[4096] = "", *page = idle();
	struct pollfd there;
	int line[2];

	must(pipe(ends) == 0 && pipe(line) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
	while (write(ends[1], text, sizeof(text)) > 0)
		;
	must(fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
	must(syscall(SYS_close, watch_number()) == 0);
	must(munmap(page, PAGE) == 0);
	/* The next registration reports it, without a lock. */
	must(dup2(line[1], STDERR_FILENO) >= 0);
	once(pages(1));
	there = (struct pollfd){ line[0], POLLIN, 0 };
	is(poll(&there, 1, 0), 1, "the next registration reports it");
}

/* With another file at the number, the race of stub_rows.h. */

static int epoll_file(void) { return epoll_create1(EPOLL_CLOEXEC); }

/* It has no events, which no thread would read, and takes memory as the library's does. */
static int another_userfaultfd(void)
{
	const uint64_t events = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
				UFFD_FEATURE_EVENT_UNMAP;

	return open_userfaultfd(uffd_features() & ~events);
}

/* By a call that the library sees, or not; any greater value is RAW too. */
enum { DUP2, DUP3, RAW };

static void give_number(int to)
{
	int file = ((int (*)(void))(uintptr_t)row->of)();

	must(file >= 0);
	must((row->value == DUP2 ? dup2(file, to) : row->value == DUP3 ? dup3(file, to, O_CLOEXEC) :
	      (int)syscall(SYS_dup3, file, to, O_CLOEXEC)) == to);
}

/* The new memory goes to the other one, which reports nothing. It lies far from watched memory. */
static void new_memory(void)
{
	char *page = (char *)0x20000000000;

	fresh_at(page, PAGE);
	hits(page, 2);
	raw_remap(page, PAGE);
	once(page);
}

static void replaced(void)
{
	char *page = idle();
	int number = watch_number();

	hold_reader();
	give_number(number);
	if (row->value == RAW)
		new_memory();
	race(page);
}

/* A process with one thread asks no userfaultfd before it reuses a region. */
static void replaced_in_one_thread(void)
{
	int number = -1;

	idle();
	must(userfaultfds(&number) == 1);
	give_number(number);
	new_memory();
	ok(stub_registered() > 0, "data has landed");
}

/*
 * A thread with a table of its own has other files at the library's numbers. Meanwhile another thread,
 * whose numbers are the library's, verifies them: one thread's check says nothing about the other's.
 */

enum { BY_UNSHARE, BY_CLOSE_RANGE, BY_RAW, EARLY_RAW };

static pthread_barrier_t meeting;
static char *raced;

static void leaves(void)
{
	must((row->value == BY_UNSHARE ? unshare(CLONE_FILES) :
	      row->value == BY_CLOSE_RANGE ? close_range(~0U, ~0U, CLOSE_RANGE_UNSHARE) :
	      (int)syscall(SYS_unshare, CLONE_FILES)) == 0);
}

static void *apart(void *other)
{
	int number = 60; /* src/cache/watch/userfaultfd.rs; a program cannot know */

	if (row->value == EARLY_RAW)
		leaves();
	pthread_barrier_wait(&meeting);
	/* The other thread starts the cache, and holds the reader. */
	pthread_barrier_wait(&meeting);
	if (row->value < BY_RAW)
		once(other);
	if (row->value != EARLY_RAW) {
		leaves();
		must(userfaultfds(&number) == 1);
	}
	give_number(number);
	pthread_barrier_wait(&meeting);
	/* The other thread verifies its own number. */
	pthread_barrier_wait(&meeting);
	race(raced);
	return NULL;
}

static void table_apart(void)
{
	char *other = pages(1);
	pthread_t thread;

	must(pthread_barrier_init(&meeting, NULL, 2) == 0);
	thread = must_start(apart, other);
	pthread_barrier_wait(&meeting);
	leave_idle(other);
	raced = idle();
	hold_reader();
	pthread_barrier_wait(&meeting);
	pthread_barrier_wait(&meeting);
	/* A hit, for which this thread verifies the number. Later ones stay hits. */
	is(hits(other, 4), 4, "the other thread's registrations are hits");
	pthread_barrier_wait(&meeting);
	must_join(thread);
	served(other, HIT, "after it");
}

static void *closes_apart(void *page)
{
	must(unshare(CLONE_FILES) == 0 && close_range(700, ~0U, 0) == 0);
	raw_remap(page, PAGE);
	hits(page, 2);
	return NULL;
}

/* With its number in another thread's table closed, the watch goes on for all others. */
static void table_closed(void)
{
	char *page = idle();

	watch_number();
	in_thread(closes_apart, page);
	served(page, FRESH, "its memory, of the first thread");
}

static void *ends_region_apart(void *unused)
{
	long before = stub_deregistered();

	must(unshare(CLONE_FILES) == 0);
	stub_is_another = true;
	must((row->value ? munmap(idle_page, PAGE) : ibv_flush_relaxed_mr(stub_pd())) == 0);
	ok(row->value ? comes(stub_deregistered() == before + 1) : stub_deregistered() == before + 1, "the region ends");
	is(stub_misled(), 0, "the other device gets no request");
	return unused;
}

static void other_device(void)
{
	idle_page = idle();
	in_thread(ends_region_apart, NULL);
}

/* A thread leaves the program's table, registers, and ends with the files of its own. */

static void *ends_with_files(void *page)
{
	must(unshare(CLONE_FILES) == 0);
	hits(page, 3);
	return NULL;
}

static void table_ends(void)
{
	char *page = pages(1);

	must(pipe(ends) == 0);
	in_thread(ends_with_files, page);
	close(ends[1]);
	/* The kernel closes the files of an ended thread a moment after its join. */
	ok(comes(has_ended(ends[0])), "its pipe has ended with it");
	/* After a refusal some registrations are plain, and then the cache keeps one region. */
	ok(hits(page, 63) >= 23, "another thread's regions are reused");
	is(userfaultfds(NULL), 1, "there is a watch");
}

/* The lowest numbers are the program's. */

static void few_numbers(void)
{
	struct rlimit limit = { (rlim_t)row->value, (rlim_t)row->value };

	must(setrlimit(RLIMIT_NOFILE, &limit) == 0 && close(STDIN_FILENO) == 0);
	ok(hits(pages(1), 8) >= 1, "regions are reused");
	is(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO, "the program's next file gets the lowest number");
}

/*
 * The device's number. The kernel ends the regions with the file. The library deregisters nothing
 * through the number afterwards, since it may belong to another device, and writes nothing to it.
 */

static const char TEXT[] = "the program's";
enum { UNSEEN = 1, IS_DEVICE = 2 };

static void by_close(int fd) { must(close(fd) == 0); }
static void by_closefrom(int fd) { closefrom(fd); }
static void by_close_range(int fd) { must(close_range((unsigned)fd, ~0U, 0) == 0); }
static void by_dup2(int fd) { must(dup2(STDOUT_FILENO, fd) == fd); }
static void by_dup3(int fd) { must(dup3(STDOUT_FILENO, fd, O_CLOEXEC) == fd); }
static void by_raw_close(int fd) { must(syscall(SYS_close, fd) == 0); }
static void device_number(void) { ((void (*)(int))(uintptr_t)row->of)(stub_pd()->context->cmd_fd); }

/* With IS_DEVICE the stand-in answers at the number afterwards too, as another device. */
static void device_goes(void)
{
	int fd = stub_pd()->context->cmd_fd, file;
	struct ibv_mr *used;
	struct stat about;
	long before;

	idle();
	used = reg(pages(1), PAGE);
	before = stub_deregistered();
	device_number();
	if (!(row->value & UNSEEN))
		is(stub_deregistered() - before, 1, "the idle region has ended with the call");
	file = memfd_create("the program's file", MFD_CLOEXEC);
	must(file >= 0 && (file == fd || (syscall(SYS_dup3, file, fd, 0) == fd && syscall(SYS_close, file) == 0)));
	must(write(fd, TEXT, sizeof(TEXT)) == sizeof(TEXT));
	if (!(row->value & IS_DEVICE))
		stub_pd()->context->cmd_fd = -1;
	before = stub_deregistered();
	ibv_flush_relaxed_mr(stub_pd());
	is(ibv_dereg_mr_relaxed(used), 0, "a region in use is released without an error");
	ibv_flush_relaxed_mr(stub_pd());
	is(stub_deregistered() - before, 0, "the next device of the number keeps its regions");
	must(fstat(fd, &about) == 0);
	is(about.st_size, sizeof(TEXT), "the program's file has its own bytes alone");
}

static void fails(int fd) { must(dup2(-1, fd) == -1 && dup3(fd, fd, 0) == -1); }
static void onto_itself(int fd) { must(dup2(fd, fd) == fd); }
static void another(int fd) { must(close(dup(fd)) == 0); }

static void in_vfork_child(int fd) { is(in_vforked(close(fd)), 0, "the child closes it"); }

static int closes_device(void) { return close(stub_pd()->context->cmd_fd); }

static void in_forked_child(int fd)
{
	(void)fd;
	is(in_forked(closes_device), 0, "the child closes it");
}

#define DEVICE(name, way) \
	{ "the device's number goes by " name, device_goes, .of = way, .flags = NO_PINS }, \
	{ "the device's number goes to another device by " name, device_goes, IS_DEVICE, .of = way, .flags = NO_PINS }
#define APART(words, how) \
	{ words "an epoll file at the number", table_apart, how, epoll_file, .times = 5 }, \
	{ words "another userfaultfd at the number", table_apart, how, another_userfaultfd, .times = 5 }
#define FEW(most) { "RLIMIT_NOFILE of " #most, few_numbers, most, .flags = PLAIN_CALLS | NO_PINS, .settings = "RDMAMR_CACHE_LINGER" }

static const struct row rows[] = {
	{ "the program closes the number and all others", kept, .then = HIT, .times = 20 },
	{ "a child of vfork uses the number", kept_beside_child, .then = HIT, .times = 3 },
	{ "a file of the program's takes the number", makes_way, .then = HIT, .times = 3 },
	{ "a dup2 onto the number fails, as no other is allowed", no_other_number, .then = HIT, .times = 3 },
	{ "a raw system call closes the number, and the program's file is there", own_file_there, .then = PLAIN, .times = 3 },
	{ "the number is closed by a raw system call", closed_from, .then = PLAIN, .times = 20 },
	{ "the number becomes a socket", becomes_a_socket, .then = FRESH, .times = 3 },
	{ "no number is allowed any more", no_numbers_left, .times = 3 },
	{ "the number becomes a pipe, and a child is forked", child_keeps_file, .then = HIT, .times = 3 },
	{ "a forked child", not_in_child, .then = HIT, .times = 3 },
	{ "a file is closed as soon as the cache has started", closed_after_start, .times = 50 },
	{ "files above the first 64 are closed during the start", closed_during_start, .times = 40 },
	{ "the kernel refuses pidfd_getfd", table_not_fetched },
	{ "the number is closed while standard error has no reader", nobody_reads, .then = PLAIN, .times = 3 },
	{ "the number becomes an epoll file", replaced, DUP2, epoll_file, .times = 5 },
	{ "the number becomes an epoll file by dup3", replaced, DUP3, epoll_file, .times = 5 },
	{ "the number becomes another userfaultfd", replaced, DUP2, another_userfaultfd, .times = 5 },
	{ "the number becomes another userfaultfd by a raw system call", replaced, RAW, another_userfaultfd, .times = 2 },
	{ "the same in a process with one thread", replaced_in_one_thread, RAW, another_userfaultfd, .times = 2 },
	APART("a thread leaves the table by unshare, and has ", BY_UNSHARE),
	APART("a thread leaves the table by close_range, and has ", BY_CLOSE_RANGE),
	APART("a thread that has not registered leaves it by a raw system call, and has ", BY_RAW),
	APART("a table from before the library's start, and ", EARLY_RAW),
	{ "a thread with a table of its own closes the number", table_closed, .then = HIT, .times = 3 },
	{ "a munmap in another table", other_device, true, .times = 5 },
	{ "a flush in another table", other_device, false, .times = 5 },
	{ "a thread with a table of its own ends", table_ends, .flags = BOTH_CALLS },
	FEW(24), FEW(48), FEW(60), FEW(63), FEW(64), FEW(65), FEW(1024),
	DEVICE("close", by_close),
	DEVICE("closefrom", by_closefrom),
	DEVICE("close_range", by_close_range),
	DEVICE("dup2", by_dup2),
	DEVICE("dup3", by_dup3),
	{ "the device's number goes by a raw close", device_goes, UNSEEN, by_raw_close, .flags = NO_PINS },
	{ "a call onto the device's number fails", device_number, .of = fails, .then = HIT, .flags = NO_PINS },
	{ "dup2 of the device's number onto itself", device_number, .of = onto_itself, .then = HIT, .flags = NO_PINS },
	{ "close of another number of the device", device_number, .of = another, .then = HIT, .flags = NO_PINS },
	{ "close of the device's number in a child of vfork", device_number, .of = in_vfork_child, .then = HIT, .flags = NO_PINS },
	{ "close of the device's number in a child of fork", device_number, .of = in_forked_child, .then = HIT, .flags = NO_PINS },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
