/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Operations that the kernel forbids, or restricts, in a process with threads, and that the
 * library's threads must not prevent in a program with one thread: entering a mount namespace,
 * unmounting the directory that it was in, and ending by the C library. docs/limits.md has the
 * rest: a user namespace is made before the first relaxed registration, or in a child; a thread
 * that leaves its table of descriptors leaves the table to the cleaner; a raw exit(2) ends a
 * thread.
 *
 * The device is the stand-in (stub_device.h). Each part runs in a child.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { RIGHT = 0, WRONG = 1, REFUSED = 77 };

static bool is_used_again(void)
{
	char *memory = pages(1);
	long before;

	for (int round = 0; round < 2; round++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

		before = stub_registered();
		must(mr && stub_lands(mr) && ibv_dereg_mr_relaxed(mr) == 0);
	}
	must(ibv_dereg_mr_relaxed(ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE)) == 0);
	return stub_registered() == before;
}

static void begin(void)
{
	if (!is_used_again())
		_exit(REFUSED);
}

static int enters(int flag, const char *name)
{
	int fd = open(name, O_RDONLY | O_CLOEXEC);

	must(fd >= 0);
	return setns(fd, flag);
}

static int mount_namespace(void)
{
	if (enters(CLONE_NEWNS, "/proc/thread-self/ns/mnt"))
		return REFUSED;
	begin();
	return enters(CLONE_NEWNS, "/proc/thread-self/ns/mnt") == 0 && is_used_again() ? RIGHT : WRONG;
}

static int working_directory(void)
{
	char directory[] = "/tmp/namespaces.XXXXXX";
	bool gone = false;
	int result;

	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || !mkdtemp(directory))
		return REFUSED;
	if (mount("none", directory, "tmpfs", 0, NULL) || chdir(directory)) {
		rmdir(directory);
		return REFUSED;
	}
	begin();
	must(chdir("/") == 0);
	/* The library's threads leave it when they start. */
	result = comes(gone = gone || umount(directory) == 0) ? RIGHT : WRONG;
	if (result == WRONG)
		umount2(directory, MNT_DETACH);
	rmdir(directory);
	return result;
}

static int user_namespace_before(void)
{
	if (unshare(CLONE_NEWUSER))
		return REFUSED;
	begin();
	return RIGHT;
}

static int user_namespace_in_a_child(void)
{
	int status;
	pid_t pid;

	begin();
	pid = fork();
	must(pid >= 0);
	if (!pid)
		_exit(unshare(CLONE_NEWUSER) ? errno : 0);
	must(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status) == EPERM ? REFUSED : WEXITSTATUS(status) ? WRONG : RIGHT;
}

static int user_namespace(void)
{
	begin();
	if (unshare(CLONE_NEWUSER) == 0)
		return WRONG;
	return errno == EPERM ? REFUSED : errno == EINVAL && is_used_again() ? RIGHT : WRONG;
}

static int descriptors(void)
{
	int ends[2];
	char byte;

	must(pipe2(ends, O_NONBLOCK) == 0);
	begin();
	if (unshare(CLONE_FILES))
		return REFUSED;
	must(close(ends[1]) == 0);
	if (read(ends[0], &byte, 1) != -1 || errno != EAGAIN)
		return WRONG;
	/*
	 * Its table is not the cleaner's any more, so the cache no longer serves it. is_used_again()
	 * checks its data.
	 */
	return is_used_again() ? WRONG : RIGHT;
}

static int last_thread_ends(void)
{
	begin();
	pthread_exit(NULL);
}

static void *leaves_first(void *argument)
{
	(void)argument;
	usleep(50000);
	return NULL;
}

static int first_thread_ends(void)
{
	pthread_t thread;

	begin();
	must(pthread_create(&thread, NULL, leaves_first, NULL) == 0);
	pthread_exit(NULL);
}

static int raw_exit(void)
{
	int status, tries = 0;
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		begin();
		syscall(SYS_exit, 0);
	}
	while (tries++ < 50 && waitpid(pid, &status, WNOHANG) == 0)
		usleep(10000);
	if (tries <= 50)
		return WIFEXITED(status) && WEXITSTATUS(status) == REFUSED ? REFUSED : WRONG;
	must(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
	return RIGHT;
}

static const struct part {
	int (*part)(void);
	const char *name;
} parts[] = {
	{ mount_namespace, "a mount namespace is entered after a registration" },
	{ working_directory, "the directory of the first registration is unmounted" },
	{ user_namespace_before, "a user namespace is made before the first registration" },
	{ user_namespace_in_a_child, "one is made in a child" },
	{ user_namespace, "after a registration it is refused, and regions are reused" },
	{ descriptors, "the only thread leaves its descriptors: files stay open, and it registers without reuse" },
	{ last_thread_ends, "the only thread ends by pthread_exit: the process ends" },
	{ first_thread_ends, "the last thread but the library's returns: the process ends" },
	{ raw_exit, "the only thread ends by a raw exit: the process stays" },
};

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++) {
		int status;
		pid_t pid = fork();

		must(pid >= 0);
		if (!pid) {
			alarm(DEADLOCK);
			if (stub_open(STUB_PIN))
				_exit(REFUSED);
			_exit(parts[n].part());
		}
		must(waitpid(pid, &status, 0) == pid);
		if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED)
			skip(parts[n].name, "namespaces, userfaultfd or io_uring are refused here");
		else
			is(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), RIGHT, "%s", parts[n].name);
	}
	return done_testing();
}
