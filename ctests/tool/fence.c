/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process that asks "rdmamr fence" for the counters, without the library; fence.sh runs it.
 *
 *   ask               succeeds if the service answers
 *   changes           which changes are counted, and that a process cannot write the counters
 *   outlive           asks, and checks its counters after each line of standard input
 *   crowd N           N processes ask, and keep what they got at the same time
 *   rude              clients that send nothing, garbage or too much
 *   unread            clients that never read their answers
 *   load N            N unmaps that others interrupt: each is counted, or "open" is not 0
 *   cost N            ns of changes of memory, and of switches between processes
 */
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../lib/tap.h"

enum { PAGE = 4096, LINES = 32768, SIZE = (1 + LINES) * 64, FILES = 9 };

static volatile _Atomic uint64_t *counters, *mine; /* the first line, and this process's */
static uint32_t place;
static int files[FILES], count;

static uint64_t gaps(void) { return atomic_load(&counters[0]); }
static uint64_t open_now(void) { return atomic_load(&counters[1]); }
static uint64_t moves(void) { return atomic_load(&mine[0]); }

static int dial(void)
{
	struct sockaddr_un address = { AF_UNIX, "/run/rdmamr/fence" };
	struct timeval patience = { 10, 0 };
	int it = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(it >= 0);
	setsockopt(it, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(it, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (!connect(it, (void *)&address, sizeof(address)))
		return it;
	close(it);
	return -1;
}

/* Asks the service. Returns whether it has answered, as agreed. */
static int ask(void)
{
	struct { char magic[8]; uint32_t version, place; char more; } answer;
	union { struct cmsghdr header; char room[CMSG_SPACE(16 * sizeof(int))]; } control;
	struct iovec part = { &answer, sizeof(answer) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int it = dial();
	ssize_t got;

	if (it < 0 || send(it, "RDMAMRF1", 8, MSG_NOSIGNAL) != 8 || (got = recvmsg(it, &message, MSG_CMSG_CLOEXEC)) != 16)
		return 0;
	close(it);
	count = (control.header.cmsg_len - CMSG_LEN(0)) / sizeof(int);
	if (!message.msg_controllen || count < 4 || count > FILES || memcmp(answer.magic, "RDMAMRF1", 8) || answer.version != 1 || answer.place >= LINES)
		return 0;
	memcpy(files, CMSG_DATA(&control.header), count * sizeof(int));
	place = answer.place;
	counters = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, files[0], 0);
	mine = counters + 8 * (1 + place);
	return (void *)counters != MAP_FAILED;
}

/* Fresh memory, watched by a userfaultfd that wants no events. */
static char *watched(size_t length)
{
	struct uffdio_api api = { .api = UFFD_API };
	static int watch = -1;
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (uintptr_t)at, length }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	must(at != MAP_FAILED);
	if (watch < 0) {
		watch = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
		must(watch >= 0 && !ioctl(watch, UFFDIO_API, &api));
	}
	must(!ioctl(watch, UFFDIO_REGISTER, &range));
	return at;
}

static char *unwatched(size_t length)
{
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED);
	return at;
}

static char *page;

static int unmaps(void) { return munmap(page, PAGE); }
static int maps_over(void)
{
	return mmap(page, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page ? 0 : -1;
}
static int moves_away(void)
{
	/* Nothing is unmapped, which would be counted too. */
	return mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) != MAP_FAILED ? 0 : -1;
}
static int moves_over(void)
{
	char *from = unwatched(PAGE);

	return mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, page) == page ? 0 : -1;
}

/* In a task that shares the memory and is a process of its own. */
static int elsewhere(void *unused)
{
	(void)unused;
	return munmap(page, PAGE) != 0;
}
static int another_task_unmaps(void)
{
	static char stack[65536] __attribute__((aligned(16)));
	int status = 1, pid = clone(elsewhere, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL);

	return pid > 0 && waitpid(pid, &status, 0) == pid && !status ? 0 : -1;
}

