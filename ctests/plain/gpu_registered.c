/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory of a GPU, which the kernel refuses by its address: the library registers it as a dma-buf, and
 * data goes through the region by its keys. If that cannot be done, errno stays the kernel's, and the
 * reason names the step.
 *
 * The device is one of vm/hca, whose kernel really maps dma-bufs. The GPU's runtime is a stand-in
 * (gpu_runtime.c), named by CHECK_GPU.
 */
#include <sys/resource.h>
#include "../lib/gpu.h"
#include "../lib/hca.h"
#include "../lib/reuse.h"

enum { SIZE = 8 << 20, HANDLE = 2 << 20 };
enum { USUAL = GPU_HAS_DMA_BUF | GPU_TAKES_PARTS | GPU_TAKES_WHOLES };

static const char *device;
static struct ibv_pd *pd;

/* A case: a region at that address has its fields, moves data at both ends, and ends. */
static void good(const char *name, struct ibv_mr *mr, uint64_t address, size_t length, uint64_t iova,
		 int (*dereg)(struct ibv_mr *))
{
	int err = errno;

	case_begin("%s", name);
	if (ok(mr != NULL, "registered: %s", rdmamr_last_reason())) {
		/* On a full device errno is that of the call before the library made room. */
		ok(err == 77 || strstr(name, "on a device whose keys"), "errno is the program's, and not %d", err);
		ok(mr->addr == (void *)address && mr->length == length && mr->pd == pd,
		   "the object has the program's fields");
		ok(gpu_lands(mr->lkey, iova, address, false) &&
		   gpu_lands(mr->lkey, iova + length - GPU_SHOWN, address + length - GPU_SHOWN, false), "data by lkey");
		ok(gpu_lands(mr->rkey, iova, address, true), "data by rkey");
		is(dereg(mr), 0, "deregistered");
	}
	case_end();
}

/* What a registration returns, which leaves errno alone. */
#define BY(call) (errno = 77, (call))
static struct ibv_mr *registered(uint64_t address, size_t length)
{
	return BY(ibv_reg_mr(pd, (void *)address, length, LOCAL_AND_REMOTE));
}

static void is_good(const char *name, uint64_t address, size_t length)
{
	good(name, registered(address, length), address, length, address, ibv_dereg_mr);
}

static void refused(const char *name, uint64_t address, size_t length, const char *words)
{
	struct ibv_mr *mr = registered(address, length);

	is(mr ? 0 : errno, EFAULT, "%s: the errno is the kernel's", name);
	ok(strstr(rdmamr_last_reason(), words) != NULL, "%s: %s", name, rdmamr_last_reason());
}

static void each_call(uint64_t at)
{
	int (*dereg)(struct ibv_mr *) = of_libibverbs("ibv_dereg_mr", "IBVERBS_1.1");
	const int hints = IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING | 1 << 28;
	uint64_t iova = 0x40000000000;

	is_good("ibv_reg_mr", at, SIZE);
	is_good("a part of an allocation", at + PAGE, 3 * PAGE);
	is_good("a part that is not aligned", at + 100, 5000);
	good("ibv_reg_mr_iova", BY(ibv_reg_mr_iova(pd, (void *)at, SIZE, iova, LOCAL_AND_REMOTE)), at, SIZE,
	     iova, ibv_dereg_mr);
	good("ibv_reg_mr_iova2", BY(ibv_reg_mr_iova2(pd, (void *)(at + PAGE), PAGE, iova, LOCAL_AND_REMOTE)),
	     at + PAGE, PAGE, iova, ibv_dereg_mr);
	good("its end by a handle of libibverbs", registered(at, SIZE), at, SIZE, at, dereg);
	good("ibv_reg_mr_relaxed", BY(ibv_reg_mr_relaxed(pd, (void *)at, SIZE, LOCAL_AND_REMOTE)), at, SIZE,
	     at, ibv_dereg_mr_relaxed);
	for (int time = 0; time < 4; time++)
		is_good("again", at, SIZE);
	if (!gpu.is_cuda)
		is((long long)stats().hits, 0, "nothing tells its allocations apart: it is never reused");
	/* The kernel refuses them for a dma-buf. */
	good("with access flags that are hints", BY(ibv_reg_mr(pd, (void *)at, SIZE, LOCAL_AND_REMOTE | hints)),
	     at, SIZE, at, ibv_dereg_mr);
}

