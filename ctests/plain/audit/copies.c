/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process with a copy of libibverbs under another name, as a Python wheel brings one, with its
 * own provider. The library's calls about a device must go to the libibverbs that opened the
 * device, be it the only one or one of two.
 *
 * Only the copy has been told to keep registered memory from children, by its own ibv_fork_init:
 * the flags of the memory in /proc/self/smaps show which libibverbs the library called.
 */
#include <dlfcn.h>
#include <glob.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <rdmamr.h>
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"

_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, sz) == 8, "SZ_BEFORE_CONTEXT");
_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, create_cq_ex) == 120,
	       "CREATE_CQ_EX_BEFORE_CONTEXT");

/* So the program is not linked to libibverbs, and finds the library's functions only. */
#pragma weak ibv_reg_mr
#pragma weak ibv_reg_mr_iova2
#pragma weak ibv_dereg_mr
#pragma weak ibv_dealloc_pd
#pragma weak ibv_close_device
#pragma weak rdmamr_get_stats

enum { LOCAL = IBV_ACCESS_LOCAL_WRITE };
static char folder[] = "/tmp/copies.XXXXXX";

static struct rdmamr_stats stats(void)
{
	struct rdmamr_stats now;

	must(rdmamr_get_stats(&now, sizeof(now)) == 0);
	return now;
}

/* A file of the folder. */
static const char *in_folder(const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

/* Makes the copies, and makes the copy of libibverbs load its own provider only. The installed one stays unloaded. */
static void make_copies(void)
{
	static const char *const library[][2] = { { "libibverbs.so.1", "libibverbz.so.1" },
						  { "/etc/libibverbs.d", "/nil/libibverbs.d" }, { NULL, NULL } };
	static const char *const provider[][2] = { { "libibverbs.so.1", "libibverbz.so.1" }, { NULL, NULL } };
	FILE *said = popen("realpath $(ldconfig -p | sed -n 's/.*libibverbs.so.1 .* => //p')", "r");
	char installed[256];
	glob_t found;

	must(said && fgets(installed, sizeof(installed) - 32, said) && pclose(said) == 0);
	installed[strcspn(installed, "\n")] = '\0';
	copy_file(installed, in_folder("libibverbs-1de1263b.so.1"), library);
	strcpy(strrchr(installed, '/'), "/libibverbs/librxe-rdmav*");
	must(glob(installed, 0, NULL, &found) == 0 && found.gl_pathc == 1);
	copy_file(*found.gl_pathv, in_folder(strrchr(*found.gl_pathv, '/') + 1), provider);
	globfree(&found);
}

/* A domain on the device, by one libibverbs alone. */
static struct ibv_pd *open_domain(void *verbs)
{
	struct ibv_device **(*get_list)(int *) = dlsym(verbs, "ibv_get_device_list"), **list;
	struct ibv_context *(*open_device)(struct ibv_device *) = dlsym(verbs, "ibv_open_device");
	struct ibv_context *context = NULL;
	struct ibv_pd *(*alloc_pd)(struct ibv_context *) = dlsym(verbs, "ibv_alloc_pd"), *pd;

	must(get_list && open_device && alloc_pd);
	list = get_list(NULL);
	must(list);
	for (int n = 0; list[n]; n++)
		if (!strcmp(list[n]->name, getenv("CHECK_DEVICE")))
			context = open_device(list[n]);
	must(context);
	pd = alloc_pd(context);
	must(pd);
	return pd;
}

/* Whether children do not get the page. */
static bool is_kept(void *page) { return vm_flag(page, "dc"); }

static void by_copy(struct ibv_pd *pd, const char *when)
{
	void *page = pages(1);
	struct ibv_mr *mr = ibv_reg_mr(pd, page, PAGE, LOCAL);
	struct rdmamr_stats before;

	/* The cache looks at a range that is registered again. */
	must(mr && ibv_dereg_mr(mr) == 0);
	before = stats();
	mr = ibv_reg_mr(pd, page, PAGE, LOCAL);
	ok(mr && stats().reg_kernel == before.reg_kernel + 1 && stats().bypassed_fork > before.bypassed_fork,
	   "%s: the library registers, and the cache leaves it alone", when);
	ok(is_kept(page), "%s: the copy is asked to keep the memory from children", when);
	ok(mr && ibv_dereg_mr(mr) == 0 && !is_kept(page), "%s: and to give it back", when);
	/* An iova of its own, which is libibverbs' to serve if the library does not. */
	mr = ibv_reg_mr_iova2(pd, page, PAGE, (uintptr_t)page + PAGE, LOCAL);
	ok(mr && is_kept(page), "%s: another iova", when);
	ok(mr && ibv_dereg_mr(mr) == 0 && !is_kept(page), "%s: deregistered", when);
	must(munmap(page, PAGE) == 0);
}

static void by_installed(struct ibv_pd *pd, bool first)
{
	void *page = pages(1);
	struct rdmamr_stats before = stats();

	for (int n = 0; n < 4; n++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, page, PAGE, LOCAL);

		ok(mr && !is_kept(page), "the installed libibverbs keeps no memory from children");
		ok(mr && ibv_dereg_mr(mr) == 0, "deregistered");
	}
	/* The second registration makes a region. The first libibverbs decides for all hits. */
	ok(stats().hits == before.hits + (first ? 2 : 0), "and the cache serves its device if it was the first");
	must(munmap(page, PAGE) == 0);
}

static void end(struct ibv_pd *pd, const char *whose)
{
	struct ibv_context *context = pd->context;

	is(ibv_dealloc_pd(pd), 0, "the domain of %s ends", whose);
	is(ibv_close_device(context), 0, "and its device");
}

static void *load_copy(void)
{
	void *verbs = dlopen(in_folder("libibverbs-1de1263b.so.1"), RTLD_NOW | RTLD_LOCAL);
	int (*fork_init)(void);

	must(verbs);
	fork_init = dlsym(verbs, "ibv_fork_init");
	must(fork_init && fork_init() == 0);
	must(setenv("RDMAV_DRIVERS", in_folder("librxe"), 1) == 0);
	return verbs;
}

static bool installed_is_loaded(void) { return dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL; }

static struct ibv_pd *open_installed(void)
{
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	must(verbs && unsetenv("RDMAV_DRIVERS") == 0);
	return open_domain(verbs);
}

int main(int argc, char **argv)
{
	struct ibv_pd *copied, *installed;
	char command[64];
	bool second = getenv("CHECK_SECOND") != NULL;

	if (!getenv("CHECK_DEVICE") || strncmp(getenv("CHECK_DEVICE"), "rxe", 3))
		skip_all("the copy is of soft-RoCE's provider");
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE", "all");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	continue_report();
	must(mkdtemp(folder));
	make_copies();
	if (second) {
		installed = open_installed();
		by_installed(installed, true);
	}
	copied = open_domain(load_copy());
	if (!second) {
		must(!installed_is_loaded());
		by_copy(copied, "the only one");
		ok(!installed_is_loaded(), "no other libibverbs was loaded for it");
		installed = open_installed();
		by_installed(installed, false);
	}
	by_copy(copied, second ? "the second of two" : "the first of two");
	end(installed, "the installed libibverbs");
	end(copied, "the copy");
	snprintf(command, sizeof(command), "rm -r %s", folder);
	must(system(command) == 0);
	if (!second)
		go_on_with(argv, "CHECK_SECOND", "1");
	return done_testing();
}
