/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One page in the middle is replaced by mmap(MAP_FIXED), which unmaps nothing in so many words: by anonymous
 * memory, by a file, by a shared mapping. */
#include "relaxed.h"

enum { COUNT = 8 };

static struct pair pair;
static char *memory, *middle;

static void *by_libc(int flags, int fd)
{
	return mmap(middle, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0);
}

static void *by_system_call(int flags, int fd)
{
	return (void *)syscall(SYS_mmap, middle, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0);
}

static void *by_mmap64(int flags, int fd)
{
	return mmap64(middle, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0);
}

static const struct {
	const char *name;
	void *(*map)(int flags, int fd);
} ways[] = { { "mmap", by_libc }, { "mmap64", by_mmap64 }, { "the system call", by_system_call } };

static void anonymous(size_t way, int kind)
{
	char name[100];

	snprintf(name, sizeof(name), "%s of an anonymous page, %s", ways[way].name, kind_names[kind]);
	control_with(&pair, name, memory, COUNT * PAGE, kinds[kind]);
	must(ways[way].map(MAP_PRIVATE | MAP_ANONYMOUS, -1) == middle);
	anew_with(&pair, name, memory, COUNT * PAGE, kinds[kind]);
}

/* Anonymous again, and an idle region of all of it. */
static void restore(const char *name)
{
	must(by_libc(MAP_PRIVATE | MAP_ANONYMOUS, -1) == middle);
	control(&pair, name, memory, COUNT * PAGE);
}

static void file(size_t way, int fd, int flags, const char *what)
{
	char name[100];

	snprintf(name, sizeof(name), "%s of %s", ways[way].name, what);
	restore(name);
	must(ways[way].map(flags, fd) == middle);
	anew(&pair, name, memory, COUNT * PAGE);
	snprintf(name, sizeof(name), "%s of %s, as it is now", ways[way].name, what);
	not_kept(&pair, name, memory, COUNT * PAGE);
}

/* A region in use, one page of which is replaced: nobody else gets it. */
static void in_use(size_t way)
{
	char name[100];
	struct ibv_mr *old;

	snprintf(name, sizeof(name), "%s below a region in use", ways[way].name);
	old = ibv_reg_mr_relaxed(pair.pd, memory, COUNT * PAGE, LOCAL_AND_REMOTE);
	must(old);
	must(ways[way].map(MAP_PRIVATE | MAP_ANONYMOUS, -1) == middle);
	anew(&pair, name, memory, COUNT * PAGE);
	is(ibv_dereg_mr_relaxed(old), 0, "%s: deregistered", name);
}

int main(int argc, char **argv)
{
	int exe = open("/proc/self/exe", O_RDONLY), shared = memfd_create("shared", MFD_CLOEXEC);

	(void)argc;
	with_setting(argv, "RDMAMR_RELAXED_LINGER", "100");
	must(exe >= 0 && shared >= 0 && ftruncate(shared, PAGE) == 0);
	relaxed_open(&pair);
	memory = pages(COUNT);
	middle = memory + COUNT / 2 * PAGE;
	for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
		for (int kind = 0; kind < 2; kind++)
			anonymous(way, kind);
		/* Others can truncate a file, and then its pages go from private mappings too. */
		file(way, exe, MAP_PRIVATE, "a file");
		file(way, shared, MAP_SHARED, "shared memory");
		restore("again");
		in_use(way);
	}
	is((long long)stats().flushed_linger, 0, "no region went for its age");
	must(munmap(memory, COUNT * PAGE) == 0);
	return relaxed_close(&pair);
}
