/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory of a real NVIDIA GPU, by its driver. The RDMA device is the stand-in, to which no data moves. */
#include <dlfcn.h>
#include "../lib/device.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"

enum { MIB = 1 << 20, SIZE = 8 * MIB, HANDLE = 2 * MIB };

/* Of cuda.h. */
typedef unsigned long long address;
struct location { int type, id; };
struct properties {
	int type, handle_types;
	struct location location;
	void *windows;
	struct { unsigned char compression, gpu_direct_rdma; unsigned short usage; unsigned char rest[4]; } flags;
};
struct access { struct location location; int flags; };
enum { DEVICE_LOCATION = 1, PINNED = 1, READ_WRITE = 3, GLOBAL = 1 };

static struct {
	int (*init)(unsigned), (*device_get)(int *, int), (*primary)(void **, int), (*set_current)(void *);
	int (*driver_version)(int *), (*device_name)(char *, int, int), (*device_attribute)(int *, int, int);
	int (*create_context)(void **, unsigned, int), (*alloc)(address *, size_t), (*free)(address);
	int (*managed)(address *, size_t, unsigned), (*from_pool)(address *, size_t, void *), (*wait)(void);
	int (*host)(void **, size_t, unsigned);
	int (*reserve)(address *, size_t, size_t, address, unsigned long long);
	int (*create)(address *, size_t, const struct properties *, unsigned long long);
	int (*map)(address, size_t, size_t, address, unsigned long long);
	int (*set_access)(address, size_t, const struct access *, size_t);
	int (*attribute)(void *, int, address), (*memory)(size_t *, size_t *), (*unmap)(address, size_t), (*free_to_pool)(address, void *);
} cuda;

