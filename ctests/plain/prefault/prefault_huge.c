/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_PREFAULT asks for huge pages where the kernel finds them without moving pages: as many are free,
 * or it uses small ones if none is. It asks for the ends of long memory first, and for the rest if the
 * kernel has moved none for these.
 *
 * The files of the kernel are this test's, in a namespace of mounts of its own. The call is
 * cudaHostRegister of the stand-in (cudart.c): before it, the threads populate all of the memory.
 */
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"

enum { MIB = 1 << 20, SMALL = 64 * MIB, LARGE = 1024 * MIB, TRIES = 20 };

#define THP "/sys/kernel/mm/transparent_hugepage/"
#define NONE_FREE "Node 0, zone   Normal  90000  90000    100      0      0      0      0      0      0      0      0 \n"
#define FREE      "Node 0, zone   Normal      0      0      0      0      0      0      0      0      0      0  90000 \n"
#define FEW_STALLS  "compact_stall 00017\nthp_fault_alloc 5\n"
#define MANY_STALLS "compact_stall 00025\nthp_fault_alloc 5\n"

static int (*pin)(void *, size_t, unsigned int);
static int stalls;

/* Puts a file with this content in the place of the kernel's. Returns its descriptor. */
static int put(const char *path, const char *content)
{
	char name[] = "/mnt/XXXXXX";
	int file = mkstemp(name);

	must(file >= 0 && write(file, content, strlen(content)) == (ssize_t)strlen(content));
	must(mount(name, path, NULL, MS_BIND, NULL) == 0);
	return file;
}

static char *fresh(size_t size)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED);
	return memory;
}

static void asks(bool wanted, const char *free, const char *defrag, const char *what)
{
	char *memory = fresh(SMALL);

	must(close(put("/proc/buddyinfo", free)) == 0 && close(put(THP "defrag", defrag)) == 0);
	is(pin(memory, SMALL, 0), 0, "registered");
	is(vm_flag(memory + SMALL / 2, "hg"), wanted, "%s: huge pages are %sasked for", what, wanted ? "" : "not ");
	must(munmap(memory, SMALL) == 0 && umount("/proc/buddyinfo") == 0 && umount(THP "defrag") == 0);
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
	char *memory = fresh(LARGE);
	pthread_t thread;
	bool all;

	must(pwrite(stalls, FEW_STALLS, strlen(FEW_STALLS), 0) > 0);
	if (stalled)
		thread = must_start(moves_pages, memory + LARGE - PAGE);
	must(pin(memory, LARGE, 0) == 0);
	if (stalled)
		must_join(thread);
	must(vm_flag(memory + 100 * MIB, "hg") && vm_flag(memory + LARGE - 100 * MIB, "hg"));
	all = vm_flag(memory + LARGE / 2, "hg");
	must(munmap(memory, LARGE) == 0);
	return all;
}

int main(int argc, char **argv)
{
	void *plugin;
	int tries = 0;

	must(argc == 2);
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		skip_all("one processor populates nothing beside itself");
	if ((size_t)sysconf(_SC_AVPHYS_PAGES) * PAGE < 2ul * LARGE)
		skip_all("less than 2 GiB of memory are free");
	if (access(THP "enabled", R_OK) || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/mnt", "tmpfs", 0, NULL))
		skip_all("no huge pages, or no namespace of mounts for this user");
	plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	must(plugin);
	*(void **)&pin = dlsym(plugin, "pin");
	must(pin);
	must(close(put(THP "enabled", "always [madvise] never\n")) == 0);
	asks(true, FREE, "always defer defer+madvise [madvise] never\n", "free huge pages");
	asks(false, NONE_FREE, "always defer defer+madvise [madvise] never\n", "none free");
	asks(false, NONE_FREE, "always defer [defer+madvise] madvise never\n", "none free, and the kernel moves pages");
	asks(true, NONE_FREE, "always defer defer+madvise madvise [never]\n", "none free, and the kernel moves none");
	asks(true, NONE_FREE, "always [defer] defer+madvise madvise never\n", "none free, and the kernel moves pages later");
	must(close(put("/proc/buddyinfo", FREE)) == 0);
	stalls = put("/proc/vmstat", FEW_STALLS);
	is(asks_for_all(false), true, "long memory is asked for in all");
	/* The thread may be late. */
	while (asks_for_all(true) && ++tries < TRIES)
		;
	ok(tries < TRIES, "but for its ends, if the kernel has moved pages for these");
	return done_testing();
}
