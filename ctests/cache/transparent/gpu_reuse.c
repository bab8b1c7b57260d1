/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_CACHE on memory of a GPU: a region serves again as long as CUDA says that the memory lies in
 * the allocation in which the region was made, and not after it was freed. Data decides: the device
 * (vm/hca) writes and reads the memory of the stand-in (plain/gpu_runtime.c) through each region.
 */
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include "../../lib/device.h"
#include "../../lib/gpu.h"
#include "../../lib/hca.h"
#include "../../lib/rows.h"

enum { SIZE = 8 << 20, SMALL = 4 * PAGE, USUAL = GPU_HAS_DMA_BUF | GPU_TAKES_PARTS | GPU_TAKES_WHOLES };
/* Of a row: the kernel registers the memory by its address. */
enum { BY_ADDRESS = 1 << 10 };

static const char *device;
static struct ibv_pd *pd;
static uint64_t at; /* memory of the GPU, SIZE bytes of the row's kind */
static bool makes_room, whole;

static void dereg(struct ibv_mr *mr) { is(ibv_dereg_mr(mr), 0, "deregistered"); }

/* A region whose data lies in the memory. */
static struct ibv_mr *region(uint64_t from, size_t length, int access)
{
	uint64_t last = from + length - GPU_SHOWN;
	struct ibv_mr *mr;

	errno = 77;
	mr = ibv_reg_mr(pd, (void *)from, length, access);
	ok(mr != NULL, "registered%s%s", mr ? "" : ": ", mr ? "" : rdmamr_last_reason());
	must(mr);
	/* On a device without room, errno is that of the call before the library made room. */
	ok(errno == 77 || makes_room, "errno is the program's, and not %d", errno);
	ok(mr->addr == (void *)from && mr->length == length && mr->pd == pd, "the object has the program's fields");
	ok(gpu_lands(mr->lkey, from, from, false) && gpu_lands(mr->lkey, last, last, false), "data by lkey");
	if (access & IBV_ACCESS_REMOTE_WRITE)
		ok(gpu_lands(mr->rkey, from, from, true), "data by rkey");
	return mr;
}

static long long hits_of(int times, uint64_t from, size_t length, int access)
{
	unsigned long long before = stats().hits;

	while (times-- > 0)
		dereg(region(from, length, access));
	return (long long)(stats().hits - before);
}

static long long hits(int times) { return hits_of(times, at, SIZE, LOCAL_AND_REMOTE); }
static long long regions(void) { return (long long)(stats().live + stats().idle); }

/* The kernel takes the address as it takes any other: the second registration finds whose it is. */
static void comes_back(void)
{
	int before = gpu.exports();
	bool by_address = row->flags & BY_ADDRESS;

	is(hits(5), by_address ? 2 : 3, "the first is plain, the next is kept, and the others are hits");
	is(gpu.exports() - before, by_address ? 0 : 2, "a hit exports nothing");
}

static void two_tensors(void)
{
	uint64_t others = at + SIZE / 2;
	struct ibv_mr *first, *second;

	hits_of(2, at + PAGE, SMALL, LOCAL_AND_REMOTE);
	hits_of(2, others, SMALL, LOCAL_AND_REMOTE);
	first = region(at + PAGE, SMALL, LOCAL_AND_REMOTE);
	second = region(others, SMALL, LOCAL_AND_REMOTE);
	is(first->rkey == second->rkey, whole, "remote peers reach no other tensor by a key, unless RDMAMR_GPU=whole");
	is(gpu_lands(first->rkey, others, others, true), whole, "and data agrees");
	dereg(first);
	dereg(second);
}

static void local(void)
{
	enum { TENSORS = 20 };
	struct ibv_mr *tensors[TENSORS];
	int before = gpu.exports();

	for (int n = 0; n < TENSORS; n++)
		tensors[n] = region(at + (uint64_t)n * SMALL + 100, 5000, IBV_ACCESS_LOCAL_WRITE);
	is(gpu.exports() - before, 2, "the first is plain, the second makes the region of all others");
	is(tensors[2]->lkey == tensors[1]->lkey && tensors[TENSORS - 1]->lkey == tensors[1]->lkey, true, "one key");
	ok(!gpu_lands(tensors[3]->rkey, at, at, true), "which is none for remote peers");
	for (int n = 0; n < TENSORS; n++)
		dereg(tensors[n]);
	is(hits_of(3, gpu.allocate(GPU_PLAIN, SIZE), SMALL, IBV_ACCESS_LOCAL_WRITE), 1,
	   "another allocation begins anew");
}

