/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_CACHE on memory of a GPU: a region serves again as long as CUDA says that the memory lies in
 * the allocation in which the region was made, and not after it was freed. Data decides: the device
 * (vm/hca) writes and reads the memory of the stand-in (plain/gpu_runtime.c) through each region.
 *
 * Usage: gpu_reuse [ROUNDS]   of each race
 */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include "../../lib/device.h"
#include "../../lib/gpu.h"
#include "../../lib/hca.h"
#include "../../lib/program.h"

enum { SIZE = 8 << 20, SMALL = 4 * PAGE, USUAL = GPU_HAS_DMA_BUF | GPU_TAKES_PARTS | GPU_TAKES_WHOLES };

static const char *device;
static struct ibv_pd *pd;
static bool makes_room;
static int usual = USUAL;

/* A region whose data lies in the memory. */
static struct ibv_mr *region(uint64_t at, size_t length, int access)
{
	struct ibv_mr *mr;

	errno = 77;
	mr = ibv_reg_mr(pd, (void *)at, length, access);
	ok(mr != NULL, "registered%s%s", mr ? "" : ": ", mr ? "" : rdmamr_last_reason());
	must(mr);
	/* On a device without room, errno is that of the call before the library made room. */
	ok(errno == 77 || makes_room, "errno is the program's, and not %d", errno);
	ok(mr->addr == (void *)at && mr->length == length && mr->pd == pd, "the object has the program's fields");
	ok(gpu_lands(mr->lkey, at, at, false) && gpu_lands(mr->lkey, at + length - GPU_SHOWN, at + length - GPU_SHOWN, false),
	   "data by lkey");
	if (access & IBV_ACCESS_REMOTE_WRITE)
		ok(gpu_lands(mr->rkey, at, at, true), "data by rkey");
	return mr;
}

/* Registers the memory so many times. Returns how many were hits. */
static long long hits_of(int times, uint64_t at, size_t length, int access)
{
	unsigned long long before = stats().hits;

	while (times-- > 0)
		is(ibv_dereg_mr(region(at, length, access)), 0, "deregistered");
	return (long long)(stats().hits - before);
}

static void exact(bool whole)
{
	uint64_t at = gpu.allocate(GPU_PLAIN, SIZE);
	struct ibv_mr *first, *second;
	int before = gpu.exports();
	bool by_address = usual & GPU_BY_ADDRESS;

	case_begin("a region comes back");
	/* The kernel takes the address as it takes any other: the second registration finds whose it is. */
	is(hits_of(5, at, SIZE, LOCAL_AND_REMOTE), by_address ? 2 : 3, "the first is plain, the next is kept, and the others are hits");
	is(gpu.exports() - before, by_address ? 0 : 2, "a hit exports nothing");
	case_end();
	case_begin("two tensors of an allocation");
	hits_of(2, at + PAGE, SMALL, LOCAL_AND_REMOTE);
	hits_of(2, at + SIZE / 2, SMALL, LOCAL_AND_REMOTE);
	first = region(at + PAGE, SMALL, LOCAL_AND_REMOTE);
	second = region(at + SIZE / 2, SMALL, LOCAL_AND_REMOTE);
	is(first->rkey == second->rkey, whole, "remote peers reach no other tensor by a key, unless RDMAMR_GPU=whole");
	is(gpu_lands(first->rkey, at + SIZE / 2, at + SIZE / 2, true), whole, "and data agrees");
	is(ibv_dereg_mr(first) | ibv_dereg_mr(second), 0, "deregistered");
	case_end();
	case_begin("a region in use");
	first = region(at, SIZE, LOCAL_AND_REMOTE);
	second = region(at, SIZE, LOCAL_AND_REMOTE);
	is(first->rkey == second->rkey, whole, "two regions have two keys, unless RDMAMR_GPU=whole");
	is(ibv_dereg_mr(first) | ibv_dereg_mr(second), 0, "deregistered");
	case_end();
	gpu.free(at);
}

static void local(void)
{
	enum { TENSORS = 20 };
	struct ibv_mr *tensors[TENSORS];
	uint64_t at = gpu.allocate(GPU_PLAIN, SIZE), other = gpu.allocate(GPU_PLAIN, SIZE);
	int before = gpu.exports();

	case_begin("tensors without remote access share a region of their allocation");
	for (int n = 0; n < TENSORS; n++)
		tensors[n] = region(at + (uint64_t)n * SMALL + 100, 5000, IBV_ACCESS_LOCAL_WRITE);
	is(gpu.exports() - before, 2, "the first is plain, the second makes the region of all others");
	is(tensors[2]->lkey == tensors[1]->lkey && tensors[TENSORS - 1]->lkey == tensors[1]->lkey, true, "one key");
	ok(!gpu_lands(tensors[3]->rkey, at, at, true), "which is none for remote peers");
	for (int n = 0; n < TENSORS; n++)
		is(ibv_dereg_mr(tensors[n]), 0, "deregistered");
	is(hits_of(3, other, SMALL, IBV_ACCESS_LOCAL_WRITE), 1, "another allocation begins anew");
	case_end();
	gpu.free(at);
	gpu.free(other);
}

