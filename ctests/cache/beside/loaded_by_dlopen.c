/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The memory calls of a program that loads the library by dlopen bypass it. userfaultfd reports
 * neither guard pages nor protection: so no region is reused, and the library says once why, and
 * the remedy.
 *
 * Usage: loaded_by_dlopen [deepbind | namespace]
 *
 * deepbind: the library's own references are bound to itself first. namespace: the library is in a
 * namespace of its own, with a C library of its own. There the test looks only at the library's
 * messages.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102 /* Linux 6.13 */
#define MADV_GUARD_REMOVE 103
#endif

static struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int);
static struct ibv_mr *(*plain_reg)(struct ibv_pd *, void *, size_t, int);
static int (*dereg)(struct ibv_mr *), (*plain_dereg)(struct ibv_mr *);
static int (*get_stats)(struct rdmamr_stats *, size_t);

static void load(const char *path, const char *how)
{
	int flags = RTLD_NOW | RTLD_LOCAL;
	void *library;

	if (how && !strcmp(how, "namespace"))
		library = dlmopen(LM_ID_NEWLM, path, flags);
	else
		library = dlopen(path, flags | (how ? RTLD_DEEPBIND : 0));
	if (!library)
		printf("# %s\n", dlerror());
	must(library);
	reg = (struct ibv_mr *(*)(struct ibv_pd *, void *, size_t, int))dlsym(library, "ibv_reg_mr_relaxed");
	dereg = (int (*)(struct ibv_mr *))dlsym(library, "ibv_dereg_mr_relaxed");
	plain_reg = (struct ibv_mr *(*)(struct ibv_pd *, void *, size_t, int))dlsym(library, "ibv_reg_mr");
	plain_dereg = (int (*)(struct ibv_mr *))dlsym(library, "ibv_dereg_mr");
	get_stats = (int (*)(struct rdmamr_stats *, size_t))dlsym(library, "rdmamr_get_stats");
	must(reg && dereg && plain_reg && plain_dereg && get_stats);
}

/*
 * With RDMAMR_CACHE. Here an ibv_dereg_mr of libibverbs would bypass the library, and would end a
 * region of the cache.
 */
static void plain_calls(void *memory)
{
	struct rdmamr_stats before, after;
	uint64_t times = 0;

	must(get_stats(&before, sizeof(before)) == 0);
	/*
	 * The cache looks at a range that is registered again, and then again after some plain
	 * registrations.
	 */
	do {
		struct ibv_mr *mr = plain_reg(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && plain_dereg(mr) == 0);
		must(get_stats(&after, sizeof(after)) == 0);
	} while (++times < 100 && after.bypassed_watch - before.bypassed_watch < 3);
	ok(after.reg_kernel == before.reg_kernel + times && after.misses == before.misses && after.hits == before.hits &&
	   after.bypassed_watch == before.bypassed_watch + 3 &&
	   after.bypassed_watch - before.bypassed_watch + after.bypassed_first - before.bypassed_first == times,
	   "RDMAMR_CACHE serves no plain call, which is counted");
}

static bool is_right(char *page, char value)
{
	struct ibv_mr *mr = reg(stub_pd(), page, PAGE, LOCAL_AND_REMOTE);
	volatile char *memory = page;
	bool right;

	must(mr);
	*memory = (char)~value;
	must(stub_write(mr, (unsigned char)value) == 0);
	right = *memory == value;
	must(dereg(mr) == 0);
	return right;
}

static void leave(int number)
{
	_exit(number == SIGSEGV ? 0 : 1);
}

/*
 * The library's calls do not reach the stand-in here. The kernel then refuses them, and libibverbs
 * fails at a context that it has not made.
 */
static void in_child(void *memory)
{
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		signal(SIGSEGV, leave);
		reg(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
		_exit(0);
	}
	must(waitpid(pid, NULL, 0) == pid);
}

int main(int argc, char **argv)
{
	const char *path = getenv("LOADED"), *how = argc > 1 ? argv[1] : NULL, *why;
	int said = memfd_create("said", MFD_CLOEXEC), err = dup(STDERR_FILENO), count = 0;
	static char text[4096];
	char *memory;
	Dl_info library;
	long before;

	if (!path) {
		must(ibv_reg_mr_relaxed && dladdr((void *)ibv_reg_mr_relaxed, &library));
		must(setenv("LOADED", library.dli_fname, 1) == 0 && unsetenv("LD_PRELOAD") == 0);
		must(setenv("RDMAMR_CACHE_LINGER", FOREVER, 1) == 0 && setenv("RDMAMR_CACHE", "all", 1) == 0);
		execv("/proc/self/exe", argv);
		must(!"execv");
	}
	must(!ibv_reg_mr_relaxed && said >= 0 && err >= 0);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	load(path, how);
	memory = pages(1);
	must(dup2(said, STDERR_FILENO) == STDERR_FILENO);
	if (how) {
		in_child(memory);
		goto says;
	}
	must(is_right(memory, 1) && is_right(memory, 2));
	before = stub_registered();
	ok(is_right(memory, 3) && stub_registered() == before + 1, "no region is reused");
	is(stub_registered() - stub_deregistered(), 0, "none is cached");
	plain_calls(memory);
	if (madvise(memory, PAGE, MADV_GUARD_INSTALL) == 0) {
		errno = 0;
		ok(!reg(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) && errno == EFAULT,
		   "guard pages: the registration reaches the kernel, which refuses it");
		must(madvise(memory, PAGE, MADV_GUARD_REMOVE) == 0);
		ok(is_right(memory, 4), "after their removal, data lands in the current page");
	} else {
		skip("guard pages", "this kernel has none");
	}
	must(mprotect(memory, PAGE, PROT_READ) == 0);
	errno = 0;
	ok(!reg(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) && errno == EFAULT,
	   "memory that has become read-only: EFAULT, as the kernel says");
says:
	must(dup2(err, STDERR_FILENO) == STDERR_FILENO && pread(said, text, sizeof(text) - 1, 0) >= 0);
	for (const char *at = text; (at = strstr(at, "regions are not reused")); at++)
		count++;
	if (!how)
		ok(strstr(text, "RDMAMR_CACHE=all is without effect: dlopen loaded the library") != NULL,
		   "it says that RDMAMR_CACHE is without effect");
	ok(count == 1 && strstr(text, "dlopen") && strstr(text, "LD_PRELOAD"), "it says so once: %.*s",
	   (int)strcspn(text, "\n"), text);
	return done_testing();
}