static void freed(void)
{
	int access = row->of ? IBV_ACCESS_LOCAL_WRITE : LOCAL_AND_REMOTE;
	bool quietly = row->value & GPU_FREES_QUIETLY;
	long long had;

	is(hits_of(4, at, SIZE, access), row->flags & BY_ADDRESS ? 1 : 2, "hits before");
	had = regions();
	gpu.free(at);
	if (!quietly)
		is(regions(), had - 1, "the region ends in the call that frees the memory");
	must(gpu.allocate(GPU_PLAIN, SIZE) == at);
	is(hits_of(1, at, SIZE, access), 0, "the old region does not serve");
	hits_of(1, at, SIZE, access);
	is(hits_of(1, at, SIZE, access), 1, "a new one does");
	if (quietly)
		is(regions(), had, "the old one has ended");
}

static void never_kept(void)
{
	at = gpu.allocate((enum gpu_kind)(uintptr_t)row->of, SIZE);
	is(hits(4), 0, "no hit");
	gpu.remap(at);
	is(hits(4), 0, "nor after other memory was mapped there");
}

/* A program of several GPUs: the memory's own context is current while the region is made. */
static void under_another_gpu(void)
{
	gpu.other(1);
	is(hits(5), 3, "the first is plain, the second is kept, and the others are hits");
	is(gpu.other(0), 1, "the other context is current afterwards");
}

/* What no GPU allows is refused, although a region is kept. */
static void unknown_flag(void)
{
	is(hits(3), 1, "a hit");
	ok(!ibv_reg_mr(pd, (void *)at, SIZE, LOCAL_AND_REMOTE | (int)0x80000000), "is refused");
}

static void changed(void)
{
	struct ibv_mr *mr;

	hits_of(2, at, SIZE, IBV_ACCESS_LOCAL_WRITE);
	mr = region(at, SMALL, IBV_ACCESS_LOCAL_WRITE);
	errno = 0;
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL_AND_REMOTE), IBV_REREG_MR_ERR_INPUT, "refused");
	is(errno, EINVAL, "with libibverbs' errno");
	ok(!gpu_lands(mr->rkey, at, at, true), "it has no remote access");
	dereg(mr);
}

static void domain_ends(void)
{
	is(hits(3), 1, "a hit");
	is(ibv_dealloc_pd(pd), 0, "the domain is deallocated");
	is((long long)stats().idle, 0, "nothing is idle");
}

static void window_is_full(void)
{
	is(hits(3), 1, "a hit");
	must(hca_run(device, "fail", "reg_dmabuf_mr 28 1") == 0);
	makes_room = true;
	hits_of(1, at + PAGE, SMALL, LOCAL_AND_REMOTE);
	is((long long)stats().idle, 0, "nothing is idle");
}

static int in_child(void)
{
	unsigned long long before = stats().hits;
	struct ibv_mr *mr = ibv_reg_mr(pd, (void *)at, SIZE, LOCAL_AND_REMOTE);

	return !mr || ibv_dereg_mr(mr) || stats().hits != before;
}

static void child(void)
{
	is(hits(4), 2, "hits");
	is(in_forked(in_child), 0, "registers plainly");
	/* The fork may take half a second: then the region has ended by age. */
	ok(comes(hits(1)), "a hit afterwards");
}

static void ends_by_age(void)
{
	is(hits(3), 1, "a hit");
	is((long long)stats().idle, 1, "idle");
	ok(comes(stats().idle == 0), "ended");
}

/* How often the memory was allocated. It changes under the lock. */
static _Atomic uint64_t generation;
static _Atomic long registrations;
static _Atomic bool is_over;
static pthread_mutex_t allocates = PTHREAD_MUTEX_INITIALIZER;