static void freed(const char *name, int rules, int access)
{
	uint64_t at = gpu.allocate(GPU_PLAIN, SIZE), again;
	unsigned long long ended;

	gpu.rules(usual | rules);
	case_begin("an address that was freed and allocated again, %s", name);
	is(hits_of(4, at, SIZE, access), 2, "hits before");
	ended = stats().live + stats().idle;
	gpu.free(at);
	if (!rules)
		is((long long)(stats().live + stats().idle), (long long)ended - 1, "the region ends in the call that frees the memory");
	again = gpu.allocate(GPU_PLAIN, SIZE);
	must(again == at);
	is(hits_of(1, at, SIZE, access), 0, "the old region does not serve");
	hits_of(1, at, SIZE, access);
	is(hits_of(1, at, SIZE, access), 1, "a new one does");
	if (rules)
		is((long long)(stats().live + stats().idle), (long long)ended, "the old one has ended");
	case_end();
	gpu.free(at);
	gpu.rules(usual);
}

static void never_kept(const char *name, enum gpu_kind kind)
{
	uint64_t at = gpu.allocate(kind, SIZE);

	case_begin("%s is never kept", name);
	is(hits_of(4, at, SIZE, LOCAL_AND_REMOTE), 0, "no hit");
	gpu.remap(at);
	is(hits_of(4, at, SIZE, LOCAL_AND_REMOTE), 0, "nor after other memory was mapped there");
	case_end();
	gpu.free(at);
}

/* A program of several GPUs: the memory's own context is current while the region is made. */
static void under_another_gpu(void)
{
	uint64_t at = gpu.allocate(GPU_PLAIN, SIZE);

	gpu.rules(usual | GPU_NEEDS_CONTEXT);
	gpu.other(1);
	case_begin("under a context of another GPU");
	is(hits_of(5, at, SIZE, LOCAL_AND_REMOTE), 3, "the first is plain, the second is kept, and the others are hits");
	is(gpu.other(0), 1, "the other context is current afterwards");
	case_end();
	gpu.rules(usual);
	gpu.free(at);
}

static uint64_t shared;

static int in_child(void)
{
	unsigned long long before = stats().hits;
	struct ibv_mr *mr = ibv_reg_mr(pd, (void *)shared, SIZE, LOCAL_AND_REMOTE);

	return !mr || ibv_dereg_mr(mr) || stats().hits != before;
}

/* What no GPU allows is refused, although a region is kept. */
static void refused(void)
{
	uint64_t at = gpu.allocate(GPU_PLAIN, SIZE);
	struct ibv_mr *mr;

	case_begin("a flag that the kernel does not know");
	is(hits_of(3, at, SIZE, LOCAL_AND_REMOTE), 1, "a hit");
	errno = 0;
	ok(!ibv_reg_mr(pd, (void *)at, SIZE, LOCAL_AND_REMOTE | (int)0x80000000), "is refused");
	case_end();
	case_begin("a region in use cannot be changed, as no region of a dma-buf can");
	hits_of(2, at, SIZE, IBV_ACCESS_LOCAL_WRITE);
	mr = region(at, SMALL, IBV_ACCESS_LOCAL_WRITE);
	errno = 0;
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL_AND_REMOTE), IBV_REREG_MR_ERR_INPUT, "refused");
	is(errno, EINVAL, "with libibverbs' errno");
	ok(!gpu_lands(mr->rkey, at, at, true), "it has no remote access");
	is(ibv_dereg_mr(mr), 0, "deregistered");
	case_end();
	gpu.free(at);
}

static void ends(struct ibv_context *context)
{
	uint64_t at = gpu.allocate(GPU_PLAIN, SIZE);
	struct ibv_pd *before = pd;

	case_begin("idle regions end with their domain");
	pd = ibv_alloc_pd(context);
	must(pd);
	is(hits_of(3, at, SIZE, LOCAL_AND_REMOTE), 1, "a hit");
	is(ibv_dealloc_pd(pd), 0, "the domain is deallocated");
	pd = before;
	case_end();
	case_begin("idle regions end where the GPU's window is full");
	is(hits_of(3, at, SIZE, LOCAL_AND_REMOTE), 1, "a hit");
	must(hca_run(device, "fail", "reg_dmabuf_mr 28 1") == 0);
	makes_room = true;
	hits_of(1, at + PAGE, SMALL, LOCAL_AND_REMOTE);
	makes_room = false;
	is((long long)stats().idle, 0, "nothing is idle");
	case_end();
	case_begin("a child");
	is(hits_of(3, at, SIZE, LOCAL_AND_REMOTE), 2, "hits");
	shared = at;
	is(in_forked(in_child), 0, "registers plainly");
	is(hits_of(1, at, SIZE, LOCAL_AND_REMOTE), 1, "a hit afterwards");
	case_end();
	gpu.free(at);
}

