/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A resource for the cache's watch is short, or refused: the library says once which call failed
 * and with which errno. It tries again if a resource was short, and regions are then reused. If a
 * filter refuses userfaultfd(2), as those of containers do, the device /dev/userfaultfd of Linux
 * 6.1 replaces it.
 *
 * The device is the stand-in (stub_device.h). Each part runs in a child.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <grp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { UNWATCHED = 77 };

static const char DEVICE[] = "/dev/userfaultfd";
static int said;
static bool no_threads;

static void *nothing(void *argument);

/* The program's function is found before the C library's, so the library calls it as well. */
int __clone(int (*run)(void *), void *stack, int flags, void *argument, ...)
{
	int (*next)(int (*)(void *), void *, int, void *, ...) = dlsym(RTLD_NEXT, "__clone");
	void *parent, *tls, *child;
	va_list args;

	va_start(args, argument);
	parent = va_arg(args, void *);
	tls = va_arg(args, void *);
	child = va_arg(args, void *);
	va_end(args);
	if (no_threads) {
		errno = EAGAIN;
		return -1;
	}
	return next(run, stack, flags, argument, parent, tls, child);
}

static void register_once(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr && stub_lands(mr));
	must(ibv_dereg_mr_relaxed(mr) == 0);
}

static bool is_used_again(char *memory)
{
	long before;

	register_once(memory);
	before = stub_registered();
	register_once(memory);
	return stub_registered() == before;
}

/* The number of times that the library has printed this. */
static int times(const char *words)
{
	static char text[8192];
	int count = 0;

	must(pread(said, text, sizeof(text) - 1, 0) >= 0);
	for (const char *at = text; (at = strstr(at, words)); at++)
		count++;
	return count;
}

static void comes_later(char *memory, const char *call, const char *errno_words)
{
	ok(!is_used_again(memory) && !is_used_again(memory), "no region is reused");
	is(times("are not reused for now"), 1, "the library says so once");
	ok(times(call) && times(errno_words), "and which call failed, and how: %s, %s", call, errno_words);
	ok(!times("refused"), "and does not call that a refusal");
}

static void has_come(char *memory)
{
	ok(comes(is_used_again(memory)), "later regions are reused");
	ok(comes(times("regions are reused from now on") == 1), "the library says so");
}

