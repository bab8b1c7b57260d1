/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cudaHostRegister or hipHostRegister of a stand-in (cudart.c), called by a plug-in whose runtime is in a scope
 * of its own: its result and errno are the runtime's. With RDMAMR_PREFAULT another thread populates the memory
 * from its end, while the runtime populates it from its start; small memory and a device's is left to it.
 *
 * With "huge": RDMAMR_PREFAULT asks for huge pages where the kernel finds them without moving pages, for the
 * ends of long memory first. The files of the kernel are this test's, in a namespace of mounts of its own.
 *
 * Usage: cuda_host PLUGIN [huge]
 */
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"

enum { MIB = 1 << 20, SMALL = MIB, LARGE = 64 * MIB, LONG = 1024 * MIB, TRIES = 20 };

#define THP "/sys/kernel/mm/transparent_hugepage/"
#define NONE_FREE "Node 0, zone   Normal  90000  90000    100      0      0      0      0      0      0      0      0 \n"
#define FREE      "Node 0, zone   Normal      0      0      0      0      0      0      0      0      0      0  90000 \n"
#define FEW_STALLS  "compact_stall 00017\nthp_fault_alloc 5\n"
#define MANY_STALLS "compact_stall 00025\nthp_fault_alloc 5\n"

static int (*pin)(void *, size_t, unsigned int);
static int stalls;

static void *load(const char *path)
{
	void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	must(plugin);
	*(void **)&pin = dlsym(plugin, "pin");
	must(pin);
	return plugin;
}

static void results(const char *path)
{
	void *plugin = load(path), *runtime;

	must(!dlsym(RTLD_DEFAULT, "cudaFree"));
	errno = 0;
	is(pin(untouched(LARGE), LARGE, 0), 0, "large memory is registered%s", getenv("CHECK_HELPED") ? ", and another thread helps" : "");
	is(errno, 77, "errno is the runtime's");
	errno = 5;
	is(pin(untouched(LARGE), LARGE, 0x100), 1, "an error of the runtime is the result");
	is(errno, 5, "with errno left alone");
	must(unsetenv("CHECK_HELPED") == 0);
	is(pin(untouched(SMALL), SMALL, 0), 0, "small memory is registered");
	is(pin(untouched(LARGE), LARGE, 4), 0, "a device's memory is registered");
	is(pin(untouched(LARGE), LARGE, 8), 0, "memory for reading only is registered");
	/* A plug-in ends, and its runtime with it. The next one's lies elsewhere. */
	runtime = dlsym(plugin, "cudaHostRegister") ?: dlsym(plugin, "hipHostRegister");
	must(runtime && dlclose(plugin) == 0);
	runtime = (char *)runtime - (uintptr_t)runtime % 4096;
	must(mmap(runtime, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == runtime);
	load(path);
	is(pin(untouched(LARGE), LARGE, 0), 0, "by the next plug-in, after this one and its runtime were unloaded");
}

/* Puts a file with this content in the place of the kernel's. Returns its descriptor. */
static int put(const char *path, const char *content)
{
	char name[] = "/mnt/XXXXXX";
	int file = mkstemp(name);

	must(file >= 0 && write(file, content, strlen(content)) == (ssize_t)strlen(content));
	must(mount(name, path, NULL, MS_BIND, NULL) == 0);
	return file;
}

static void asks(bool wanted, const char *free, const char *defrag, const char *what)
{
	char *memory = untouched(LARGE);

	must(close(put("/proc/buddyinfo", free)) == 0 && close(put(THP "defrag", defrag)) == 0);
	is(pin(memory, LARGE, 0), 0, "registered");
	is(vm_flag(memory + LARGE / 2, "hg"), wanted, "%s: huge pages are %sasked for", what, wanted ? "" : "not ");
	must(munmap(memory, LARGE) == 0 && umount("/proc/buddyinfo") == 0 && umount(THP "defrag") == 0);
}

/* As if the first page faults of a thread had made the kernel move pages. */
static void *moves_pages(void *last)
{
	unsigned char is_there = 0;

	while (!(is_there & 1))
		must(mincore(last, PAGE, &is_there) == 0);
	must(pwrite(stalls, MANY_STALLS, strlen(MANY_STALLS), 0) > 0);
	return NULL;
}

/* Whether huge pages were asked for in the middle of long memory too. */
static bool asks_for_all(bool stalled)
{
	char *memory = untouched(LONG);
	pthread_t thread;
	bool all;

	must(pwrite(stalls, FEW_STALLS, strlen(FEW_STALLS), 0) > 0);
	if (stalled)
		thread = must_start(moves_pages, memory + LONG - PAGE);
	must(pin(memory, LONG, 0) == 0);
	if (stalled)
		must_join(thread);
	must(vm_flag(memory + 100 * MIB, "hg") && vm_flag(memory + LONG - 100 * MIB, "hg"));
	all = vm_flag(memory + LONG / 2, "hg");
	must(munmap(memory, LONG) == 0);
	return all;
}

static void huge_pages(const char *path)
{
	int tries = 0;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		skip_all("one processor populates nothing beside itself");
	if ((size_t)sysconf(_SC_AVPHYS_PAGES) * PAGE < 2ul * LONG)
		skip_all("less than 2 GiB of memory are free");
	if (access(THP "enabled", R_OK) || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/mnt", "tmpfs", 0, NULL))
		skip_all("no huge pages, or no namespace of mounts for this user");
	load(path);
	must(close(put(THP "enabled", "always [madvise] never\n")) == 0);
	asks(true, FREE, "always defer defer+madvise [madvise] never\n", "free huge pages");
	asks(false, NONE_FREE, "always defer defer+madvise [madvise] never\n", "none free");
	asks(false, NONE_FREE, "always defer [defer+madvise] madvise never\n", "none free, and the kernel moves pages");
	asks(true, NONE_FREE, "always defer defer+madvise madvise [never]\n", "none free, and the kernel moves none");
	must(close(put("/proc/buddyinfo", FREE)) == 0);
	stalls = put("/proc/vmstat", FEW_STALLS);
	is(asks_for_all(false), true, "long memory is asked for in all");
	/* The thread may be late. */
	while (asks_for_all(true) && ++tries < TRIES)
		;
	ok(tries < TRIES, "but for its ends, if the kernel has moved pages for these");
}

int main(int argc, char **argv)
{
	must(argc > 1);
	(argc > 2 ? huge_pages : results)(argv[1]);
	return done_testing();
}
