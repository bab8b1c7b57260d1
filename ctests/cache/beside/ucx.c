/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * UCX watches memory too, for its own cache: it overwrites the first instructions of libc's memory
 * calls, or of the library that interposes them ("bistro"), or the tables by which they are called
 * ("reloc"). In one process with it, in either order of loading, UCX must see every change as
 * without the library, and the cache must never hand out a stale region, even if UCX has disabled
 * its hooks. Each row is tried without the library first.
 */
#include <dlfcn.h>
#include "../../lib/stub_rows.h"

/* From UCX's <ucm/api/ucm.h>, so that the program compiles without it. */
enum { UCM_EVENT_VM_UNMAPPED = 1 << 17 };
union ucm_event {
	struct {
		void *address;
		size_t size;
	} vm_unmapped;
	char room[128];
};
typedef void (*ucm_callback)(int type, union ucm_event *event, void *argument);
typedef signed char (*ucm_set_handler)(int events, int priority, ucm_callback callback, void *argument);

enum order { IN_FRONT, BEHIND, BEFORE_REGIONS, AFTER_REGIONS };

static char *watched;      /* a page: UCX must see changes here */
static volatile long seen; /* the number of changes that it saw */

static void on_unmapped(int type, union ucm_event *event, void *argument)
{
	uintptr_t start = (uintptr_t)event->vm_unmapped.address, end = start + event->vm_unmapped.size;

	(void)type, (void)argument;
	if (start < (uintptr_t)watched + PAGE && (uintptr_t)watched < end)
		seen = seen + 1;
}

static bool load_ucx(bool preloaded)
{
	void *ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_GLOBAL | (preloaded ? RTLD_NOLOAD : 0));
	void *ucm = dlopen("libucm.so.0", RTLD_NOW | RTLD_NOLOAD);
	ucm_set_handler set_handler = ucm ? (ucm_set_handler)dlsym(ucm, "ucm_set_event_handler") : NULL;

	must(ucs && set_handler);
	return set_handler(UCM_EVENT_VM_UNMAPPED, 0, on_unmapped, NULL) == 0;
}

/* Without the library: whether UCX can do that at all. */
static int control(enum order order)
{
	must(freopen("/dev/null", "w", stdout) && !ibv_reg_mr_relaxed && dlopen("libibverbs.so.1", RTLD_NOW));
	alarm(5);
	watched = pages(1);
	load_ucx(order <= BEHIND);
	must(munmap(watched, PAGE) == 0);
	_exit(seen ? 0 : 1);
}

/* Starts the program anew in the row's order of loading, once UCX has done so without the library. */
static void in_order(void)
{
	static const char *const preloads[] = { "LD_PRELOAD=libucs.so.0 %s", "LD_PRELOAD=%s libucs.so.0", "LD_PRELOAD=%s", "LD_PRELOAD=%s" };
	const char *library = getenv("LD_PRELOAD"), *settings[] = { NULL, NULL };
	char alone[5000], with[5000], order[] = { (char)('0' + row->value), 0 };

	snprintf(alone, sizeof(alone), preloads[row->value], "");
	snprintf(with, sizeof(with), preloads[row->value], library ? library : "");
	/* In another process: this one must not load UCX. */
	if (system("LD_PRELOAD=libucs.so.0 true 2>&1 | grep -q . && exit 1; exit 0"))
		skip_all("UCX's libucs.so.0 is not installed");
	settings[0] = alone;
	if (once_more(order, settings))
		skip_all("UCX itself fails so, without the library");
	must(putenv(with) == 0 && putenv((char *)(uintptr_t)"UCX_STARTED=1") == 0);
	execl("/proc/self/exe", "ucx", (char *)NULL);
}

static void beside_ucx(void)
{
	static const char *const names[RENEWALS] = { "munmap and mmap", "the same by raw system calls", "mmap with MAP_FIXED", "madvise",
						    "mremap away and mmap" };

	if (!getenv("UCX_STARTED"))
		in_order();
	/*
	 * As a program that uses UCX: a library that is loaded after UCX in mode "reloc" mixes its
	 * allocator and libc's.
	 */
	must(ibv_reg_mr_relaxed && dlopen("libibverbs.so.1", RTLD_NOW) && !stub_open(STUB_PIN));
	watched = pages(1);
	if (row->value == AFTER_REGIONS)
		once(watched);
	ok(load_ucx(row->value <= BEHIND), "UCX installs its watch");
	for (int how = 0; how < RENEWALS; how++) {
		leave_idle(watched);
		served(watched, HIT, names[how]);
		seen = 0;
		renew((enum renewal)how, watched, PAGE);
		ok(how == BY_RAW_MUNMAP || seen > 0, "%s: UCX saw it", names[how]);
		is(hits(watched, 1), 0, "%s: registered anew", names[how]);
	}
	ok(ibv_flush_relaxed_mr(stub_pd()) == 0 && stub_registered() == stub_deregistered(), "a flush leaves nothing");
	/* UCX's destructors may fail on code that it has overwritten, which is not our concern. */
	row_ends();
}

#define ORDERS(mode)                                                                                                     \
	{ mode ", preloaded in front", beside_ucx, IN_FRONT, .settings = "UCX_MEM_MMAP_HOOK_MODE=" mode },               \
	{ mode ", preloaded behind", beside_ucx, BEHIND, .settings = "UCX_MEM_MMAP_HOOK_MODE=" mode },                   \
	{ mode ", loaded before the cache's first region", beside_ucx, BEFORE_REGIONS, .settings = "UCX_MEM_MMAP_HOOK_MODE=" mode }, \
	{ mode ", loaded after it", beside_ucx, AFTER_REGIONS, .settings = "UCX_MEM_MMAP_HOOK_MODE=" mode }
static const struct row rows[] = { ORDERS("bistro"), ORDERS("reloc") };

int main(int argc, char **argv)
{
	if (argc == 2 && strlen(argv[1]) == 1)
		return control((enum order)(argv[1][0] - '0'));
	return run_rows(argv, ROWS(rows), "UCX_HANDLE_ERRORS=none RDMAMR_CACHE_LINGER=" FOREVER, NULL);
}