static void descriptors_run_out(void)
{
	char *memory = pages(1);
	struct rlimit limit, none;
	int lowest = dup(0);

	must(lowest >= 0 && close(lowest) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	none = limit;
	none.rlim_cur = (rlim_t)lowest;
	must(setrlimit(RLIMIT_NOFILE, &none) == 0);
	comes_later(memory, "userfaultfd(2) failed", "Too many open files");
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	has_come(memory);
}

static void threads_run_out(void)
{
	char *memory = pages(1);

	no_threads = true;
	comes_later(memory, "gives the library no thread", "Resource temporarily unavailable");
	no_threads = false;
	has_come(memory);
}

/*
 * The device, for a user who is not root, in a namespace of this process. Returns false if that is
 * refused.
 */
static bool device_with_mode(mode_t mode)
{
	struct stat about;

	if (stat(DEVICE, &about) || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/mnt", "tmpfs", 0, NULL) || mknod("/mnt/device", S_IFCHR | mode, about.st_rdev) ||
	    chmod("/mnt/device", mode) || mount("/mnt/device", DEVICE, NULL, MS_BIND, NULL))
		return false;
	return setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0;
}

/* As a container's profile does that does not list the call. */
static void refuse_userfaultfd(void)
{
	must(refuse_calls(SYS_userfaultfd, 0, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY, EPERM));
}

/* As with the system call: the cache sees every change, raw system calls included. */
static void serves(char *memory)
{
	ok(is_used_again(memory), "regions are reused");
	in_thread(nothing, NULL);
	for (int n = 0; n < 100; n++) {
		register_once(memory);
		must(syscall(SYS_mmap, memory, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
		     (long)memory);
		/* Its data lands in the current page. */
		register_once(memory);
	}
	ok(comes(is_used_again(memory)), "after 100 changes by raw system calls, none of which it has missed");
	is(times("are not reused"), 0, "the library complains of nothing");
}

static void device_serves(void)
{
	char *memory = pages(1);

	if (access(DEVICE, R_OK)) {
		skip("by the device", "there is none (before Linux 6.1), or not for this user");
		return;
	}
	refuse_userfaultfd();
	serves(memory);
}

static void device_serves_a_user(void)
{
	char *memory = pages(1);

	if (!device_with_mode(0444)) {
		skip("by the device, for a user", "a device of another mode cannot be made here");
		return;
	}
	refuse_userfaultfd();
	serves(memory);
}

static void device_is_roots(void)
{
	static const char *const names[] = { "vm.unprivileged_userfaultfd=1", "seccomp profile", "/dev/userfaultfd" };
	char *memory = pages(1);

	if (!device_with_mode(0600)) {
		skip("the device is root's", "a device of another mode cannot be made here");
		return;
	}
	refuse_userfaultfd();
	ok(!is_used_again(memory) && !is_used_again(memory), "no region is reused");
	is(times("is refused (Operation not permitted)"), 1, "the library says once that the call is refused");
	for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
		is(times(names[n]), 1, "and names %s", names[n]);
}

static void *nothing(void *argument)
{
	return argument;
}

static void fence_is_refused(void)
{
	char *memory = pages(1), *other = pages(1);

	in_thread(nothing, NULL);
	must(is_used_again(memory) && is_used_again(other));
	must(refuse_calls(SYS_ioctl, 1, (uint32_t)UFFDIO_WRITEPROTECT, EACCES));
	/* Where the service of "rdmamr fence" runs, a hit asks the kernel only after such a change. */
	must(syscall(SYS_mmap, other, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	     (long)other);
	ok(!is_used_again(memory) && !is_used_again(memory), "no region is reused");
	is(times("whether memory is changing (Permission denied"), 1, "the library reports the kernel's answer once");
	ok(!times("closed"), "and does not say that the program has closed a descriptor");
}

static void file_cannot_be_named(void)
{
	char *memory = pages(1);

	/* The number that the library gives its file, if it is free. */
	must(refuse_calls(SYS_fstat, 0, 60, EACCES));
	ok(!is_used_again(memory) && !is_used_again(memory), "no region is reused");
	is(times("cannot be looked at (Permission denied"), 1, "the library says once why");
}

/* The reader's read(2), of up to 32 events, fails from now on. */
static void refuse_to_read(void)
{
	const uint32_t length = 32 * sizeof(struct uffd_msg);

	must(filter_calls(SYS_read, 2, length, SECCOMP_RET_ERRNO | EIO, SECCOMP_FILTER_FLAG_TSYNC) == 0);
}

static void *unmaps(void *memory)
{
	/* It waits for a reader, until the process ends. */
	syscall(SYS_munmap, memory, PAGE);
	return NULL;
}

static void monitor_cannot_read(void)
{
	char *memory = pages(1), *other = pages(1);
	pthread_t thread;

	must(is_used_again(memory) && is_used_again(other));
	refuse_to_read();
	must(pthread_create(&thread, NULL, unmaps, memory) == 0);
	ok(comes(!is_used_again(other) && times("does not let the library read events")),
	   "the library says that it cannot read events");
	ok(!is_used_again(other) && !is_used_again(other), "no region is reused");
	is(times("does not let the library read events"), 1, "it has reported that once");
}

static void part(const char *name, void (*function)(void))
{
	int status, err = dup(STDERR_FILENO), counts[2];
	pid_t pid;

	must(err >= 0 && pipe(counts) == 0 && ftruncate(said, 0) == 0 && lseek(said, 0, SEEK_SET) == 0);
	must(dup2(said, STDERR_FILENO) >= 0);
	printf("# %s\n", name);
	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		alarm(DEADLOCK);
		if (stub_open(STUB_PIN))
			_exit(UNWATCHED);
		function();
		fflush(stdout);
		must(write(counts[1], &tap_count, sizeof(tap_count)) == sizeof(tap_count));
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid && dup2(err, STDERR_FILENO) >= 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == UNWATCHED) {
		skip(name, "io_uring is refused here");
	} else {
		must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		must(read(counts[0], &tap_count, sizeof(tap_count)) == sizeof(tap_count));
	}
	close(counts[0]);
	close(counts[1]);
	close(err);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	said = memfd_create("said", MFD_CLOEXEC);
	must(said >= 0);
	part("descriptors run out", descriptors_run_out);
	part("threads run out", threads_run_out);
	part("the call is refused, and the device is there", device_serves);
	part("the same for a user", device_serves_a_user);
	part("the call is refused, and the device as well", device_is_roots);
	part("the kernel does not let the library ask", fence_is_refused);
	part("the kernel does not let the library name its file", file_cannot_be_named);
	part("the kernel does not let the reader read", monitor_cannot_read);
	return done_testing();
}
