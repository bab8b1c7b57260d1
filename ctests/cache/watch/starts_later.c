/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A resource for the cache's watch is short, or refused: the library says once which call failed
 * and with which errno. It tries again if a resource was short, and regions are then reused.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "../../lib/stub_rows.h"

static const char DEVICE[] = "/dev/userfaultfd";
static bool no_threads;
static char *page;

/* The program's function is found before the C library's, so the library calls it as well. */
int __clone(int (*run)(void *), void *stack, int flags, void *argument, void *parent, void *tls, void *child)
{
	int (*next)(int (*)(void *), void *, int, void *, void *, void *, void *) = dlsym(RTLD_NEXT, "__clone");

	return no_threads ? (errno = EAGAIN, -1) : next(run, stack, flags, argument, parent, tls, child);
}

static void says_once(const char *words) { is(times_said(words), 1, "the library says once: %s", words); }
static void none_reused(void *at) { is(hits(at, 4), 0, "no region is reused"); }

/* row->value: what is short. */
enum { DESCRIPTORS, THREADS };

static void runs_out(void)
{
	struct rlimit limit, none;
	int lowest = dup(0);

	must(lowest >= 0 && close(lowest) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	none = limit;
	none.rlim_cur = (rlim_t)lowest;
	no_threads = row->value == THREADS;
	must(no_threads || setrlimit(RLIMIT_NOFILE, &none) == 0);
	none_reused(page);
	says_once("are not reused for now");
	says_once(no_threads ? "gives the library no thread" : "userfaultfd(2) failed");
	says_once(no_threads ? "Resource temporarily unavailable" : "Too many open files");
	is(times_said("refused"), 0, "it does not call that a refusal");
	no_threads = false;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	ok(comes(hits(page, 1)), "later regions are reused");
	ok(comes(times_said("regions are reused from now on") == 1), "the library says so");
}

/* The device with this mode, in a namespace of this process, for a user who is not root. */
static void device_with_mode(mode_t mode)
{
	struct stat about;

	if (stat(DEVICE, &about) || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/mnt", "tmpfs", 0, NULL) || mknod("/mnt/device", S_IFCHR | mode, about.st_rdev) ||
	    chmod("/mnt/device", mode) || mount("/mnt/device", DEVICE, NULL, MS_BIND, NULL) || setgroups(0, NULL) ||
	    setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		skip_all("a device of another mode cannot be made here");
}

/* As a container's profile does that does not list the call. */
static void refuse_userfaultfd(void) { must(refuse_calls(SYS_userfaultfd, 0, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY, EPERM)); }

static void map_over(void *at)
{
	must(syscall(SYS_mmap, at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (long)at);
}

/* As with the system call: the cache sees every change, raw system calls included. */
static void device_serves(void)
{
	if (row->value)
		device_with_mode((mode_t)row->value);
	else if (access(DEVICE, R_OK))
		skip_all("there is no such device (before Linux 6.1), or not for this user");
	refuse_userfaultfd();
	is(hits(page, 2), 1, "regions are reused");
	become_threaded();
	for (int n = 0; n < 100; n++) {
		once(page);
		map_over(page);
		once(page);
	}
	ok(comes(hits(page, 1)), "after 100 changes by raw system calls, none of which it has missed");
	is(times_said("are not reused"), 0, "the library complains of nothing");
}

static void device_is_roots(void)
{
	device_with_mode(0600);
	refuse_userfaultfd();
	none_reused(page);
	says_once("is refused (Operation not permitted)");
	says_once("vm.unprivileged_userfaultfd=1");
	says_once("seccomp profile");
	says_once(DEVICE);
	is(times_said("reuses regions"), 0, "the library promises nothing that it cannot do");
}

/* As before Linux 5.7. The library calls the stand-in's ioctl, which makes its calls by number. */
static void lacks_write_protection(long number, const long argument[6])
{
	static struct uffdio_api scratch;
	long *changed = (long *)(uintptr_t)argument;
	struct uffdio_api *api = (void *)argument[2];

	if (number != SYS_ioctl || argument[1] != (long)UFFDIO_API || stub_syscall(SYS_ioctl, argument[0], UFFDIO_API, api))
		return;
	api->features &= ~(uint64_t)UFFD_FEATURE_PAGEFAULT_FLAG_WP;
	/* The library's own call has a file of its own. */
	scratch.api = UFFD_API;
	changed[0] = stub_syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	changed[2] = (long)&scratch;
}

static void no_write_protection(void)
{
	stub_before = lacks_write_protection;
	none_reused(page);
	row_rights = IBV_ACCESS_LOCAL_WRITE;
	none_reused(page);
	says_once("write protection");
	is(times_said("reuses regions"), 0, "the library promises nothing that it cannot do");
}

static void fence_is_refused(void)
{
	become_threaded();
	leave_idle(page);
	must(refuse_calls(SYS_ioctl, 1, (uint32_t)UFFDIO_WRITEPROTECT, EACCES));
	none_reused(page);
	says_once("whether memory is changing (Permission denied");
	is(times_said("closed"), 0, "it does not say that the program has closed a descriptor");
}

static void file_cannot_be_named(void)
{
	/* The number that the library gives its file, if it is free. */
	must(refuse_calls(SYS_fstat, 0, 60, EACCES));
	none_reused(page);
	says_once("cannot be looked at (Permission denied");
}

static void *unmaps(void *at)
{
	/* It waits for a reader, until the process ends. */
	syscall(SYS_munmap, at, PAGE);
	return NULL;
}

/* The reader's read(2), of up to 32 events, fails from now on. */
static void monitor_cannot_read(void)
{
	char *other = idle();

	leave_idle(page);
	must(filter_calls(SYS_read, 2, 32 * sizeof(struct uffd_msg), SECCOMP_RET_ERRNO | EIO, SECCOMP_FILTER_FLAG_TSYNC) == 0);
	must_start(unmaps, page);
	ok(comes(!hits(other, 1) && times_said("does not let the library read events")), "the cache ends");
	none_reused(other);
	says_once("does not let the library read events");
	row_ends();
}

static void begins(void)
{
	page = pages(1);
	hear_errors();
	on_stub();
}

static const struct row rows[] = {
	{ "descriptors run out", runs_out, DESCRIPTORS },
	{ "threads run out", runs_out, THREADS },
	{ "userfaultfd(2) is refused, and the device is there", device_serves },
	{ "userfaultfd(2) is refused, and the device is there for a user", device_serves, 0444 },
	{ "userfaultfd(2) is refused, and the device as well", device_is_roots, .flags = BOTH_CALLS, .settings = "RDMAMR_LOG=info" },
	{ "userfaultfd has no write protection", no_write_protection, .flags = BOTH_CALLS, .settings = "RDMAMR_LOG=info" },
	{ "the kernel does not let the library ask", fence_is_refused },
	{ "the kernel does not let the library name its file", file_cannot_be_named },
	{ "the kernel does not let the reader read", monitor_cannot_read },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, begins)
