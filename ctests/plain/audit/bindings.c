/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs that find the functions of libibverbs or libfabric in another way than by linking: from a handle
 * (NCCL by dlvsym, brpc by dlsym), from a copy of libibverbs under another name, or in a plug-in that is loaded
 * with RTLD_DEEPBIND. With the library alone they get libibverbs' own functions, which do not know the stand-in
 * and are not called. With the module for LD_AUDIT, which CHECK_AUDIT names, they get the library's.
 */
#include <dlfcn.h>
#include <signal.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

typedef struct ibv_mr *(*reg_call)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
typedef int (*dereg_call)(struct ibv_mr *);
static bool audited;
static char folder[] = "/tmp/audit.XXXXXX";

/* The name of the file that defines a function. */
static const char *file_of(void *function)
{
	Dl_info info;

	return function && dladdr(function, &info) ? basename(info.dli_fname) : "nowhere";
}

static bool is_in(void *function, const char *file)
{
	return !strncmp(file_of(function), file, strlen(file));
}

/* Checks where a function that the library has is bound. */
static void taken(const char *way, void *function, const char *own)
{
	ok(is_in(function, audited ? "librdmamr.so" : own), "%s: %s", way, file_of(function));
}

/* Checks that the statistics have the registrations by these functions. */
static void registers(const char *way, reg_call reg, dereg_call dereg)
{
	struct rdmamr_stats before;
	char *memory = pages(1);
	struct ibv_mr *mr;

	if (!audited)
		return;
	/* The cache serves a range that is registered again. */
	mr = reg(stub_pd(), memory, PAGE, (uintptr_t)memory, LOCAL_AND_REMOTE);
	must(mr && dereg(mr) == 0);
	before = stats();
	mr = reg(stub_pd(), memory, PAGE, (uintptr_t)memory, LOCAL_AND_REMOTE);
	ok(mr && stub_lands(mr), "%s: registered, data lands", way);
	ok(mr && dereg(mr) == 0 && stats().misses + stats().hits == before.misses + before.hits + 1 &&
	   stats().ended_elsewhere == before.ended_elsewhere, "%s: the cache has served it, and no region ended elsewhere", way);
	must(munmap(memory, PAGE) == 0);
}

static void by_handle(const char *way, void *library, bool versions, const char *own)
{
	void *reg = versions ? dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8") : dlsym(library, "ibv_reg_mr_iova2");
	void *dereg = versions ? dlvsym(library, "ibv_dereg_mr", "IBVERBS_1.1") : dlsym(library, "ibv_dereg_mr");
	void *init = dlsym(library, "ibv_fork_init");

	taken(way, reg, own);
	taken(way, dereg, own);
	taken(way, init, own);
	ok(is_in(dlvsym(library, "ibv_reg_mr", "IBVERBS_1.0"), own), "%s: a version that the library lacks", way);
	ok(is_in(dlsym(library, "ibv_open_device"), own), "%s: a function that the library lacks", way);
	registers(way, (reg_call)reg, (dereg_call)dereg);
}

/* A copy of a file in which libibverbs has another name of the same length. */
static const char *renamed(const char *original, const char *name)
{
	static const char *const words[][2] = { { "libibverbs.so.1", "libibverbz.so.1" }, { NULL, NULL } };
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	copy_file(original, path, words);
	return path;
}

static void leave(int number) { _exit(number == SIGSEGV ? 2 : 1); }

/* libibverbs reads from a region that is NULL; the library refuses it. */
static dereg_call plugin_dereg;

static int refuses_null(void)
{
	signal(SIGSEGV, leave);
	return plugin_dereg(NULL) == EINVAL ? 0 : 1;
}

