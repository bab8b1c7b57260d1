/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cache reuses no region of a file, sealed or not, so the program can cut a file and exchange
 * its pages as it likes. Nothing else is affected: regions of other memory are reused.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <fcntl.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { SIZE = 4 * PAGE, ROUNDS = 50, REGIONS = 50 };

static struct ibv_mr *reg(void *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, SIZE, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

static bool lands(void *memory)
{
	struct ibv_mr *mr = reg(memory);
	bool good = stub_lands(mr);

	must(ibv_dereg_mr_relaxed(mr) == 0);
	return good;
}

static int file(int seals)
{
	int fd = memfd_create("file", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0 && ftruncate(fd, SIZE) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static char *map(int fd, int flags)
{
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);

	must(memory != MAP_FAILED);
	return memory;
}

/* No process can cut the file, but the cache does not look at that. */
static void sealed(void)
{
	int fd = file(0), stale = 0;
	char *memory = map(fd, MAP_SHARED);
	struct rdmamr_stats before;

	must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0);
	before = stats();
	for (int round = 0; round < ROUNDS; round++)
		stale += !lands(memory);
	is(stale, 0, "a sealed memfd: data lands");
	is((long long)(stats().hits - before.hits), 0, "a sealed memfd: no region is reused");
	must(munmap(memory, SIZE) == 0 && close(fd) == 0);
}

/* A file without seals. */
static void exchanged(void)
{
	int fd = file(0), stale = 0;
	char *memory = map(fd, MAP_SHARED);

	for (int round = 0; round < ROUNDS; round++) {
		stale += !lands(memory);
		stale += !lands(memory);
		must(syscall(SYS_remap_file_pages, memory, (long)PAGE, 0L, (long)(1 + round % 3), 0L) == 0);
		stale += !lands(memory);
	}
	is(stale, 0, "a memfd, its pages exchanged by a raw remap_file_pages: data lands in the current page");
	must(munmap(memory, SIZE) == 0 && close(fd) == 0);
}

/* Private mappings lose their copies too. */
static void cut(const char *kind, int flags)
{
	int fd = file(0), stale = 0;
	char *memory = map(fd, flags);

	for (int round = 0; round < ROUNDS; round++) {
		stale += !lands(memory);
		stale += !lands(memory);
		must(syscall(SYS_ftruncate, fd, 0L) == 0 && syscall(SYS_ftruncate, fd, (long)SIZE) == 0);
		stale += !lands(memory);
	}
	is(stale, 0, "a %s mapping of a memfd, cut by raw system calls: data lands in the current page", kind);
	must(munmap(memory, SIZE) == 0 && close(fd) == 0);
}

/* Regions that were registered once, so that the cache has not asked about their memory yet. */
static void elsewhere(void)
{
	static char *memory[REGIONS];
	struct rdmamr_stats before;
	int fd = file(0);

	for (int n = 0; n < REGIONS; n++) {
		memory[n] = pages(SIZE / PAGE);
		must(lands(memory[n]));
	}
	before = stats();
	must(ftruncate(fd, 0) == 0 && ftruncate(fd, SIZE) == 0);
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0);
	for (int n = 0; n < REGIONS; n++)
		must(lands(memory[n]));
	is((long long)(stats().hits - before.hits), REGIONS,
	   "a file is cut and a hole punched into it: %d regions elsewhere are reused", REGIONS);
	must(close(fd) == 0);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	must(lands(pages(SIZE / PAGE)));
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	elsewhere();
	sealed();
	exchanged();
	cut("shared", MAP_SHARED);
	cut("private", MAP_PRIVATE);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(stub_registered() - stub_deregistered(), 0, "the device has no region left");
	return done_testing();
}
