/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Any process with an open file can remove its pages from every mapping, and no event reports it:
 * by ftruncate, by punching holes, by opening it with O_TRUNC, from this process or another. So the
 * cache keeps no region of a shared mapping, even if seals forbid all that. Private mappings, too,
 * lose their own copies to a truncation.
 */
#include "../../lib/reuse.h"
#include <linux/falloc.h>
#include <sys/wait.h>

enum { COUNT = 8, SIZE = COUNT * PAGE };

static struct pair pair;

static void by_ftruncate(int fd)
{
	must(ftruncate(fd, 0) == 0 && ftruncate(fd, SIZE) == 0);
}

static void by_system_call(int fd)
{
	must(syscall(SYS_ftruncate, fd, 0) == 0 && syscall(SYS_ftruncate, fd, SIZE) == 0);
}

static void by_truncate(int fd)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	must(truncate(path, 0) == 0 && truncate(path, SIZE) == 0);
}

static void by_open(int fd)
{
	char path[40];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_TRUNC);
	must(again >= 0 && ftruncate(again, SIZE) == 0 && close(again) == 0);
}

static void by_another_process(int fd)
{
	pid_t pid = fork();
	int status;

	must(pid >= 0);
	if (!pid)
		_exit(syscall(SYS_ftruncate, fd, 0) || syscall(SYS_ftruncate, fd, SIZE));
	must(waitpid(pid, &status, 0) == pid && status == 0);
}

static void by_fallocate(int fd)
{
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE) == 0);
}

static void by_fallocate_of_a_page(int fd)
{
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * PAGE, PAGE) == 0);
}

static void by_fallocate_system_call(int fd)
{
	must(syscall(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0L, (long)SIZE) == 0);
}

/* A private copy survives a hole in the file; it does not survive a truncation. */
static const struct way {
	const char *name;
	void (*change)(int fd);
	bool truncates;
} ways[] = {
	{ "ftruncate", by_ftruncate, true },
	{ "the system call ftruncate", by_system_call, true },
	{ "truncate", by_truncate, true },
	{ "open(O_TRUNC)", by_open, true },
	{ "another process", by_another_process, true },
	{ "fallocate(PUNCH_HOLE)", by_fallocate, false },
	{ "fallocate(PUNCH_HOLE) of a page", by_fallocate_of_a_page, false },
	{ "the system call fallocate", by_fallocate_system_call, false },
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static const char *named(const char *what, const struct way *way)
{
	static char name[140];

	snprintf(name, sizeof(name), "%s, %s", what, way->name);
	return name;
}

static char *map(int fd, int flags)
{
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);

	must(memory != MAP_FAILED);
	return memory;
}

static int make_memfd(void)
{
	int fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0 && ftruncate(fd, SIZE) == 0);
	return fd;
}

static int make_file(void)
{
	char path[] = "/tmp/rdmamr-truncate-XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC);

	must(fd >= 0 && unlink(path) == 0 && ftruncate(fd, SIZE) == 0);
	return fd;
}

/* A shared mapping, made in one way or another. */
static void shared(const char *what, int fd, char *memory)
{
	for (int n = 0; n < WAYS; n++) {
		struct ibv_mr *old;

		not_kept(&pair, named(what, &ways[n]), memory, SIZE);
		ways[n].change(fd);
		anew(&pair, named(what, &ways[n]), memory, SIZE);
		old = register_region(pair.pd, memory, SIZE, LOCAL_AND_REMOTE);
		must(old);
		ways[n].change(fd);
		ok(lands(&pair, memory, SIZE), "%s, below a region in use: data lands in the current page",
		   named(what, &ways[n]));
		must(deregister_region(old) == 0);
	}
	must(munmap(memory, SIZE) == 0 && close(fd) == 0);
}

/* By a raw system call, which the library does not see. */
static char *map_unseen(int fd)
{
	char *memory = new_place(SIZE);

	must(syscall(SYS_mmap, memory, (long)SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
		     fd, 0L) ==
	     (long)memory);
	return memory;
}