/* The calls of a plug-in. The linker binds them when it loads the plug-in, or at the first call. */
static void plugin(const char *path, int mode, const char *way)
{
	void *library = dlopen(path, mode | RTLD_LOCAL | RTLD_DEEPBIND);
	int (*protect)(void *, size_t, int);
	struct rdmamr_stats before;
	char *memory = pages(1);
	struct ibv_mr *mr;
	reg_call reg;

	must(library);
	reg = dlsym(library, "plugin_reg_mr");
	plugin_dereg = dlsym(library, "plugin_dereg_mr");
	protect = dlsym(library, "plugin_mprotect");
	must(reg && plugin_dereg && protect);
	is(in_forked(refuses_null), audited ? 0 : 2, "%s: its calls are %s", way,
	   audited ? "the library's" : "libibverbs'");
	registers(way, reg, plugin_dereg);

	/* userfaultfd does not report protection: a call that bypasses the library leaves the region in the cache. */
	mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	before = stats();
	must(protect(memory, PAGE, PROT_READ) == 0);
	mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	if (audited)
		ok(!mr && errno == EFAULT, "%s: the library sees its mprotect", way);
	else
		ok(mr && stats().hits == before.hits + 1, "%s: its mprotect bypasses the library", way);
	if (mr)
		must(ibv_dereg_mr_relaxed(mr) == 0);
	must(protect(memory, PAGE, PROT_READ | PROT_WRITE) == 0);
	must(munmap(memory, PAGE) == 0);
}

static void handles(void)
{
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	void *fabric = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_LOCAL);
	void *copy, *(*shim_next)(void);
	int (*fork_init)(void);
	char original[256];
	Dl_info info;

	must(verbs && libc);
	by_handle("dlvsym of a handle", verbs, true, "libibverbs");
	by_handle("dlsym of a handle", verbs, false, "libibverbs");
	must(dladdr(dlsym(verbs, "ibv_open_device"), &info));
	snprintf(original, sizeof(original), "%s", info.dli_fname);
	copy = dlopen(renamed(original, "libprivate-1de1263b.so.1"), RTLD_NOW | RTLD_LOCAL);
	must(copy && dlsym(copy, "ibv_open_device") != dlsym(verbs, "ibv_open_device"));
	by_handle("dlvsym of a renamed libibverbs", copy, true, "libprivate");

	/* libfabric still has each of its earlier fi_getinfo. */
	if (fabric) {
		taken("fi_getinfo by dlsym", dlsym(fabric, "fi_getinfo"), "libfabric");
		taken("fi_getinfo by dlvsym", dlvsym(fabric, "fi_getinfo", "FABRIC_1.0"), "libfabric");
		ok(is_in(dlsym(fabric, "fi_dupinfo"), "libfabric"), "fi_dupinfo is libfabric's");
	} else {
		skip("fi_getinfo by dlsym", "libfabric is not installed");
	}
	ok(is_in(dlsym(libc, "mprotect"), "libc.so"), "mprotect by dlsym from the C library is the C library's");
	ok(is_in(dlsym(RTLD_DEFAULT, "mprotect"), "librdmamr.so"), "mprotect by dlsym from the program is the library's");

	shim_next = dlsym(RTLD_DEFAULT, "shim_next");
	fork_init = dlsym(verbs, "ibv_fork_init");
	must(shim_next && fork_init);
	ok(is_in(shim_next(), "libibverbs"), "a library that stands in for a function finds the next: %s",
	   file_of(shim_next()));
	ok(fork_init() != -1, "and the call does not recurse");
}

int main(int argc, char **argv)
{
	const char *module = getenv("CHECK_AUDIT"), *why;
	char command[64];
	static char plugin_path[256];

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE", "all");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	continue_report();
	audited = getenv("LD_AUDIT") != NULL;
	must(module && mkdtemp(folder));
	must(readlink("/proc/self/exe", plugin_path, sizeof(plugin_path) - 32) > 0);
	strcpy(strrchr(plugin_path, '/'), "/audit_plugin.so");
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	plugin(plugin_path, RTLD_NOW, "RTLD_DEEPBIND");
	handles();
	plugin(renamed(plugin_path, "plugin.so"), RTLD_LAZY, "RTLD_DEEPBIND of a renamed libibverbs");
	snprintf(command, sizeof(command), "rm -r %s", folder);
	must(system(command) == 0);
	if (!audited)
		go_on_with(argv, "LD_AUDIT", module);
	return done_testing();
}
