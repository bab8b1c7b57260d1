/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Overlapping and adjoining registrations, gigabytes long: the cache never makes one region of them
 * that is longer than the request, let alone longer than 4 GiB, where some devices slow down. A
 * program that requests more than 4 GiB itself gets it, and data lands beyond 4 GiB. The memory is
 * a sealed file of 64 MiB, mapped repeatedly.
 */
#include "../lib/observe.h"

#define MIB (1024UL * 1024)
#define CHUNK (64 * MIB)
enum { LONGEST = 1024 }; /* MiB at once: soft-RoCE of some kernels accepts no more */

static struct pair pair;
static char *memory;
static size_t length;

/*
 * Sealed, and left open so that the seals are visible: only then may the cache keep it, since no
 * process can take its pages away.
 */
static void map_all(size_t bytes)
{
	int fd = memfd_create("chunk", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	length = bytes;
	must(fd >= 0 && ftruncate(fd, CHUNK) == 0);
	memory = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must(memory != MAP_FAILED);
	for (size_t at = 0; at < length; at += CHUNK)
		must(mmap(memory + at, CHUNK, PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_FIXED | (at ? 0 : MAP_POPULATE), fd,
			  0) == memory + at);
	must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0);
}

/* A registration of that many MiB from there, which stays in use or not. */
static struct ibv_mr *piece(size_t from, size_t count, int access)
{
	struct ibv_mr *mr = register_region(pair.pd, memory + from * MIB, count * MIB, access);

	if (!ok(mr != NULL, "%zu MiB from %zu", count, from))
		return NULL;
	ok(kernel_longest(pair.context) <= LONGEST * MIB, "no region is longer than the request");
	ok(access & IBV_ACCESS_REMOTE_WRITE ? lands_in(&pair, mr, memory + from * MIB + count * MIB - PAGE, PAGE) :
					      lands_by_lkey(&pair, mr, memory + from * MIB + count * MIB - PAGE, PAGE),
	   "data lands at its end");
	return mr;
}

int main(int argc, char **argv)
{
	static const struct {
		size_t from, count;
	} pieces[] = { { 0, 1024 }, { 512, 1024 }, { 1536, 1024 }, { 2560, 1024 }, { 3584, 1024 }, { 256, 64 } };
	enum { COUNT = sizeof(pieces) / sizeof(pieces[0]) };
	struct ibv_mr *regions[COUNT], *plain, *mr;
	struct rdmamr_stats before;
	int err;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE_BYTES", "64G");
	alarm(DEADLOCK);
	as_root();
	relaxed_open(&pair);
	map_all(4608 * MIB);
	/* One after the other, the last one idle when the next comes. */
	for (int n = 0; n < COUNT; n++) {
		mr = piece(pieces[n].from, pieces[n].count, IBV_ACCESS_LOCAL_WRITE);
		must(mr && deregister_region(mr) == 0);
	}
	ok(stats().idle_bytes >= 4096 * MIB, "%llu MiB are idle", (unsigned long long)stats().idle_bytes >> 20);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	/* All at once, with remote rights. */
	for (int n = 0; n < COUNT; n++) {
		regions[n] = piece(pieces[n].from, pieces[n].count, LOCAL_AND_REMOTE);
		must(regions[n]);
	}
	for (int n = 0; n < COUNT; n++)
		must(deregister_region(regions[n]) == 0);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);

	/* The cache makes a larger region if the program requests it. */
	plain = ibv_reg_mr(pair.pd, memory, length, LOCAL_AND_REMOTE);
	err = plain ? 0 : errno;
	must(!plain || ibv_dereg_mr(plain) == 0);
	before = stats();
	errno = 0;
	mr = register_region(pair.pd, memory, length, LOCAL_AND_REMOTE);
	is(mr ? 0 : errno, err, "the program's own %zu MiB: the result of a plain registration", length / MIB);
	if (mr) {
		ok(made_anew(before, stats()) && mr->length == length, "are a region of their own");
		is((long long)kernel_longest(pair.context), (long long)length, "as long as that");
		ok(lands_in(&pair, mr, memory + 4096 * MIB + 100, 1000), "data lands past 4 GiB");
		ok(lands_in(&pair, mr, memory + 4096 * MIB - 100, 200), "and across");
		is(deregister_region(mr), 0, "deregistered");
	} else {
		skip("data past 4 GiB", "this device accepts no region of that length, plain ones included");
	}
	must(ibv_flush_relaxed_mr(pair.pd) == 0 && munmap(memory, length) == 0);
	return relaxed_close(&pair);
}