/* Shared memory stays shared when it moves. */
static char *map_and_move(int fd, bool unseen)
{
	char *from = map(fd, MAP_SHARED), *to = new_place(SIZE);

	if (unseen)
		must(syscall(SYS_mremap, from, (long)SIZE, (long)SIZE, MREMAP_MAYMOVE | MREMAP_FIXED,
			     to) == (long)to);
	else
		must(mremap(from, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	return to;
}

/* So does the part by which it grows: the test maps and registers that part. */
static char *map_and_grow(int fd)
{
	char *room = new_place(2 * SIZE);

	must(ftruncate(fd, 2 * SIZE) == 0);
	must(mmap(room, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == room);
	must(mremap(room, SIZE, 2 * SIZE, 0) == room);
	return room;
}

static void grown(int fd)
{
	char *room = map_and_grow(fd), *memory = room + SIZE;

	not_kept(&pair, "the part by which a shared mapping has grown", memory, SIZE);
	must(syscall(SYS_ftruncate, fd, 0) == 0 && syscall(SYS_ftruncate, fd, 2 * SIZE) == 0);
	anew(&pair, "the part by which a shared mapping has grown, cut by a system call", memory, SIZE);
	must(munmap(room, 2 * SIZE) == 0 && close(fd) == 0);
}

/*
 * The cache asks the kernel about the memory when it is registered again, and remembers the
 * answer.
 */
static void counted(void)
{
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct rdmamr_stats before, after;

	must(memory != MAP_FAILED);
	for (int n = 0; n < 3; n++)
		must(lands_by_cache(&pair, memory, SIZE, LOCAL_AND_REMOTE, &before, &after));
	is((long long)(after.bypassed_memory - before.bypassed_memory), 1,
	   "shared memory counts as bypassing the cache");
	is((long long)(after.hits + after.misses - before.hits - before.misses), 0,
	   "and as neither hit nor miss");
	must(munmap(memory, SIZE) == 0);
}

/* After a truncation the program no longer sees the copies that were registered. */
static void private(const char *what, int fd)
{
	char *memory = map(fd, MAP_PRIVATE);

	for (int n = 0; n < WAYS; n++) {
		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		not_kept(&pair, named(what, &ways[n]), memory, SIZE);
		ways[n].change(fd);
		if (ways[n].truncates)
			anew(&pair, named(what, &ways[n]), memory, SIZE);
		else
			either(&pair, named(what, &ways[n]), memory, SIZE);
	}
	must(munmap(memory, SIZE) == 0 && close(fd) == 0);
}

/* The seals forbid the change, but the cache does not look at seals. */
static void sealed(void)
{
	int fd = make_memfd();
	char *memory = map(fd, MAP_SHARED);

	not_kept(&pair, "a memfd without seals", memory, SIZE);
	must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	not_kept(&pair, "a memfd sealed against shrinking only", memory, SIZE);
	must(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
	must(ftruncate(fd, 0) == -1 && errno == EPERM);
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE) == -1 && errno == EPERM);
	must(madvise(memory, SIZE, MADV_REMOVE) == -1 && errno == EPERM);
	not_kept(&pair, "a memfd sealed against shrinking and holes", memory, SIZE);
	must(syscall(SYS_munmap, memory, SIZE) == 0);
	fresh_at(memory, SIZE);
	anew(&pair, "other memory where the sealed memfd was", memory, SIZE);
	must(munmap(memory, SIZE) == 0 && close(fd) == 0);
}

int main(int argc, char **argv)
{
	int early = make_memfd(), fd;
	char *earlier = map(early, MAP_SHARED);

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	shared("a memfd mapped before the first relaxed call", early, earlier);
	fd = make_memfd();
	shared("a shared memfd", fd, map(fd, MAP_SHARED));
	fd = make_file();
	shared("a shared file", fd, map(fd, MAP_SHARED));
	fd = make_memfd();
	shared("a memfd moved by mremap", fd, map_and_move(fd, false));
	fd = make_memfd();
	shared("a memfd moved by the system call", fd, map_and_move(fd, true));
	fd = make_memfd();
	shared("a memfd mapped by the system call", fd, map_unseen(fd));
	grown(make_memfd());
	counted();
	private("a private mapping of a memfd", make_memfd());
	private("a private mapping of a file", make_file());
	sealed();
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	return relaxed_close(&pair);
}
