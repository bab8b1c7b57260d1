/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The memory calls of a program that loads the library by dlopen bypass it. userfaultfd reports
 * neither guard pages nor protection: so no region is reused, and the library says once why, and
 * the remedy. With RTLD_DEEPBIND, and in a namespace with a C library of its own, the library's calls
 * do not reach the stand-in: there the test looks only at the messages.
 */
#include <dlfcn.h>
#include <signal.h>
#include "../../lib/stub_rows.h"

static struct ibv_mr *(*get)(struct ibv_pd *, void *, size_t, int), *(*plain_get)(struct ibv_pd *, void *, size_t, int);
static int (*put)(struct ibv_mr *), (*plain_put)(struct ibv_mr *);
static int (*get_stats)(struct rdmamr_stats *, size_t);
enum { DLOPEN, DEEPBIND, NAMESPACE };
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 }; /* Linux 6.13 */

static void load(void)
{
	int flags = RTLD_NOW | RTLD_LOCAL | (row->value == DEEPBIND ? RTLD_DEEPBIND : 0);
	const char *path = getenv("LOADED");
	void *library = row->value == NAMESPACE ? dlmopen(LM_ID_NEWLM, path, flags) : dlopen(path, flags);

	if (!library)
		printf("# %s\n", dlerror());
	must(library);
	*(void **)&get = dlsym(library, "ibv_reg_mr_relaxed");
	*(void **)&put = dlsym(library, "ibv_dereg_mr_relaxed");
	*(void **)&plain_get = dlsym(library, "ibv_reg_mr");
	*(void **)&plain_put = dlsym(library, "ibv_dereg_mr");
	*(void **)&get_stats = dlsym(library, "rdmamr_get_stats");
	must(get && put && plain_get && plain_put && get_stats);
}

/*
 * With RDMAMR_CACHE. Here an ibv_dereg_mr of libibverbs would bypass the library, and would end a region of the
 * cache. The cache looks at a range that is registered again, and then again after some plain registrations.
 */
static void plain_calls_bypass(void *memory)
{
	enum { PLAIN_ONES = 100 };
	struct rdmamr_stats before, after;
	uint64_t watched, first;

	must(get_stats(&before, sizeof(before)) == 0);
	for (int n = 0; n < PLAIN_ONES; n++)
		must(plain_put(plain_get(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE)) == 0);
	must(get_stats(&after, sizeof(after)) == 0);
	is((long)(after.reg_kernel - before.reg_kernel), PLAIN_ONES, "RDMAMR_CACHE serves no plain call");
	watched = after.bypassed_watch - before.bypassed_watch;
	first = after.bypassed_first - before.bypassed_first;
	ok(watched >= 3 && watched + first == PLAIN_ONES, "which is counted");
}

static bool is_right(char *page)
{
	struct ibv_mr *mr = get(stub_pd(), page, PAGE, LOCAL_AND_REMOTE);
	bool right = mr && stub_lands(mr);

	must(mr && put(mr) == 0);
	return right;
}

static void refused(char *page, const char *when)
{
	errno = 0;
	ok(!get(stub_pd(), page, PAGE, LOCAL_AND_REMOTE) && errno == EFAULT, "%s: EFAULT, as the kernel says", when);
}

static void leave(int number) { _exit(number == SIGSEGV ? 0 : 1); }

/* The kernel refuses the library's calls, and libibverbs fails at a context that it has not made. */
static int registers(void)
{
	signal(SIGSEGV, leave);
	get(stub_pd(), pages(1), PAGE, LOCAL_AND_REMOTE);
	return 0;
}

static void nothing_is_reused(void)
{
	char *memory = pages(1);
	long before;

	must(is_right(memory) && is_right(memory));
	before = stub_registered();
	ok(is_right(memory) && stub_registered() == before + 1, "no region is reused");
	is(in_device(), 0, "none is cached");
	plain_calls_bypass(memory);
	if (madvise(memory, PAGE, GUARD_INSTALL) == 0) {
		refused(memory, "guard pages");
		must(madvise(memory, PAGE, GUARD_REMOVE) == 0);
		ok(is_right(memory), "after their removal, data lands in the current page");
	} else {
		printf("# skipped: guard pages: this kernel has none\n");
	}
	must(mprotect(memory, PAGE, PROT_READ) == 0);
	refused(memory, "memory that has become read-only");
}

static void loaded(void)
{
	must(!ibv_reg_mr_relaxed);
	load();
	hear_errors();
	if (row->value == DLOPEN)
		nothing_is_reused();
	else
		in_forked(registers);
	hear_no_more();
	is(times_said("RDMAMR_CACHE=all is without effect: dlopen loaded the library"), row->value == DLOPEN,
	   "it says that RDMAMR_CACHE is without effect, to plain calls");
	is(times_said("regions are not reused"), 1, "it says so once");
	ok(times_said("dlopen") && times_said("LD_PRELOAD"), "and why, and the remedy");
}

static const struct row rows[] = {
	{ "loaded by dlopen: nothing is reused, and why is said", loaded, DLOPEN },
	{ "loaded by dlopen with RTLD_DEEPBIND: why is said", loaded, DEEPBIND },
	{ "loaded by dlmopen into a namespace of its own: why is said", loaded, NAMESPACE },
};

/* The rows have the library's path, and not the library. */
int main(int argc, char **argv)
{
	Dl_info library;

	(void)argc;
	if (ibv_reg_mr_relaxed) {
		must(dladdr((void *)ibv_reg_mr_relaxed, &library));
		must(setenv("LOADED", library.dli_fname, 1) == 0 && unsetenv("LD_PRELOAD") == 0);
		execv("/proc/self/exe", argv);
	}
	must(getenv("LOADED"));
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE=all RDMAMR_CACHE_LINGER=" FOREVER, on_stub);
}