static void changes(void)
{
	const struct { const char *name; int (*change)(void); bool unmaps; } table[] = {
		{ "munmap", unmaps, true },
		{ "a mapping in its place", maps_over, true },
		{ "mremap away", moves_away, false },
		{ "mremap into its place", moves_over, true },
		{ "munmap by a task that shares the memory", another_task_unmaps, true },
	};
	struct utsname name;
	int major, minor;

	uname(&name);
	must(sscanf(name.release, "%d.%d", &major, &minor) == 2);
	for (size_t n = 0; n < sizeof(table) / sizeof(*table); n++) {
		uint64_t before = (page = watched(PAGE), moves());

		case_begin("watched memory, %s", table[n].name);
		ok(table[n].change() == 0 && moves() > before, "counted");
		case_end();
	}
	for (size_t n = 0; n < sizeof(table) / sizeof(*table); n++) {
		uint64_t before;

		/* Memory between the two, so that no mapping of the program is next to it. */
		page = unwatched(3 * PAGE) + PAGE;
		mprotect(page, PAGE, PROT_READ);
		before = moves();
		case_begin("unwatched memory, %s", table[n].name);
		if (major == 6 && minor < 7 && table[n].unmaps)
			skip(table[n].name, "this kernel does not tell which memory is unmapped");
		else
			ok(table[n].change() == 0 && moves() == before, "not counted");
		case_end();
	}
}

static void writes(void)
{
	struct { uint32_t map, pad; uint64_t key, value, flags; } update = { .map = files[0] };
	struct { uint64_t path; uint32_t file, flags; } pin = { (uintptr_t)"/mnt/fence", files[0], 0 };
	uint32_t key = 0;
	char *value = calloc(1, SIZE);

	update.key = (uintptr_t)&key, update.value = (uintptr_t)value;
	ok(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, files[0], 0) == MAP_FAILED, "a process cannot map the counters to write");
	ok(mprotect((void *)counters, SIZE, PROT_READ | PROT_WRITE) && errno == EACCES, "nor make its mapping writable");
	ok(syscall(SYS_bpf, 2, &update, sizeof(update)) == -1 && errno == EPERM, "nor update the array");
	/* A bpffs of its own would open the array with all rights. */
	case_begin("nor write by a pin of its own");
	if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) || syscall(SYS_mount, "bpf", "/mnt", "bpf", 0, NULL)) {
		skip("a pin", "no bpffs can be mounted");
	} else if (syscall(SYS_bpf, 6, &pin, sizeof(pin))) {
		ok(1, "the pin is refused");
	} else {
		pin.file = 0;
		int again = syscall(SYS_bpf, 7, &pin, sizeof(pin));

		ok(again < 0 || mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED, "the pin cannot be mapped to write");
		update.map = again;
		ok(again < 0 || syscall(SYS_bpf, 2, &update, sizeof(update)) == -1, "nor updated");
		printf("# a pin could be made and %s\n", again < 0 ? "not opened" : "opened for writing");
	}
	case_end();
	free(value);
}

static void outlive(void)
{
	char line[100];

	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t before = moves();

		page = watched(PAGE);
		unmaps();
		line[strcspn(line, "\n")] = 0;
		printf("%s %s\n", moves() > before ? "counted" : "lost", line);
		fflush(stdout);
	}
}

static void crowd(int number)
{
	int ready[2], end[2], answered = 0, silent = 0;
	char byte;

	must(!pipe(ready) && !pipe(end));
	for (int n = 0; n < number; n++) {
		if (fork())
			continue;
		int got = 0;

		/* A thousand at once: the backlog may be full. */
		for (int tries = 0; !(got = ask()) && tries < 50; tries++)
			usleep(20000);

		bool moved = false;

		/* A processor that has preempted a task inside the program skips counts. */
		for (int tries = 0; got && !moved && tries < 50; tries++) {
			uint64_t before = (page = watched(PAGE), moves());

			moved = !unmaps() && moves() > before;
			if (!moved)
				usleep(20000);
		}
		must(write(ready[1], moved ? "+" : got ? "-" : "n", 1) == 1);
		close(end[1]);
		_exit(read(end[0], &byte, 1));
	}
	for (int n = 0; n < number && read(ready[0], &byte, 1) == 1; n++) {
		answered += byte == '+';
		silent += byte == 'n';
	}
	if (silent)
		printf("# %d got no answer\n", silent);
	is(answered, number, "%d processes at once have counters that move", number);
	close(end[1]);
	while (wait(NULL) > 0)
		;
}