static void *frees_and_allocates(void *unused)
{
	while (!is_over) {
		pthread_mutex_lock(&allocates);
		gpu.free(at);
		must(gpu.allocate(GPU_PLAIN, SMALL) == at);
		generation++;
		pthread_mutex_unlock(&allocates);
		/* From no time at all to that of some registrations, however long they take. */
		for (long until = registrations + (generation % 4 ? rand() % 8 : 0); registrations < until && !is_over;)
			usleep((useconds_t)(rand() % 100));
	}
	return unused;
}

static void race(void)
{
	long rounds = row->flags & BY_ADDRESS ? 500 : 1500, checked = 0, stale = 0, refused = 0;
	pthread_t thread;

	at = gpu.allocate(GPU_PLAIN, SMALL);
	thread = must_start(frees_and_allocates, NULL);
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
		must(!mr || ibv_dereg_mr(mr) == 0);
		registrations++;
	}
	is_over = true;
	must_join(thread);
	is(stale, 0, "no registration of unchanged memory is of memory that was freed");
	is(refused, 0, "none fails");
	ok(checked > rounds / 10 && stats().hits > 0, "%ld of %ld rounds were checked, %ld hits", checked,
	   rounds, (long)stats().hits);
}

/* As with the module nvidia_peermem, which the library looks for. */
static void load_peermem(void)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/sys/module", "tmpfs", 0, NULL) ||
		    mkdir("/sys/module/nvidia_peermem", 0700))
		skip_all("no mount namespace");
}

static void around(void)
{
	int rules = USUAL | (int)row->value;

	whole = getenv("RDMAMR_GPU");
	device = gpu_begin();
	if (row->flags & BY_ADDRESS) {
		load_peermem();
		rules |= GPU_BY_ADDRESS;
	}
	pd = domain_of_device();
	gpu.rules(rules);
	at = gpu.allocate(GPU_PLAIN, SIZE);
	row->act();
}

#define ADDRESS .flags = BY_ADDRESS
#define ALL(name, act) \
	{ name, act }, { name ", by address", act, ADDRESS }, \
	{ name ", RDMAMR_GPU=whole", act, .settings = "RDMAMR_GPU=whole" }
#define KIND(kind) .of = (const void *)(kind)

static const struct row rows[] = {
	ALL("a region comes back", comes_back),
	ALL("two tensors of an allocation", two_tensors),
	{ "tensors without remote access share a region of their allocation", local },
	{ "an address that was freed and allocated again, remote access", freed },
	{ "an address that was freed and allocated again, local access", freed, .of = "local" },
	{ "the same by a driver that unmaps nothing", freed, GPU_FREES_QUIETLY },
	{ "an address that was freed and allocated again, by address", freed, ADDRESS },
	{ "the same by a driver that unmaps nothing, by address", freed, GPU_FREES_QUIETLY, ADDRESS },
	{ "memory of a pool is never kept", never_kept, KIND(GPU_POOL) },
	{ "memory of cuMemMap is never kept", never_kept, KIND(GPU_VMM) },
	{ "memory of a pool, by address, is never kept", never_kept, KIND(GPU_POOL), ADDRESS },
	{ "memory of cuMemMap, by address, is never kept", never_kept, KIND(GPU_VMM), ADDRESS },
	{ "managed memory, by address, is never kept", never_kept, KIND(GPU_MANAGED), ADDRESS },
	{ "under a context of another GPU", under_another_gpu, GPU_NEEDS_CONTEXT },
	{ "a flag that the kernel does not know", unknown_flag },
	{ "a region in use cannot be changed, as no region of a dma-buf can", changed },
	{ "idle regions end with their domain", domain_ends },
	{ "idle regions end where the GPU's window is full", window_is_full },
	{ "a child", child },
	{ "an idle region ends after half a second, whatever RDMAMR_CACHE_LINGER says", ends_by_age },
	{ "a thread frees and allocates, another registers", race },
	{ "the same by a driver that unmaps nothing, in a race", race, GPU_FREES_QUIETLY },
	{ "a thread frees and allocates, another registers, by address", race, ADDRESS },
	{ "the same by a driver that unmaps nothing, in a race, by address", race, GPU_FREES_QUIETLY, ADDRESS },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, around)