static const char *open_gpu(void **context)
{
	static const struct { void *at; const char *name; } calls[] = {
		{ &cuda.init, "cuInit" }, { &cuda.device_get, "cuDeviceGet" }, { &cuda.device_name, "cuDeviceGetName" },
		{ &cuda.device_attribute, "cuDeviceGetAttribute" }, { &cuda.driver_version, "cuDriverGetVersion" },
		{ &cuda.primary, "cuDevicePrimaryCtxRetain" }, { &cuda.set_current, "cuCtxSetCurrent" },
		{ &cuda.create_context, "cuCtxCreate_v2" }, { &cuda.alloc, "cuMemAlloc_v2" }, { &cuda.free, "cuMemFree_v2" },
		{ &cuda.managed, "cuMemAllocManaged" }, { &cuda.from_pool, "cuMemAllocAsync" }, { &cuda.wait, "cuCtxSynchronize" },
		{ &cuda.host, "cuMemHostAlloc" }, { &cuda.reserve, "cuMemAddressReserve" }, { &cuda.create, "cuMemCreate" },
		{ &cuda.map, "cuMemMap" }, { &cuda.set_access, "cuMemSetAccess" }, { &cuda.attribute, "cuPointerGetAttribute" },
		{ &cuda.memory, "cuMemGetInfo_v2" }, { &cuda.unmap, "cuMemUnmap" }, { &cuda.free_to_pool, "cuMemFreeAsync" },
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	static char lacks[64];
	int device;

	if (!library)
		return "no libcuda.so.1 here";
	for (size_t n = 0; n < sizeof(calls) / sizeof(*calls); n++) {
		*(void **)calls[n].at = dlsym(library, calls[n].name);
		snprintf(lacks, sizeof(lacks), "this libcuda.so.1 has no %s", calls[n].name);
		if (!*(void **)calls[n].at)
			return lacks;
	}
	if (cuda.init(0) || cuda.device_get(&device, 0) || cuda.primary(context, device) || cuda.set_current(*context))
		return "CUDA finds no GPU here";
	return NULL;
}

/* What the provider was given last. */
static struct { int count; bool is_dmabuf; long size; uint64_t offset, iova; size_t length; } given;

/* The one function of the provider. As the kernel, it wants the region inside the dma-buf. */
static void *provider(void *object, uint64_t offset, size_t length, uint64_t iova, int fd)
{
	char link[64], name[64] = "";

	if (object != stub_pd()) {
		free(object);
		return NULL; /* deregistered */
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	given.is_dmabuf = readlink(link, name, sizeof(name) - 1) > 0 && strstr(name, "dmabuf");
	given.size = (long)lseek(fd, 0, SEEK_END);
	given.offset = offset;
	given.length = length;
	given.iova = iova;
	given.count++;
	if (!given.is_dmabuf || given.size < 0 || offset + length > (uint64_t)given.size) {
		errno = EINVAL;
		return NULL;
	}
	return calloc(1, 256);
}

static struct ibv_mr *registered(address at, size_t length)
{
	errno = 77;
	return ibv_reg_mr(stub_pd(), (void *)(uintptr_t)at, length, LOCAL_AND_REMOTE);
}

/* The kernel refuses its address. Begins the case. */
static void refused_by_kernel(const char *name, address at, size_t length)
{
	case_begin("%s", name);
	ok(!stub_register(stub_pd(), (void *)(uintptr_t)at, length, LOCAL_AND_REMOTE) && errno == EFAULT,
	   "the kernel refuses its address with EFAULT");
}

static void good(const char *name, struct ibv_mr *mr, address at, size_t length, int before)
{
	is(errno, 77, "errno is the program's");
	is(given.count - before, 1, "one dma-buf was registered");
	ok(mr->addr == (void *)(uintptr_t)at && mr->length == length && mr->pd == stub_pd(), "the object has the program's fields");
	ok(given.length == length && given.iova == at, "and so has the dma-buf's region");
	is((long long)(given.offset % PAGE), (long long)(at % PAGE), "it begins where the region does in a page");
	is(ibv_dereg_mr(mr), 0, "deregistered");
	printf("# %s: %zu bytes, in a dma-buf of %ld\n", name, length, given.size);
}

/* A kind that each driver exports that exports any; with `words`, one that some refuse for that cause. */
static void exported(const char *name, address at, size_t length, const char *words)
{
	int files = entries("/proc/self/fd"), before = given.count;
	struct ibv_mr *mr;

	refused_by_kernel(name, at, length);
	mr = registered(at, length);
	if (mr)
		good(name, mr, at, length, before);
	else
		ok(words && errno == EFAULT && strstr(rdmamr_last_reason(), words), "%s", rdmamr_last_reason());
	is(entries("/proc/self/fd"), files, "no file stays open");
	case_end();
}

/* A kind that no driver exports. The reason has these words, or lacks them. */
static void refused(const char *name, address at, size_t length, const char *words, bool has)
{
	int files = entries("/proc/self/fd");

	refused_by_kernel(name, at, length);
	ok(!registered(at, length) && errno == EFAULT, "the errno is the kernel's");
	ok(*rdmamr_last_reason() && (strstr(rdmamr_last_reason(), words) != NULL) == has, "%s", rdmamr_last_reason());
	is(entries("/proc/self/fd"), files, "no file stays open");
	printf("# %s: %s\n", name, rdmamr_last_reason());
	case_end();
}

static address mapped(int handles, bool capable)
{
	struct properties wanted = { .type = PINNED, .location = { DEVICE_LOCATION, 0 }, .flags.gpu_direct_rdma = capable };
	struct access access = { wanted.location, READ_WRITE };
	address at = 0, handle = 0;

	must(cuda.reserve(&at, (size_t)handles * HANDLE, 0, 0, 0) == 0);
	for (int n = 0; n < handles; n++)
		must(cuda.create(&handle, HANDLE, &wanted, 0) == 0 &&
		     cuda.map(at + (address)n * HANDLE, HANDLE, 0, handle, 0) == 0);
	must(cuda.set_access(at, (size_t)handles * HANDLE, &access, 1) == 0);
	return at;
}

static void *in_a_thread(void *at)
{
	exported("from a thread without a context", *(address *)at, SIZE, NULL);
	return NULL;
}

/* CU_POINTER_ATTRIBUTE_BUFFER_ID */
static uint64_t number(uint64_t at)
{
	uint64_t id = 0;

	return cuda.attribute(&id, 7, at) ? 0 : id;
}

static size_t free_bytes(void)
{
	size_t left = 0, all;

	must(cuda.memory(&left, &all) == 0);
	return left;
}

/* Registers the memory so many times, each time in the allocation that is there. Returns how many were hits. */
static long long hits_of(int times, address at, size_t length, int access)
{
	unsigned long long before = stats().hits;

	while (times-- > 0) {
		unsigned long long hits = stats().hits + stats().misses;
		struct ibv_mr *mr = ibv_reg_mr(stub_pd(), (void *)(uintptr_t)at, length, access);

		must(mr);
		if (stats().hits + stats().misses > hits)
			is((long long)stub_number_of(mr->lkey), (long long)number(at), "the region is of this allocation");
		must(ibv_dereg_mr(mr) == 0);
	}
	return (long long)(stats().hits - before);
}

/* A region comes back; a freed allocation's memory is the GPU's again at once; its address is another's. */
static void reused(size_t size)
{
	enum { TIMES = 200 };
	double plain, hit, freed;
	address at, again;
	size_t left;

	case_begin("cuMemAlloc of %zu bytes", size);
	must(cuda.alloc(&at, size) == 0);
	left = free_bytes();
	plain = 1e6 * seconds_now();
	is(hits_of(1, at, size, LOCAL_AND_REMOTE), 0, "the first is plain");
	plain = 1e6 * seconds_now() - plain;
	is(hits_of(2, at, size, LOCAL_AND_REMOTE), 1, "the third is a hit");
	hit = 1e6 * seconds_now();
	hits_of(TIMES, at, size, LOCAL_AND_REMOTE);
	hit = (1e6 * seconds_now() - hit) / TIMES;
	is((long long)stats().idle, 1, "a region is idle");
	freed = 1e6 * seconds_now();
	must(cuda.free(at) == 0);
	freed = 1e6 * seconds_now() - freed;
	/* The driver unmaps memory of this size when it is freed: the region ends in that call. */
	if (size >= 64 * MIB)
		ok(free_bytes() >= left + size, "freed memory is the GPU's again: %zu MiB before, %zu after", left >> 20, free_bytes() >> 20);
	printf("# %zu bytes: plain %.1f us, a hit %.2f us, cuMemFree %.0f us; %lld regions idle after it\n", size, plain, hit, freed,
	       (long long)stats().idle);
	must(cuda.alloc(&again, size) == 0);
	if (again == at)
		is(hits_of(1, at, size, LOCAL_AND_REMOTE), 0, "the old region does not serve");
	else
		printf("# the next allocation is elsewhere\n");
	must(cuda.free(again) == 0);
	ok(comes(stats().idle == 0), "nothing stays idle");
	if (size >= HANDLE)
		ok(free_bytes() >= left + size, "and the GPU has all of its memory");
	case_end();
}

static void never_kept(void)
{
	address at;

	must(cuda.from_pool(&at, SIZE, NULL) == 0 && cuda.wait() == 0);
	as_case(is(hits_of(4, at, SIZE, LOCAL_AND_REMOTE), 0, "no hit"), "memory of a pool is not kept");
	must(cuda.free_to_pool(at, NULL) == 0 && cuda.wait() == 0);
	at = mapped(1, true);
	as_case(is(hits_of(4, at, HANDLE, LOCAL_AND_REMOTE), 0, "no hit"), "memory of cuMemCreate is not kept");
	must(cuda.unmap(at, HANDLE) == 0);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {
		4096, 64 << 10, 1 << 20, HANDLE, 3 * MIB, SIZE, 16 * MIB, 31 * MIB, 32 * MIB, 40 * MIB, 64 * MIB, 1 << 30,
	};
	const char *why = stub_open(STUB_PIN);
	address at, small[2], other;
	void *context, *second, *host;
	char gpu_name[64];
	int version, coherent, exports;
	struct ibv_mr *mr;

	continue_report();
	if (why)
		skip_all(why);
	must(rdmamr_last_reason);
	why = open_gpu(&context);
	if (why)
		skip_all(why);
	stub_provide((long (*)(void))(void *)provider);
	if (cuda.device_attribute(&exports, 124, 0) || !exports)
		skip_all("the GPU's driver exports no dma-bufs");
	must(cuda.device_name(gpu_name, sizeof(gpu_name), 0) == 0 && cuda.driver_version(&version) == 0 &&
	     cuda.device_attribute(&coherent, 100, 0) == 0);
	(void)argc;
	if (getenv("RDMAMR_CACHE")) {
		/* gpu_reuse.c has tensors that share a region, and a race, on a stand-in of the GPU. */
		stub_number = number;
		for (size_t n = 0; n < sizeof(sizes) / sizeof(*sizes); n++)
			reused(sizes[n]);
		never_kept();
		return done_testing();
	}
	printf("# %s, CUDA %d.%d, %s\n", gpu_name, version / 1000, version % 1000 / 10, coherent ? "coherent" : "not coherent");

	must(cuda.alloc(&at, SIZE) == 0);
	exported("cuMemAlloc", at, SIZE, NULL);
	exported("a part", at + PAGE, 3 * PAGE, NULL);
	exported("a part that is not aligned", at + 100, 5000, NULL);
	must(cuda.alloc(&small[0], 4096) == 0 && cuda.alloc(&small[1], 5000) == 0);
	exported("the first of two small allocations", small[0], 4096, NULL);
	exported("the second", small[1], 5000, NULL);
	in_thread(in_a_thread, &at);
	must(cuda.create_context(&second, 0, 0) == 0);
	exported("under another context of the GPU", at, SIZE, NULL);
	must(cuda.alloc(&other, SIZE) == 0 && cuda.set_current(context) == 0);
	exported("memory of another context", other, SIZE, NULL);
	must(cuda.from_pool(&other, SIZE, NULL) == 0 && cuda.wait() == 0);
	exported("cuMemAllocAsync", other, SIZE, NULL);
	exported("cuMemCreate", mapped(1, true), HANDLE, NULL);
	exported("cuMemCreate without gpuDirectRDMACapable", mapped(1, false), HANDLE, "gpuDirectRDMACapable");
	other = mapped(2, true);
	exported("the second of two handles", other + HANDLE, HANDLE, NULL);
	exported("a part of each", other + PAGE, HANDLE, "another allocation handle begins at");
	refused("past the end", at, SIZE + 4 * HANDLE, "the GPU's memory ends at", true);
	must(cuda.managed(&other, SIZE, GLOBAL) == 0);
	refused("cuMemAllocManaged", other, SIZE, "managed memory", true);
	must(cuda.free(at) == 0);
	refused("after cuMemFree", at, SIZE, "memory of a GPU", false);
	must(cuda.host(&host, SIZE, 0) == 0);
	exports = given.count;
	mr = registered((uintptr_t)host, SIZE);
	ok(mr && given.count == exports, "memory of cuMemHostAlloc is the processor's, and registered as such");
	must(!mr || ibv_dereg_mr(mr) == 0);
	go_on_with(argv, "RDMAMR_CACHE", "all");
}
