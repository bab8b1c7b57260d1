/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that has registered memory filters its system calls, and the filter kills it at a call that it
 * does not use itself, but the cache does. So the cache ends before the filter is set: registrations work, and
 * idle regions are deregistered. At load, a child asks a filter that the program inherits.
 */
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/stub_rows.h"

enum { ROUNDS = 50, COUNT = 4, MOMENT = 100000 };

#define CALL BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define KILL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define UNLESS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), KILL
#define ALLOWED(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), ALLOW
#define PROGRAM(filter) (struct sock_fprog){ sizeof(filter) / sizeof(*(filter)), filter }

/* The calls of the library. */
static struct sock_filter of_library[] = {
	CALL,
	UNLESS(SYS_userfaultfd),
	UNLESS(SYS_mincore),
	UNLESS(SYS_kcmp),
	UNLESS(SYS_openat),
	UNLESS(SYS_clone),
	UNLESS(SYS_fcntl),
	UNLESS(SYS_sigaltstack),
	UNLESS(SYS_rt_sigprocmask),
	UNLESS(SYS_getpid),
	UNLESS(SYS_gettid),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 4),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
	BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff00),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00, 0, 1), /* of userfaultfd */
	KILL,
	ALLOW,
};
/* All but those by which a child filters once more, execs and ends. */
static struct sock_filter of_child[] = { CALL, ALLOWED(SYS_execve), ALLOWED(SYS_exit_group), KILL };

static int gives_up_privileges(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }

enum { BY_PRCTL, AS_LIBSECCOMP, ONE_THREAD };

