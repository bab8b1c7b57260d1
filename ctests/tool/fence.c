/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process that asks "rdmamr fence" for the counters, without the library; fence.sh runs it, and
 * clients.py has the clients that do the service harm.
 *
 *   ask               succeeds if the service answers
 *   changes           which changes are counted, and that a process cannot write the counters
 *   outlive           asks, and checks its counters after each line of standard input
 *   crowd N           N processes ask, and keep what they got at the same time
 *   load N            N unmaps that others interrupt: each is counted, or "open" is not 0
 */
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../lib/memory.h"
#include "../lib/program.h"
#include "../lib/tap.h"

enum { LINES = 32768, SIZE = (1 + LINES) * 64 };

static volatile _Atomic uint64_t *counters, *mine; /* the first line, and this process's */
static int file; /* of the counters */
static int number; /* of the part's argument */

static uint64_t gaps(void) { return atomic_load(&counters[0]); }
static uint64_t open_now(void) { return atomic_load(&counters[1]); }
static uint64_t moves(void) { return atomic_load(&mine[0]); }

/* Fresh memory, watched by a userfaultfd that wants no events. */
static char *watched(size_t length)
{
	static int watch = -1;
	char *at = untouched(length);
	struct uffdio_register range = { .range = { (uintptr_t)at, length }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	if (watch < 0)
		must((watch = open_userfaultfd(0)) >= 0);
	must(!ioctl(watch, UFFDIO_REGISTER, &range));
	return at;
}

/* The line is that of the number outside of this PID namespace, which /proc of there tells. */
static volatile _Atomic uint64_t *find_line(void)
{
	char number[16] = "";

	must(readlink("/proc/self", number, sizeof(number) - 1) > 0);
	return counters + 8 * (1 + atoi(number) % LINES);
}

/* Asks the service. Returns whether it has answered, as agreed. */
static int ask(void)
{
	char answer[9];
	union { struct cmsghdr header; char room[CMSG_SPACE(16 * sizeof(int))]; } control;
	struct iovec part = { answer, sizeof(answer) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct sockaddr_un address = { AF_UNIX, "/run/rdmamr/fence" };
	struct timeval patience = { 10, 0 };
	int it = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(it >= 0 && !setsockopt(it, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) &&
	     !setsockopt(it, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)));
	if (connect(it, (void *)&address, sizeof(address)) || recvmsg(it, &message, MSG_CMSG_CLOEXEC) != 8)
		return close(it), 0;
	close(it);
	if (!message.msg_controllen || control.header.cmsg_len < CMSG_LEN(4 * sizeof(int)) ||
	    memcmp(answer, "RDMAMRF2", 8))
		return 0;
	memcpy(&file, CMSG_DATA(&control.header), sizeof(file));
	counters = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file, 0);
	mine = find_line();
	return (void *)counters != MAP_FAILED;
}

static char *page;

static bool unmaps(void) { return !munmap(page, PAGE); }
static bool maps_over(void)
{
	return mmap(page, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
}
static bool moves_away(void)
{
	/* Nothing is unmapped, which would be counted too. */
	return mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) != MAP_FAILED;
}
static bool moves_over(void)
{
	return mremap(untouched(PAGE), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, page) == page;
}

/* A process that shares the memory. */
static bool another_process_unmaps(void) { return !in_vforked(!unmaps()); }

/* Whether neither bpf(BPF_MAP_UPDATE_ELEM) nor a mapping can write the counters of this file. */
static bool cannot_be_written(int of)
{
	static char value[SIZE];
	uint32_t key = 0;
	struct { uint32_t map, pad; uint64_t key, value, flags; } update = { .map = of };

	update.key = (uintptr_t)&key;
	update.value = (uintptr_t)value;
	return mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, of, 0) == MAP_FAILED &&
	       syscall(SYS_bpf, 2, &update, sizeof(update)) == -1 && errno == EPERM;
}

static void writes(void)
{
	struct { uint64_t path; uint32_t file, flags; } pin = { (uintptr_t)"/mnt/fence", file, 0 };
	int again;

	ok(cannot_be_written(file), "a process can neither map the counters to write nor update the array");
	ok(mprotect((void *)counters, SIZE, PROT_READ | PROT_WRITE) && errno == EACCES, "nor make its mapping writable");
	/* A bpffs of its own would open the array with all rights. */
	if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) || syscall(SYS_mount, "bpf", "/mnt", "bpf", 0, NULL)) {
		skip("nor write by a pin of its own", "no bpffs can be mounted");
		return;
	}
	again = syscall(SYS_bpf, 6, &pin, sizeof(pin));
	pin.file = 0;
	again = again ? -1 : (int)syscall(SYS_bpf, 7, &pin, sizeof(pin));
	ok(again < 0 || cannot_be_written(again), "nor write by a pin of its own");
}

static void changes(void)
{
	const struct { const char *name; bool (*change)(void), unmaps; } table[] = {
		{ "munmap", unmaps, true },
		{ "a mapping in its place", maps_over, true },
		{ "mremap away", moves_away, false },
		{ "mremap into its place", moves_over, true },
		{ "munmap by a process that shares the memory", another_process_unmaps, true },
	};

	for (size_t n = 0; n < 2 * sizeof(table) / sizeof(*table); n++) {
		size_t row = n / 2;
		bool is_watched = n % 2;
		uint64_t before;

		/* Unwatched memory lies between the two, so that no mapping of the program is next to it. */
		page = is_watched ? watched(PAGE) : untouched(3 * PAGE) + PAGE;
		must(is_watched || mprotect(page, PAGE, PROT_READ) == 0);
		before = moves();
		case_begin("%s memory, %s", is_watched ? "watched" : "unwatched", table[row].name);
		if (!is_watched && kernel_is_before(6, 7) && table[row].unmaps)
			skip(table[row].name, "this kernel does not tell which memory is unmapped");
		else
			ok(table[row].change() && (moves() > before) == is_watched, is_watched ? "counted" : "not counted");
		case_end();
	}
	writes();
}

static bool counts_an_unmap(void)
{
	uint64_t before;

	page = watched(PAGE);
	before = moves();
	return unmaps() && moves() > before;
}

static void outlive(void)
{
	char line[100];

	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		printf("%s %s", counts_an_unmap() ? "counted" : "lost", line);
		fflush(stdout);
	}
}

static void crowd(void)
{
	pthread_barrier_t *all = shared_barrier(number);
	int answered = 0;

	for (int n = 0; n < number; n++) {
		bool got = false, moved = false;

		if (must_fork())
			continue;
		/*
		 * A thousand at once: the backlog may be full, and a processor that has preempted a task
		 * inside the program skips counts.
		 */
		for (int tries = 0; !moved && tries < 3000; tries++) {
			got = got || ask();
			moved = got && counts_an_unmap();
			if (!moved)
				usleep(20000);
		}
		/* Each keeps its counters until all have theirs. */
		pthread_barrier_wait(all);
		_exit(!moved);
	}
	for (int status; wait(&status) > 0;)
		answered += status == 0;
	is(answered, number, "%d processes at once have counters that move", number);
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
static void load(void)
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
				must(!munmap(at + m * PAGE, PAGE));
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

int main(int argc, char **argv)
{
	const char *part = argc > 1 ? argv[1] : "";

	number = argc > 2 ? atoi(argv[2]) : 1000;
	if (!strcmp(part, "crowd"))
		crowd();
	else if (!ask())
		return 1;
	else if (!strcmp(part, "load"))
		load();
	else if (!strcmp(part, "changes"))
		changes();
	else if (!strcmp(part, "outlive"))
		outlive();
	return tap_count ? done_testing() : 0;
}