static void rude(void)
{
	char long_one[4096] = "RDMAMRF1";
	int before = ask(), it;

	ok(before, "the service answers");
	for (int n = 0; n < 300; n++)
		must(dial() >= 0);
	ok(ask(), "although 300 have connected and ask nothing");
	for (int n = 0; n < 100; n++) {
		must((it = dial()) >= 0);
		send(it, n & 1 ? "RDMAMRF2" : "\0\377", n & 1 ? 8 : 2, MSG_NOSIGNAL);
		close(n & 2 ? it : -1);
		must((it = dial()) >= 0);
		send(it, long_one, n & 1 ? sizeof(long_one) : 9, MSG_NOSIGNAL);
	}
	ok(recv(it, long_one, 1, 0) <= 0, "who sends garbage gets nothing");
}

static int in_child(int (*succeeds)(void))
{
	int status = 1;
	pid_t pid = fork();

	if (!pid)
		_exit(!succeeds());
	return waitpid(pid, &status, 0) == pid && !status;
}

static int another_asks(void) { return !seteuid(1) && ask(); }

/* By a process of root without capabilities, which may open 1024 files. */
static int sends_a_file(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { { 0 } };
	struct rlimit limit = { 1024, 1024 };
	union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {
		.header = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS },
	};
	struct iovec part = { &limit, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int pair[2];

	must(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	memcpy(CMSG_DATA(&control.header), pair, sizeof(int));
	must(!setrlimit(RLIMIT_NOFILE, &limit) && !syscall(SYS_capset, &head, none));
	return sendmsg(pair[0], &message, MSG_NOSIGNAL) == 1;
}

/* A user asks by so many connections and reads no answer. The first are shut down with theirs. */
static void ask_and_leave(uid_t user, struct pollfd *clients, int number)
{
	must(!seteuid(user));
	for (int n = 0; n < number; n++) {
		clients[n] = (struct pollfd){ dial(), POLLIN, 0 };
		must(clients[n].fd >= 0);
		send(clients[n].fd, "RDMAMRF1", 8, MSG_NOSIGNAL);
		if (n < 16 && poll(clients + n, 1, 10000) == 1)
			shutdown(clients[n].fd, SHUT_RDWR);
	}
	must(!seteuid(0));
}

/* How many of them have an answer, when the service has closed the others. */
static int answered(const struct pollfd *clients, int number)
{
	char byte;
	int found = 0;

	for (int n = 0; n < number; n++)
		found += recv(clients[n].fd, &byte, 1, MSG_PEEK) == 1;
	return found;
}

static void unread(void)
{
	enum { CLIENTS = 300, MOST = 32, USERS = 9, EACH = 40 };
	static struct pollfd clients[USERS * EACH];
	int most = 0;

	ask_and_leave(0, clients, CLIENTS);
	ok(in_child(another_asks), "the service answers another user although 300 never read their answers");
	is(answered(clients, CLIENTS), MOST, "of a user's clients that never read 32 have an answer");
	ok(!in_child(ask), "and no other of that user gets one");
	for (int n = 0; n < CLIENTS; n++)
		close(clients[n].fd);
	ok(in_child(ask), "before they close");
	for (int n = 0; n < USERS; n++) {
		ask_and_leave(100 + n, clients + n * EACH, EACH);
		int got = answered(clients + n * EACH, EACH);

		most = got > most ? got : most;
	}
	is(most, MOST, "another user has as many");
	ok(in_child(sends_a_file), "%d users who never read keep no process of root from sending files", USERS);
}

static void pinned(int policy, int priority)
{
	cpu_set_t first;
	struct sched_param param = { priority };

	CPU_ZERO(&first);
	CPU_SET(0, &first);
	must(!sched_setaffinity(0, sizeof(first), &first));
	must(!sched_setscheduler(0, policy, &param));
}

/* Others unmap all the time; one of more priority wakes up in the middle of that, and unmaps too. */
static void load(int number)
{
	enum { OTHERS = 3, AT_ONCE = 20000 };
	pid_t others[OTHERS];
	int lost = 0, hidden = 0;
	uint64_t gaps_before = gaps();

	for (int n = 0; n < OTHERS; n++) {
		if ((others[n] = fork()))
			continue;
		pinned(n ? SCHED_OTHER : SCHED_FIFO, n ? 0 : 1);
		for (;;) {
			char *at = watched(AT_ONCE * PAGE);

			for (int m = 0; m < AT_ONCE; m++) {
				if (munmap(at + m * PAGE, PAGE))
					_exit(1);
				/* Or the kernel throttles what has a real-time priority. */
				if (!n && m % 1000 == 0)
					usleep(20000);
			}
		}
	}
	pinned(SCHED_FIFO, 2);
	for (int n = 0; n < number;) {
		char *at = watched(AT_ONCE * PAGE);

		for (int m = 0; m < AT_ONCE && n < number; m++, n++) {
			struct timespec pause = { 0, 20000 + n % 97 * 100 };
			uint64_t before;

			nanosleep(&pause, NULL);
			before = moves();
			munmap(at + m * PAGE, PAGE);
			/* The one that was interrupted cannot run before this process sleeps. */
			if (moves() == before) {
				lost++;
				hidden += !open_now();
			}
		}
		munmap(at, AT_ONCE * PAGE);
	}
	for (int n = 0; n < OTHERS; n++)
		kill(others[n], SIGKILL), waitpid(others[n], NULL, 0);
	is(hidden, 0, "%d unmaps: %d were not counted, each while \"open\" was not 0", number, lost);
	ok(!lost || gaps() > gaps_before, "\"gaps\" has risen by %llu", (unsigned long long)(gaps() - gaps_before));
	for (int n = 0; open_now() && n < 1000; n++)
		usleep(1000);
	is(open_now(), 0, "\"open\" is 0 when they have gone");
}

static double ns(const struct timespec *since, int number)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return ((now.tv_sec - since->tv_sec) * 1e9 + now.tv_nsec - since->tv_nsec) / number;
}

