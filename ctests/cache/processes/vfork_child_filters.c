/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A child of vfork gives up privileges, and filters its system calls, before it execs. The child
 * has its parent's memory, and so the parent's cache: it must not end that cache, whose process has
 * no filter.
 *
 * The device is the stand-in (stub_device.h). Each part runs in a child.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { RIGHT = 0, WRONG = 1, CHILD_FAILED = 2, UNTESTED = 77 };

/* Kills at every call but those by which the child filters once more, execs and ends. */
#define ALLOWED(number) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter filter[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	ALLOWED(SYS_execve),
	ALLOWED(SYS_exit_group),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
static struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

/* Runs in the child, on its parent's memory and stack. */
static int gives_up_privileges(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static int filters(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static bool child_ends_well(int (*does)(void))
{
	int status;
	pid_t pid = vfork();

	if (!pid)
		_exit(does() ? 1 : 0);
	must(pid > 0 && waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void register_once(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr && stub_lands(mr));
	must(ibv_dereg_mr_relaxed(mr) == 0);
}

static bool is_used_again(char *memory)
{
	long before = stub_registered();

	register_once(memory);
	return stub_registered() == before;
}

static int (*does)(void);

static int with_cache(void)
{
	char *idle = pages(1), *later = pages(1);

	register_once(idle);
	if (!is_used_again(idle) || userfaultfds(NULL) != 1)
		return UNTESTED;
	if (!child_ends_well(does))
		return CHILD_FAILED;
	if (stub_deregistered() != 0 || userfaultfds(NULL) != 1 || !is_used_again(idle))
		return WRONG;
	register_once(later);
	return is_used_again(later) ? RIGHT : WRONG;
}

/* The process itself still ends its cache. */
static int both(void)
{
	char *memory = pages(1);

	register_once(memory);
	if (!is_used_again(memory))
		return UNTESTED;
	if (!child_ends_well(does) || does())
		return CHILD_FAILED;
	return stub_deregistered() == 1 && !is_used_again(memory) ? RIGHT : WRONG;
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
	does = gives_up_privileges;
	part(with_cache, "a vfork child gives up privileges: its parent reuses regions");
	part(both, "the process does the same afterwards: its cache ends");
	does = filters;
	part(with_cache, "a vfork child filters its calls: its parent reuses regions");
	return done_testing();
}