static void *in_a_thread(void *at)
{
	is_good("from a second thread", (uintptr_t)at, SIZE);
	return NULL;
}

static void as_the_driver_likes(uint64_t at)
{
	int before;

	gpu.rules(USUAL & ~GPU_TAKES_PARTS);
	is_good("a part, where the driver exports whole allocations", at + 3 * PAGE, 2 * PAGE);
	gpu.rules(USUAL & ~GPU_TAKES_WHOLES);
	is_good("all, where it exports parts", at, SIZE);
	if (gpu.is_cuda) {
		gpu.rules(USUAL | GPU_NEEDS_CONTEXT);
		is_good("without a current context", at, SIZE);
		in_thread(in_a_thread, (void *)at);
		gpu.rules((USUAL & ~GPU_TAKES_PARTS) | GPU_NEEDS_CONTEXT);
		gpu.other(1);
		is_good("under a context of another GPU", at + PAGE, PAGE);
		is(gpu.other(0), 1, "which is current afterwards");
		is(gpu.retained(), 0, "no context stays retained");
		gpu.rules(USUAL | GPU_IS_COHERENT);
		before = gpu.exports_by_pcie();
		is_good("on a coherent platform", at, SIZE);
		is(gpu.exports_by_pcie() - before, 1, "there it is mapped by PCIe");
		must(hca_run(device, "fail", "reg_dmabuf_mr 524 1") == 0);
		is_good("on a coherent platform, by a device that refuses that", at, SIZE);
		is(gpu.exports_by_pcie() - before, 2, "it has been asked by PCIe first");
		gpu.rules(USUAL | GPU_IS_COHERENT | GPU_REFUSES_PCIE);
		is_good("on a coherent platform with an older driver", at, SIZE);
		is(gpu.exports_by_pcie() - before, 2, "there it is mapped as the driver likes");
	}
	gpu.rules(USUAL);
}

/* The kernel checks the limit of locked memory before it looks at the pages. */
static void beyond_a_limit(uint64_t at)
{
	must(hca_run(device, "fail", "reg_mr 12 1") == 0); /* ENOMEM */
	is_good("where the limit of locked memory is too low", at, SIZE);
	must(hca_run(device, "fail", "reg_mr 1 1") == 0); /* EPERM */
	is_good("where no memory may be locked", at, SIZE);
}