static void ends_by_age(void)
{
	uint64_t at = gpu.allocate(GPU_PLAIN, SIZE);

	case_begin("an idle region ends after half a second, whatever RDMAMR_CACHE_LINGER says");
	is(hits_of(3, at, SIZE, LOCAL_AND_REMOTE), 1, "a hit");
	is((long long)stats().idle, 1, "idle");
	ok(comes(stats().idle == 0), "ended");
	case_end();
	gpu.free(at);
}

/* How often the memory was allocated. It changes under the lock. */
static _Atomic uint64_t generation;
static _Atomic long registrations;
static _Atomic bool is_over;
static pthread_mutex_t allocates = PTHREAD_MUTEX_INITIALIZER;

static void *frees_and_allocates(void *at)
{
	while (!is_over) {
		pthread_mutex_lock(&allocates);
		gpu.free((uintptr_t)at);
		must(gpu.allocate(GPU_PLAIN, SMALL) == (uintptr_t)at);
		generation++;
		pthread_mutex_unlock(&allocates);
		/* From no time at all to that of some registrations, however long they take. */
		for (long until = registrations + (generation % 4 ? rand() % 8 : 0); registrations < until && !is_over;)
			usleep((useconds_t)(rand() % 100));
	}
	return NULL;
}

static void race(const char *name, int rules, long rounds)
{
	uint64_t at = gpu.allocate(GPU_PLAIN, SMALL);
	long checked = 0, stale = 0, refused = 0;
	unsigned long long before = stats().hits;
	pthread_t thread;

	gpu.rules(usual | rules);
	is_over = false;
	case_begin("a thread frees and allocates, another registers, %s, %ld rounds", name, rounds);
	thread = must_start(frees_and_allocates, (void *)at);
	for (long round = 0; round < rounds; round++) {
		uint64_t began = generation;
		struct ibv_mr *mr = ibv_reg_mr(pd, (void *)at, SMALL, round % 2 ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE);

		pthread_mutex_lock(&allocates);
		if (generation == began) {
			checked++;
			refused += !mr;
			stale += mr && !gpu_lands(mr->lkey, at, at, false);
		}
		pthread_mutex_unlock(&allocates);
		if (mr)
			must(ibv_dereg_mr(mr) == 0);
		registrations++;
	}
	is_over = true;
	pthread_join(thread, NULL);
	is(stale, 0, "no registration of unchanged memory is of memory that was freed");
	is(refused, 0, "none fails");
	ok(checked > rounds / 10 && stats().hits > before, "%ld rounds were checked, %llu hits", checked,
	   (unsigned long long)(stats().hits - before));
	printf("# %ld of %ld rounds checked, %llu hits\n", checked, rounds, (unsigned long long)(stats().hits - before));
	case_end();
	gpu.free(at);
	gpu.rules(usual);
}

/* The kernel registers the memory by its address, as with the module nvidia_peermem, which the library looks for. */
static void registered_by_address(long rounds)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/sys/module", "tmpfs", 0, NULL) || mkdir("/sys/module/nvidia_peermem", 0700)) {
		skip("memory that the kernel registers by its address", "no mount namespace");
		return;
	}
	usual = USUAL | GPU_BY_ADDRESS;
	gpu.rules(usual);
	exact(false);
	freed("remote access, by address", 0, LOCAL_AND_REMOTE);
	freed("by a driver that unmaps nothing, by address", GPU_FREES_QUIETLY, LOCAL_AND_REMOTE);
	never_kept("memory of a pool, by address,", GPU_POOL);
	never_kept("memory of cuMemMap, by address,", GPU_VMM);
	never_kept("managed memory, by address,", GPU_MANAGED);
	race("by address", 0, rounds / 3);
	race("by address, by a driver that unmaps nothing", GPU_FREES_QUIETLY, rounds / 3);
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1500;
	struct ibv_context *context;
	bool whole;

	continue_report();
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	whole = getenv("RDMAMR_GPU") && strcmp(getenv("RDMAMR_GPU"), "whole") == 0;
	device = gpu_begin();
	context = open_device();
	pd = ibv_alloc_pd(context);
	must(pd);
	if (getenv("CHECK_BY_ADDRESS") && !whole) {
		registered_by_address(rounds);
		go_on_with(argv, "RDMAMR_GPU", "whole");
	}
	exact(whole);
	if (whole)
		return done_testing();
	local();
	freed("remote access", 0, LOCAL_AND_REMOTE);
	freed("local access", 0, IBV_ACCESS_LOCAL_WRITE);
	freed("by a driver that unmaps nothing", GPU_FREES_QUIETLY, LOCAL_AND_REMOTE);
	never_kept("memory of a pool", GPU_POOL);
	never_kept("memory of cuMemMap", GPU_VMM);
	under_another_gpu();
	refused();
	ends(context);
	ends_by_age();
	race("by a driver that unmaps", 0, rounds);
	race("by one that unmaps nothing", GPU_FREES_QUIETLY, rounds);
	go_on_with(argv, "CHECK_BY_ADDRESS", "1");
}
