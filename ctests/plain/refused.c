/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A registration that the kernel refuses costs the refused call, whatever the program has mapped: the library
 * makes no other system call, so no descriptor of its own takes a number. It still finds the runtime of a GPU
 * that the program loads later, or loads again.
 */
#include <dlfcn.h>
#include "../lib/observe.h"
#include "../lib/stub_rows.h"

enum { TIMES = 100, CHANGES = 200 };

static _Atomic long calls; /* of the system, by number, as the library makes them */

static void count(long number, const long argument[6])
{
	(void)number, (void)argument;
	calls++;
}

static void refuse(void *at)
{
	errno = 0;
	stub_fail(STUB_REGISTER, EFAULT, 1);
	must(!ibv_reg_mr(stub_pd(), at, PAGE, LOCAL_AND_REMOTE) && errno == EFAULT);
}

/* A file of the folder in which this program is. */
static void *load(const char *name)
{
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
	void *file;

	must(length > 0);
	path[length] = 0;
	strcpy(strrchr(path, '/') + 1, name);
	file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	must(file);
	return file;
}

static void makes_no_call(void)
{
	char *page = pages(2);

	/* The first registration of a process asks the device for its driver. */
	must(ibv_dereg_mr(ibv_reg_mr(stub_pd(), page + PAGE, PAGE, LOCAL_AND_REMOTE)) == 0);
	stub_before = count;
	refuse(page);
	is(calls, 0, "system calls of the first one");
	for (int n = 0; n < TIMES; n++)
		refuse(page);
	is(calls, 0, "system calls of the others");
	stub_before = NULL;
	load("cuda_plugin.so");
	stub_before = count;
	refuse(page);
	is(calls, 0, "system calls after a file was loaded");
	stub_before = NULL;
}

/* Whether the library has asked the runtime, whose memory it could not export. */
static bool is_asked(void)
{
	const uint64_t before = stats().reg_gpu_failed;

	refuse((void *)0x600000000000);
	return stats().reg_gpu_failed == before + 1;
}

static void later(void)
{
	char *page = pages(1);
	void *runtime, *plugin = load("cuda_plugin.so");

	for (int n = 0; n < CHANGES; n++) {
		refuse(page);
		must(!is_asked());
		/* The plug-in may come back to its place behind the runtime. */
		if (n % 3)
			must(dlclose(plugin) == 0);
		runtime = load("libcuda.so.1");
		if (n % 3)
			plugin = load("cuda_plugin.so");
		must(is_asked());
		refuse(page);
		must(is_asked());
		must(dlclose(runtime) == 0);
		must(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	}
	is((long long)stats().reg_gpu_failed, 2 * CHANGES, "the runtime is asked whenever it is loaded");
}

/* Each line of the log has a reason, for which files of the process are read. */
static void looks_seldom(void)
{
	char *page = pages(1);

	hear_errors();
	for (int n = 0; n < TIMES; n++)
		refuse(page);
	ok(times_said("rdmamr explain EFAULT") >= 10 && times_said("rdmamr explain EFAULT") <= 40, "ten causes a second: %d of %d",
	   times_said("rdmamr explain EFAULT"), TIMES);
	is(times_said("the cause is not looked up") + times_said("rdmamr explain EFAULT"), TIMES, "each failure has a line");
	must(strstr(rdmamr_last_reason(), "rdmamr explain EFAULT"));
}

#define IN(mode) "a refused registration makes no system call, " mode
static const struct row rows[] = {
	{ IN("RDMAMR_CACHE=off"), makes_no_call },
	{ IN("RDMAMR_CACHE=local"), makes_no_call, .settings = "RDMAMR_CACHE=local" },
	{ IN("RDMAMR_CACHE=all"), makes_no_call, .settings = "RDMAMR_CACHE=all" },
	{ IN("RDMAMR_GPU=off"), makes_no_call, .settings = "RDMAMR_GPU=off" },
	{ "a hundred refused registrations, with a log", looks_seldom, .settings = "RDMAMR_LOG=warn" },
	{ "a GPU's runtime that is loaded later, and again", later },
};

static void around(void)
{
	on_stub();
}

RUN_ROWS("RDMAMR_CACHE=off", around)
