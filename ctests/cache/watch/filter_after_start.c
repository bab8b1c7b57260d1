/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that has registered memory filters its system calls, and the filter kills it at a call
 * that it does not use itself. The cache makes such calls: those of userfaultfd, mincore, kcmp,
 * opening files. So the cache ends before the filter is set: no region is reused, registrations
 * work, and idle regions are deregistered.
 *
 * The device is the stand-in, whose pins are real (stub_device.h). Each part runs in a child.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { ROUNDS = 50, RIGHT = 0, WRONG = 1, UNTESTED = 77 };

static void *nothing(void *argument)
{
	return argument;
}

static bool lands_at(const struct ibv_mr *mr, volatile char *memory, char value)
{
	*memory = (char)~value;
	must(stub_write(mr, (unsigned char)value) == 0);
	return *memory == value;
}

static bool is_right(char *memory, char value)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	bool right;

	must(mr);
	right = lands_at(mr, memory, value);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return right;
}

#define CALL BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define KILL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define UNLESS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), KILL

static struct sock_filter filter[] = {
	CALL,
	UNLESS(SYS_userfaultfd),
	UNLESS(SYS_mincore),
	UNLESS(SYS_kcmp),
	UNLESS(SYS_openat),
	UNLESS(SYS_clone),
	UNLESS(SYS_fcntl),
	UNLESS(SYS_getpriority),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 4),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
	BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff00),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00, 0, 1), /* of userfaultfd */
	KILL,
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

static bool by_prctl(void)
{
	return syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* With TSYNC: the filter applies to the library's threads too. */
static bool as_libseccomp(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

static bool (*set_filter)(void);
static bool one_thread;

static int filtered(void)
{
	char *used = pages(1), *left = pages(1), *big = pages(600);
	struct ibv_mr *mr;
	long before, there;
	int fd = -1;

	for (int round = 0; round < 3; round++)
		if (!is_right(left, (char)round) || !is_right(big, (char)round))
			return WRONG;
	mr = ibv_reg_mr_relaxed(stub_pd(), used, PAGE, LOCAL_AND_REMOTE);
	must(mr);
	if (userfaultfds(&fd) != 1)
		return UNTESTED;
	if (!one_thread)
		in_thread(nothing, NULL);
	if (!is_right(left, 5))
		return WRONG;
	must(set_filter());
	there = stub_registered() - stub_deregistered();
	/* The library's threads have looked around once more, if they ever do. */
	usleep(1500000);
	if (!lands_at(mr, used, 6))
		return WRONG;
	must(ibv_dereg_mr_relaxed(mr) == 0);
	before = stub_registered();
	for (int round = 0; round < ROUNDS; round++) {
		if (!is_right(left, (char)round) || !is_right(used, (char)round))
			return WRONG;
		must(munmap(left, PAGE) == 0);
		must(mmap(left, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == left);
		must(madvise(used, PAGE, MADV_DONTNEED) == 0);
		must(syscall(SYS_madvise, used, PAGE, MADV_DONTNEED) == 0);
	}
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	/* Idle regions had ended when the filter was set, and no region is reused from then on. */
	return there == 1 && stub_registered() == before + 2 * ROUNDS && stub_registered() == stub_deregistered() ? RIGHT : WRONG;
}

/*
 * The cache does not start any more. The library has started: with its first region it opens the
 * page that shows its counters.
 */
static int filtered_first(void)
{
	char *memory = pages(1);
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

	must(mr && ibv_dereg_mr(mr) == 0);
	must(set_filter());
	for (int round = 0; round < ROUNDS; round++)
		if (!is_right(memory, (char)round))
			return WRONG;
	return stub_registered() == ROUNDS + 1 && stub_deregistered() == ROUNDS + 1 ? RIGHT : WRONG;
}

/* Other calls of prctl leave the cache alone. */
static int named(void)
{
	char *memory = pages(1), name[16];
	long before;

	for (int round = 0; round < 2; round++)
		if (!is_right(memory, 1))
			return WRONG;
	if (userfaultfds(NULL) != 1)
		return UNTESTED;
	must(prctl(PR_SET_NAME, "a name") == 0 && prctl(PR_GET_NAME, name) == 0 && strcmp(name, "a name") == 0);
	before = stub_registered();
	return is_right(memory, 2) && stub_registered() == before ? RIGHT : WRONG;
}

static void part(int (*part)(void), const char *name)
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
	if (WIFEXITED(status) && WEXITSTATUS(status) == UNTESTED)
		skip(name, "userfaultfd or io_uring is refused here");
	else
		is(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), RIGHT, "%s", name);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	set_filter = by_prctl;
	part(filtered, "a filter by prctl, with threads: the program goes on, and its data is right");
	part(filtered_first, "a filter by prctl before the first relaxed registration: the cache does not start");
	one_thread = true;
	part(filtered, "a filter by prctl, with one thread");
	one_thread = false;
	set_filter = as_libseccomp;
	part(filtered, "a filter of all threads, set as libseccomp does");
	part(filtered_first, "the same before the first relaxed registration");
	part(named, "other calls of prctl have their usual effect, and regions are reused");
	return done_testing();
}
