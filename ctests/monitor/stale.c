/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * stale [FROM]: what libfabric's registration cache gives out after a change of memory. For each change: registers, closes, changes,
 * registers again, writes to the memory, and has the device read it by the region's key. Asserts nothing: prints a line
 * for each change, "NAME|RESULT|AGAIN", of which RESULT is
 *
 *   fresh   another key, and the device reads what was written
 *   hit     the key of before, and the device reads what was written
 *   STALE   the device reads something else: the region is of pages that the process has no more
 *
 * and AGAIN the same for one more registration without a change. "NAME|-|REASON" where the kernel has no such change.
 * Then "done|done|". A change may stop the process for good: "stale FROM" begins with the change of that number.
 */
#include "cached.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { PAGES = 4, LENGTH = PAGES * PAGE };
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
#define READ_WRITE (PROT_READ | PROT_WRITE)

static struct fid_domain *domain, *other_domain;
static struct pair pair;
static struct ibv_mr *seen_mr;
static char *seen;
static int file = -1;

/* The same calls past the C library. */
static void *bare_mmap(void *where, size_t length, int flags)
{
	return (void *)syscall(SYS_mmap, where, length, READ_WRITE, flags, -1, 0);
}

static char *anonymous(void)
{
	/* On its own: neighbours of the same kind would become one mapping with it. */
	char *around = mmap(NULL, LENGTH + 2 * PAGE, PROT_NONE, ANONYMOUS, -1, 0);

	must(around != MAP_FAILED);
	must(mmap(around + PAGE, LENGTH, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == around + PAGE);
	return around + PAGE;
}

static char *of_file(void)
{
	char *memory;

	if (file >= 0)
		close(file);
	file = memfd_create("stale", 0);
	must(file >= 0 && ftruncate(file, LENGTH) == 0);
	memory = mmap(NULL, LENGTH, READ_WRITE, MAP_SHARED, file, 0);
	must(memory != MAP_FAILED);
	return memory;
}

static char *of_segment(void)
{
	int id = shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | 0600);
	char *memory = id < 0 ? (void *)-1 : shmat(id, NULL, 0);

	must(memory != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
	return memory;
}

/* The changes. Each returns 0, or -1 where there is no such thing. */
static int nothing(char *memory)
{
	(void)memory;
	return 0;
}

static int unmap(char *memory)
{
	must(munmap(memory, LENGTH) == 0);
	must(mmap(memory, LENGTH, READ_WRITE, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	return 0;
}

static int unmap_bare(char *memory)
{
	must(syscall(SYS_munmap, memory, LENGTH) == 0);
	must(bare_mmap(memory, LENGTH, ANONYMOUS | MAP_FIXED_NOREPLACE) == memory);
	return 0;
}

static int unmap_bare_other_domain(char *memory)
{
	must(unmap_bare(memory) == 0);
	must(fi_close(&reg(other_domain, memory, LENGTH)->fid) == 0);
	return 0;
}

static int map_over(char *memory)
{
	must(mmap(memory, LENGTH, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == memory);
	return 0;
}

static int map_over_one_page_bare(char *memory)
{
	must(bare_mmap(memory + PAGE, PAGE, ANONYMOUS | MAP_FIXED) == memory + PAGE);
	return 0;
}

static int move_onto(char *memory)
{
	char *from = mmap(NULL, LENGTH, READ_WRITE, ANONYMOUS | MAP_POPULATE, -1, 0);

	must(from != MAP_FAILED);
	must(mremap(from, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, memory) == memory);
	return 0;
}

static int move_away(char *memory)
{
	must(mremap(memory, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, anonymous()) != MAP_FAILED);
	must(mmap(memory, LENGTH, READ_WRITE, ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	return 0;
}

static int dontneed(char *memory)
{
	return madvise(memory, LENGTH, MADV_DONTNEED);
}

static int dontneed_bare(char *memory)
{
	return syscall(SYS_madvise, memory, LENGTH, MADV_DONTNEED);
}

static int dontneed_locked(char *memory)
{
	return madvise(memory, LENGTH, MADV_DONTNEED_LOCKED);
}

static int remove_by_other(char *memory)
{
	char *other = mmap(NULL, LENGTH, READ_WRITE, MAP_SHARED, file, 0);

	(void)memory;
	must(other != MAP_FAILED);
	must(madvise(other, LENGTH, MADV_REMOVE) == 0);
	must(munmap(other, LENGTH) == 0);
	return 0;
}

static int punch_hole(char *memory)
{
	(void)memory;
	return fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, LENGTH);
}

static int truncate_and_grow(char *memory)
{
	(void)memory;
	must(ftruncate(file, 0) == 0);
	return ftruncate(file, LENGTH);
}

static int attach_other(char *memory)
{
	int id = shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | 0600);

	must(id >= 0 && shmdt(memory) == 0);
	must(shmat(id, memory, 0) == memory);
	return shmctl(id, IPC_RMID, NULL);
}

static int protect(char *memory)
{
	must(mprotect(memory, LENGTH, PROT_READ) == 0);
	return mprotect(memory, LENGTH, READ_WRITE);
}

static int page_out(char *memory)
{
	return madvise(memory, LENGTH, MADV_PAGEOUT);
}

static int fork_and_write(char *memory)
{
	pid_t child = fork();

	must(child >= 0);
	if (!child) {
		memory[0]++;
		_exit(0);
	}
	must(waitpid(child, NULL, 0) == child);
	return 0;
}

static const struct change {
	const char *name;
	char *(*memory)(void);
	int (*make)(char *memory);
} changes[] = {
	{ "nothing", anonymous, nothing },
	{ "`munmap`, `mmap`", anonymous, unmap },
	{ "`mmap` with `MAP_FIXED` over it", anonymous, map_over },
	{ "`madvise` with `MADV_DONTNEED`", anonymous, dontneed },
	{ "`mremap` away, `mmap`", anonymous, move_away },
	{ "`munmap`, `mmap` by bare system calls", anonymous, unmap_bare },
	{ "the same, and another domain registers first", anonymous, unmap_bare_other_domain },
	{ "`mmap` over one page by a bare system call", anonymous, map_over_one_page_bare },
	{ "`MADV_DONTNEED` by a bare system call", anonymous, dontneed_bare },
	{ "`mremap` with `MREMAP_FIXED` onto it", anonymous, move_onto },
	{ "`madvise` with `MADV_DONTNEED_LOCKED`", anonymous, dontneed_locked },
	{ "`MADV_REMOVE` through another mapping", of_file, remove_by_other },
	{ "`fallocate` with `FALLOC_FL_PUNCH_HOLE`", of_file, punch_hole },
	{ "`shmdt`, `shmat` of another segment", of_segment, attach_other },
	{ "`mprotect` to read-only and back", anonymous, protect },
	{ "`madvise` with `MADV_PAGEOUT`", anonymous, page_out },
	{ "`fork`, and the child writes", anonymous, fork_and_write },
	{ "`ftruncate` to 0 and back", of_file, truncate_and_grow },
};

/* What the device reads is what was just written. */
static bool device_sees(char *memory, struct fid_mr *mr)
{
	static unsigned char mark;
	bool same = true;

	mark++;
	memset(memory, mark, LENGTH);
	memset(seen, 0, LENGTH);
	must(pair_read(&pair, seen_mr, seen, LENGTH, (uintptr_t)memory, (uint32_t)fi_mr_key(mr)) == IBV_WC_SUCCESS);
	for (int n = 0; n < LENGTH; n++)
		same &= (unsigned char)seen[n] == mark;
	return same;
}

static const char *look(char *memory, uint64_t *key)
{
	struct fid_mr *mr = reg(domain, memory, LENGTH);
	const char *result = fi_mr_key(mr) == *key ? "hit" : "fresh";

	if (!device_sees(memory, mr))
		result = "STALE";
	*key = fi_mr_key(mr);
	must(fi_close(&mr->fid) == 0);
	return result;
}

int main(int argc, char **argv)
{
	open_fabric();
	other_domain = open_domain();
	domain = open_domain();
	pair_open_in(&pair, last_pd);
	seen = pages(PAGES);
	seen_mr = ibv_reg_mr(pair.pd, seen, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	must(seen_mr);
	for (size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 0; n < sizeof(changes) / sizeof(changes[0]); n++) {
		const struct change *change = &changes[n];
		char *memory = change->memory();
		uint64_t key = 0;
		const char *result;

		/* Seen also of one that does not end. */
		printf("%s|", change->name);
		fflush(stdout);
		memset(memory, 0, LENGTH);
		must(strcmp(look(memory, &key), "STALE"));
		if (change->make(memory)) {
			printf("-|%s\n", strerror(errno));
			continue;
		}
		result = look(memory, &key);
		printf("%s|", result);
		printf("%s\n", look(memory, &key));
	}
	must(ibv_dereg_mr(seen_mr) == 0);
	pair_close(&pair);
	must(fi_close(&domain->fid) == 0 && fi_close(&other_domain->fid) == 0);
	must(fi_close(&fabric->fid) == 0);
	fi_freeinfo(info);
	puts("done|done|");
	return 0;
}