/* ns of one: the least of 60 rounds, which nothing else has disturbed. */
static void cost_of(const char *what, void (*once)(void), int number)
{
	double least = 1e9;

	for (int round = 0; round < 60; round++) {
		struct timespec begin;
		double it;

		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (int n = 0; n < number; n++)
			once();
		it = ns(&begin, number);
		least = it < least ? it : least;
	}
	printf("%s\t%.0f\n", what, least);
}

static int there[2], back[2];

static void maps_unwatched(void) { munmap(unwatched(PAGE), PAGE); }
static void maps_watched(void) { munmap(watched(PAGE), PAGE); }
static void maps_emptied(void) { madvise(page, PAGE, MADV_DONTNEED); }
static void protects(void) { mprotect(page, PAGE, PROT_READ), mprotect(page, PAGE, PROT_READ | PROT_WRITE); }
static void switches(void)
{
	char byte = 0;

	must(write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1);
}

static void cost(int number)
{
	pid_t other;
	char byte = 0;

	must(!pipe(there) && !pipe(back));
	pinned(SCHED_OTHER, 0);
	if (!(other = fork()))
		while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
			;
	page = unwatched(PAGE);
	*page = 1;
	cost_of("a page mapped and unmapped", maps_unwatched, number);
	cost_of("madvise(MADV_DONTNEED)", maps_emptied, number);
	cost_of("mprotect, twice", protects, number);
	cost_of("a watched page mapped and unmapped", maps_watched, number);
	cost_of("two switches between processes", switches, number);
	kill(other, SIGKILL);
}

int main(int argc, char **argv)
{
	const char *part = argc > 1 ? argv[1] : "";
	int number = argc > 2 ? atoi(argv[2]) : 1000;

	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(part, "ask"))
		return !ask();
	if (!strcmp(part, "cost"))
		return cost(number), 0;
	if (!strcmp(part, "crowd"))
		return crowd(number), done_testing();
	if (!strcmp(part, "rude"))
		return rude(), done_testing();
	if (!strcmp(part, "unread"))
		return unread(), done_testing();
	must(ask());
	if (!strcmp(part, "outlive"))
		return outlive(), 0;
	if (!strcmp(part, "load"))
		return load(number), done_testing();
	must(!strcmp(part, "changes"));
	ok(place == (uint32_t)getpid() % LINES, "the line is that of the process");
	changes();
	writes();
	return done_testing();
}