static void refusals(uint64_t at)
{
	char words[160];
	struct rlimit files;
	uint64_t other;
	int before, asked_again;

	gpu.rules(USUAL & ~GPU_HAS_DMA_BUF);
	refused("no dma-buf", at, SIZE, gpu.is_cuda ? "it has no dma-buf: the GPU's driver exports no dma-buf" :
		"hsa_amd_portable_export_dmabuf exports no dma-buf of it (error 4097)");
	gpu.rules(USUAL);
	other = gpu.allocate(GPU_PLAIN, SIZE);
	must(getrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, files.rlim_max }) == 0);
	refused("no free descriptor", other, SIZE, "): RLIMIT_NOFILE is reached");
	must(setrlimit(RLIMIT_NOFILE, &files) == 0);
	gpu.free(other);
	if (gpu.is_cuda) {
		other = gpu.allocate(GPU_MANAGED, SIZE);
		refused("managed memory", other, SIZE, "managed memory (cudaMallocManaged)");
		other = gpu.allocate(GPU_INCAPABLE, SIZE);
		refused("memory of cuMemCreate", other, SIZE, "gpuDirectRDMACapable");
		other = gpu.allocate(GPU_TWO_HANDLES, SIZE);
		snprintf(words, sizeof(words), "another allocation handle begins at %#lx", (long)other + HANDLE);
		refused("two handles", other + PAGE, HANDLE, words);
		is_good("memory of one of two handles", other + HANDLE, HANDLE);
		refused("past its end", at, SIZE + PAGE, "the GPU's memory ends at");
	} else {
		other = gpu.allocate(GPU_VMM, SIZE);
		refused("memory of hipMemCreate", other, SIZE, "hsa_amd_portable_export_dmabuf exports no dma-buf of it (error 4099)");
		other = gpu.allocate(GPU_MANAGED, SIZE);
		before = gpu.exports();
		refused("memory of hipMallocManaged", other, SIZE, "is not accessible (PROT_NONE)");
		is(gpu.exports() - before, 0, "it is not exported, since its pages move");
	}
	must(hca_run(device, "fail", "reg_dmabuf_mr 95 1") == 0);
	refused("a provider without dma-bufs", at, SIZE, "its dma-buf is refused with EOPNOTSUPP: the device's provider or the kernel");
	/* With the cache the library ends idle regions and asks again. */
	must(hca_run(device, "fail", "reg_dmabuf_mr 12 100") == 0);
	asked_again = stats().idle != 0;
	refused("no room", at, SIZE, "its dma-buf is refused with ENOMEM: the GPU's BAR");
	must(hca_run(device, "fail", "reg_dmabuf_mr 12 0") == 0);
	before = gpu.exports();
	refused("memory of no GPU", 0x1000, PAGE, "nothing is mapped at 0x1000");
	is(gpu.exports() - before, 0, "memory of no GPU is not exported");
	errno = 0;
	ok(!ibv_reg_mr(pd, (void *)at, PAGE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL, "a wrong access flag stays EINVAL");
	/* With idle regions one of them was asked for twice. */
	is((long long)stats().reg_gpu_failed - asked_again, gpu.is_cuda ? 8 : 5, "the statistics count those that failed");
}

/* Idle regions of the cache end if they hold the keys that a dma-buf needs. */
static void on_a_full_device(uint64_t at)
{
	enum { KEYS = 8 };
	char *memory = pages(2 * KEYS);

	for (int n = 0; n < 3 * KEYS; n++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory + n % KEYS * 2 * PAGE, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
	must(hca_run(device, "set", "max_mr 8") == 0);
	is_good("on a device whose keys idle regions hold", at, SIZE);
	must(hca_run(device, "set", "max_mr 65536") == 0);
}

int main(void)
{
	const char *setting = getenv("RDMAMR_GPU");
	uint64_t at;

	device = gpu_begin();
	pd = domain_of_device();
	at = gpu.allocate(GPU_PLAIN, SIZE);
	must(at);
	if (!rdmamr_last_reason) {
		ok(!registered(at, SIZE) && errno == EFAULT, "without the library the kernel refuses it with EFAULT");
		return done_testing();
	}
	if (setting && !strcmp(setting, "off")) {
		refused("switched off", at, SIZE, "RDMAMR_GPU=off keeps it from being registered as a dma-buf");
		is(gpu.exports(), 0, "nothing is exported");
		return done_testing();
	}
	each_call(at);
	is_good("memory of a pool", at, SIZE);
	if (gpu.is_cuda) {
		at = gpu.allocate(GPU_VMM, SIZE);
		is_good("memory of cuMemCreate", at, SIZE);
	}
	as_the_driver_likes(at);
	beyond_a_limit(at);
	refusals(at);
	on_a_full_device(at);
	ok(stats().reg_gpu > 10 && stats().live == 0, "the statistics count %llu registrations", (unsigned long long)stats().reg_gpu);
	return done_testing();
}
