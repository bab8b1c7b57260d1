/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Under RDMAMR_CACHE each plain registration that the cache does not serve is counted with the
 * reason. If the cache can serve none, since the program has called ibv_fork_init and the kernel does
 * not make it needless, RDMAMR_LOG=info says so once; if it serves, RDMAMR_LOG=info says once what the
 * program gives up.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <fcntl.h>
#include "../../lib/device.h"
#include "../../lib/stub_device.h"

enum { TIMES = 4 };
static char *memory;

static void registers(int access, uint64_t iova)
{
	for (int n = 0; n < TIMES; n++) {
		struct ibv_mr *mr = ibv_reg_mr_iova(stub_pd(), memory, PAGE, iova, access);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

static const char *const without_effect = "RDMAMR_CACHE=all is without effect";

/* The number of times that the library has said this. */
static int said(int file, const char *words)
{
	static char text[1 << 16];
	ssize_t length = pread(file, text, sizeof(text) - 1, 0);
	int count = 0;

	must(length >= 0);
	for (char *at = text; (at = strstr(at, words)); at++)
		count++;
	return count;
}

static void without_fork(int file)
{
	struct rdmamr_stats before = stats(), after;

	registers(LOCAL_AND_REMOTE, (uintptr_t)memory);
	after = stats();
	ok(after.hits - before.hits == TIMES - 2 && after.misses - before.misses == 1,
	   "the cache serves a plain registration whose range was registered before");
	is((long long)(after.bypassed_first - before.bypassed_first), 1, "counted: a range that is registered for the first time");
	is(said(file, "the cache reuses regions, remotely accessible ones included: a key stays valid after ibv_dereg_mr for 600 s"),
	   1, "RDMAMR_LOG=info says once what the program gives up");
	registers(LOCAL_AND_REMOTE, (uintptr_t)memory + PAGE);
	is((long long)(stats().bypassed_address - before.bypassed_address), TIMES, "counted: an iova of its own");
	registers(LOCAL_AND_REMOTE | IBV_ACCESS_MW_BIND, (uintptr_t)memory);
	is((long long)(stats().bypassed_access - before.bypassed_access), TIMES, "counted: access for windows");
	after = stats();
	ok(after.hits - before.hits == TIMES - 2 && after.bypassed_first - before.bypassed_first == 1 &&
	   after.bypassed_fork == before.bypassed_fork, "and nothing else");
	is(said(file, without_effect), 0, "and not that RDMAMR_CACHE is without effect");
}

static void with_fork(int file)
{
	registers(LOCAL_AND_REMOTE, (uintptr_t)memory);
	is((long long)stats().bypassed_fork, TIMES - 1, "counted: ibv_fork_init was called, once the range is registered again");
	is((long long)(stats().hits + stats().misses), 0, "the cache serves no plain call");
	is(said(file, without_effect), 1, "RDMAMR_LOG=info says once that RDMAMR_CACHE is without effect");
	for (int n = 0; n < TIMES; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
	is((long long)stats().bypassed_fork, 2 * TIMES - 1, "counted: relaxed calls get regions of their own");
	is((long long)(stats().hits + stats().misses), 0, "the cache serves no relaxed call");
	is(stub_registered(), stub_deregistered(), "each region has ended with its user");
	is(userfaultfds(NULL), 0, "and the cache has not started");
}

int main(int argc, char **argv)
{
	int file = memfd_create("standard error", MFD_CLOEXEC);
	const char *why;

	if (!getenv("RDMAMR_CACHE")) {
		must(setenv("RDMAMR_CACHE", "all", 1) == 0 && setenv("RDMAMR_LOG", "info", 1) == 0);
		must(setenv("RDMAMR_CACHE_LINGER", "600", 1) == 0);
		execv("/proc/self/exe", argv);
		must(!"execv");
	}
	must(file >= 0);
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	must(memory != MAP_FAILED);
	if (argc == 1) {
		int own = dup(STDERR_FILENO);
		char count[12];

		must(own >= 0 && dup2(file, STDERR_FILENO) == STDERR_FILENO);
		without_fork(file);
		must(dup2(own, STDERR_FILENO) == STDERR_FILENO);
		is(ibv_flush_relaxed_mr(stub_pd()), 0, "flushed");
		/*
		 * The library asks once whether children get registered memory: the rest needs a new
		 * process.
		 */
		snprintf(count, sizeof(count), "%d", tap_count);
		execl("/proc/self/exe", argv[0], count, NULL);
		must(!"execl");
	}
	tap_count = atoi(argv[1]);
	must(dup2(file, STDERR_FILENO) == STDERR_FILENO && ibv_fork_init() == 0);
	/* Where the kernel's RDMA is loaded, it says that it copies registered memory for children. */
	if (ibv_is_fork_initialized() == IBV_FORK_UNNEEDED)
		without_fork(file);
	else
		with_fork(file);
	return done_testing();
}