static void set_filter(void)
{
	struct sock_fprog program = PROGRAM(of_library);

	if (row->value == AS_LIBSECCOMP)
		must(gives_up_privileges() == 0 &&
		     syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
	else
		must(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
		     prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void filtered(void)
{
	char *used = pages(1), *left = idle(), *big = pages(600);
	struct ibv_mr *mr;
	long before;

	dereg(reg(big, 600 * PAGE));
	mr = reg(used, PAGE);
	if (row->value != ONE_THREAD)
		become_threaded();
	once(left);
	set_filter();
	is(in_device(), 1, "idle regions have ended");
	/* The library's threads have looked around once more, if they ever do. */
	usleep(1500000);
	ok(stub_lands(mr), "data lands by the region in use");
	dereg(mr);
	before = stub_registered();
	for (int round = 0; round < ROUNDS; round++) {
		once(left);
		once(used);
		must(munmap(left, PAGE) == 0);
		fresh_at(left, PAGE);
		must(madvise(used, PAGE, MADV_DONTNEED) == 0);
		must(syscall(SYS_madvise, used, PAGE, MADV_DONTNEED) == 0);
	}
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(stub_registered() - before, 2 * ROUNDS, "no region is reused");
	is(stub_deregistered(), stub_registered(), "each has ended");
	must(gives_up_privileges() == 0 && close(stub_pd()->context->cmd_fd) == 0);
	row_ends();
}

static void filtered_in_use(void)
{
	struct ibv_mr *mr = reg(pages(1), PAGE);

	set_filter();
	dereg(mr);
	is(in_device(), 0, "the region has ended with its use");
	row_ends();
}

static void filtered_child(void)
{
	char *memory = idle();
	pid_t child = must_fork();

	if (!child) {
		once(memory);
		set_filter();
		once(memory);
		must(ibv_dereg_mr_relaxed(ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE)) == 0);
		_exit(0);
	}
	is(child_status(child), 0, "the child registers memory");
}

/* The library has started: with its first region it opens the page that shows its counters. */
static void filtered_first(void)
{
	char *memory = pages(1);

	must(ibv_dereg_mr(ibv_reg_mr(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE)) == 0);
	set_filter();
	is(hits(memory, ROUNDS), 0, "no region is reused");
	is(stub_deregistered(), ROUNDS + 1, "each has ended");
	row_ends();
}

/* Runs in a child of vfork, on its parent's memory and stack. */
static int filters_child(void)
{
	struct sock_fprog program = PROGRAM(of_child);

	return gives_up_privileges() || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void in_vfork(void)
{
	int (*does)(void) = (int (*)(void))(uintptr_t)row->of;

	is(in_vforked(does() != 0), 0, "the child ends");
	is(stub_deregistered(), 0, "no region has ended");
	is(userfaultfds(NULL), 1, "the parent has its watch");
}

static void child_alone(void)
{
	in_vfork();
	served(pages(1), FRESH, "other memory");
}

static void both_give_up(void)
{
	in_vfork();
	is(gives_up_privileges(), 0, "the process gives up privileges");
	is(stub_deregistered(), 1, "the idle region has ended");
}

/* The stand-in holds the start at userfaultfd(2), or where it asks for RLIMIT_MEMLOCK: then the reader runs. */

static char *memory;
static _Atomic bool begun, held, go_on;

static void hold(long number, const long argument[6])
{
	begun |= number == SYS_userfaultfd;
	if (number != row->value || !begun || held || (number == SYS_prlimit64 && argument[1] != RLIMIT_MEMLOCK))
		return;
	held = true;
	while (!go_on)
		usleep(1000);
}

static void *use(void *at)
{
	for (int page = 0; page < COUNT; page++)
		hits((char *)at + page * PAGE, 2);
	return at;
}

static void *let_go_on(void *unused)
{
	usleep(MOMENT);
	go_on = true;
	return unused;
}

/* Late: the start goes on only after prctl has returned, which waits for a second at most. */
static void beside_start(void)
{
	bool late = row->of != NULL;
	pthread_t starts, releases, other;

	memory = pages(COUNT);
	stub_before = hold;
	must(pthread_create(&starts, NULL, use, memory) == 0 && comes(held));
	/* Both write to their pages, to see whether data lands. */
	other = must_start(use, pages(COUNT));
	usleep(MOMENT);
	if (!late)
		releases = must_start(let_go_on, NULL);
	must(gives_up_privileges() == 0);
	if (!late) {
		is(userfaultfds(NULL), 0, "prctl has ended the watch");
		must_join(releases);
	}
	go_on = true;
	must(pthread_join(starts, NULL) == 0 && pthread_join(other, NULL) == 0);
	is(userfaultfds(NULL), 0, "there is no watch");
	is(stub_registered(), stub_deregistered(), "no region is left");
	/* The reader of userfaultfd would make this call for each event. */
	must(filter_each_in(&(const int){ SYS_pselect6 }, 1, SECCOMP_RET_KILL_PROCESS,
			    SECCOMP_FILTER_FLAG_TSYNC));
	must(mprotect(memory, PAGE, PROT_NONE) == 0);
	ok(!ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT, "memory without access: EFAULT");
	must(munmap(memory, COUNT * PAGE) == 0);
	usleep(MOMENT);
	row_ends();
}

/* The program starts anew under a filter that kills a thread alone at a call with that argument. */

struct killed { long number; int argument; uint32_t value; };

static void inherited(void)
{
	const struct killed *at = row->of;
	int status;
	pid_t child;

	if (getenv("CHECK_INHERITED"))
		_exit(hits(pages(1), ROUNDS) != 0 || stats().bypassed_watch != ROUNDS);
	must(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
	child = must_fork();
	if (!child) {
		must(setenv("CHECK_INHERITED", "1", 1) == 0);
		must(filter_calls(at->number, at->argument, at->value, SECCOMP_RET_KILL_THREAD, 0) == 0);
		row_again();
	}
	is(child_status(child), 0, "the program runs, no region is reused, and the counters say why");
	ok(waitpid(-1, &status, __WALL) == -1 && errno == ECHILD, "it has left no child");
}

static const struct row rows[] = {
	{ "a filter by prctl, with threads", filtered, BY_PRCTL },
	{ "a filter by prctl, with one thread", filtered, ONE_THREAD },
	{ "a filter of all threads, set as libseccomp does", filtered, AS_LIBSECCOMP },
	{ "a filter by prctl before the first relaxed registration", filtered_first, BY_PRCTL },
	{ "a filter as libseccomp's before the first relaxed registration", filtered_first, AS_LIBSECCOMP },
	{ "a filter while a region is in use, and none is idle", filtered_in_use, ONE_THREAD },
	{ "a filter in a child", filtered_child, ONE_THREAD },
	{ "a vfork child gives up privileges", child_alone, .of = gives_up_privileges, .then = HIT },
	{ "a vfork child filters its calls", child_alone, .of = filters_child, .then = HIT },
	{ "a vfork child gives up privileges, and then the process", both_give_up, .of = gives_up_privileges, .then = PLAIN },
	{ "prctl waits for the start of the cache, and ends it", beside_start, SYS_userfaultfd },
	{ "the same with a reader", beside_start, SYS_prlimit64 },
	{ "the start of the cache goes on after prctl has returned, and ends the cache", beside_start, SYS_userfaultfd, "late" },
	{ "the same start with a reader", beside_start, SYS_prlimit64, "late" },
	{ "an inherited filter kills the reader when it waits", inherited, .of = &(struct killed){ SYS_pselect6, 2, 0 }, .settings = "RDMAMR_CACHE=all" },
	{ "when it leaves the table of descriptors", inherited, .of = &(struct killed){ SYS_close_range, 2, CLOSE_RANGE_UNSHARE }, .settings = "RDMAMR_CACHE=all" },
	{ "the thread that has started the reader", inherited, .of = &(struct killed){ SYS_ioctl, 1, UFFDIO_REGISTER }, .settings = "RDMAMR_CACHE=all" },
	{ "the first thread at the clock", inherited, .of = &(struct killed){ SYS_clock_gettime, 0, CLOCK_MONOTONIC }, .settings = "RDMAMR_CACHE=all" },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
