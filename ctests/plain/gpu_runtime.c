/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "gpu_runtime.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 64, HANDLE = 2 << 20, DEVICE = 3 };

#define FIRST 0x600000000000ul

static struct allocation {
	enum gpu_kind kind;
	uint64_t start, id;
	size_t size;
	int file;
	bool is_reserved;
	char *bytes;
} allocations[MOST];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_id;
static int count, rules = GPU_HAS_DMA_BUF | GPU_TAKES_PARTS | GPU_TAKES_WHOLES;
static uint64_t next = FIRST;
static int exports, by_pcie, retained;

static struct allocation *at(uint64_t address)
{
	for (int n = 0; n < count; n++)
		if (allocations[n].id && address >= allocations[n].start && address < allocations[n].start + allocations[n].size)
			return &allocations[n];
	return NULL;
}

static bool has_memory(struct allocation *made)
{
	made->file = memfd_create("a GPU's memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (made->file < 0 || ftruncate(made->file, (off_t)made->size) || fcntl(made->file, F_ADD_SEALS, F_SEAL_SHRINK))
		return false;
	made->bytes = mmap(NULL, made->size, PROT_READ | PROT_WRITE, MAP_SHARED, made->file, 0);
	made->id = ++last_id;
	/* Maps without a call that the library sees. */
	if (rules & GPU_BY_ADDRESS &&
	    syscall(SYS_mmap, made->start, made->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, made->file, 0) == -1)
		return false;
	return made->bytes != MAP_FAILED;
}

static void end_memory(struct allocation *of)
{
	close(of->file);
	munmap(of->bytes, of->size);
}

static bool reserve(struct allocation *made)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
	void *start = (void *)made->start;

	made->is_reserved = made->is_reserved || mmap(start, made->size, PROT_NONE, flags, -1, 0) == start;
	return made->is_reserved;
}

uint64_t gpu_allocate(enum gpu_kind kind, size_t size)
{
	size_t whole = (size + HANDLE - 1) / HANDLE * HANDLE;
	struct allocation *made = NULL;
	uint64_t start = 0;

	pthread_mutex_lock(&lock);
	for (int n = 0; n < count && !made; n++)
		if (!allocations[n].id && allocations[n].size == whole)
			made = &allocations[n];
	if (!made && count < MOST) {
		made = &allocations[count++];
		*made = (struct allocation){ .start = next, .size = whole };
		next += whole + HANDLE;
	}
	if (made && reserve(made) && has_memory(made)) {
		made->kind = kind;
		start = made->start;
	}
	pthread_mutex_unlock(&lock);
	return start;
}

void gpu_free(uint64_t address)
{
	struct allocation *of;

	pthread_mutex_lock(&lock);
	of = at(address);
	if (of) {
		of->id = 0;
		if (!(rules & GPU_FREES_QUIETLY))
			of->is_reserved = munmap((void *)of->start, of->size) != 0;
		end_memory(of);
	}
	pthread_mutex_unlock(&lock);
}

void gpu_remap(uint64_t address)
{
	struct allocation *of;
	uint64_t id;

	pthread_mutex_lock(&lock);
	of = at(address);
	id = of->id;
	end_memory(of);
	if (!has_memory(of))
		of->id = 0;
	else if (of->kind == GPU_MANAGED)
		of->id = id;
	pthread_mutex_unlock(&lock);
}

void *gpu_bytes(uint64_t address)
{
	struct allocation *of = at(address);

	return of ? of->bytes + (address - of->start) : NULL;
}

void gpu_rules(int wanted) { rules = wanted; }
int gpu_exports(void) { return exports; }
int gpu_exports_by_pcie(void) { return by_pcie; }
int gpu_retained(void) { return retained; } /* primary contexts, not released */

/* A dma-buf of a part of an allocation, or -1. */
static int dma_buf(const struct allocation *of, uint64_t start, size_t size)
{
	struct udmabuf_create create = {
		.memfd = (uint32_t)of->file, .flags = UDMABUF_FLAGS_CLOEXEC, .offset = start - of->start, .size = size,
	};
	int control = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), file;

	if (control < 0)
		return -1;
	file = ioctl(control, UDMABUF_CREATE, &create);
	close(control);
	exports += file >= 0;
	return file;
}

/* Whether the rules let this range be exported. */
static bool may_export(const struct allocation *of, uint64_t start, size_t size)
{
	bool is_whole = of && start == of->start && size == of->size;

	if (!of || !(rules & GPU_HAS_DMA_BUF) || start % 4096 || size % 4096 || !size || start + size > of->start + of->size)
		return false;
	if (of->kind == GPU_INCAPABLE || of->kind == GPU_MANAGED)
		return false;
	if (of->kind == GPU_TWO_HANDLES && (start - of->start) / HANDLE != (start + size - 1 - of->start) / HANDLE)
		return false;
	return is_whole ? rules & (GPU_TAKES_WHOLES | GPU_TAKES_PARTS) : rules & GPU_TAKES_PARTS;
}

#ifndef ROCM
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

static char own_context, primary_context, other_context;
static __thread void *contexts[8];
static __thread int depth;

int gpu_other(int current)
{
	bool was = depth == 1 && contexts[0] == &other_context;

	depth = current;
	contexts[0] = &other_context;
	return was;
}

/* Whether the rules let a thread of this context find the memory. */
static bool has_context(void)
{
	return !(rules & GPU_NEEDS_CONTEXT) || (depth && contexts[depth - 1] != &other_context);
}

int cuCtxGetDevice(int *device)
{
	if (!depth)
		return INVALID_CONTEXT;
	*device = contexts[depth - 1] == &other_context ? DEVICE + 1 : DEVICE;
	return SUCCESS;
}

int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = device == DEVICE;
	return SUCCESS;
}

int cuCtxGetCurrent(void **context)
{
	*context = depth ? contexts[depth - 1] : NULL;
	return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context)
{
	if (depth == 8 || (context != &own_context && (context != &primary_context || !retained)))
		return INVALID_VALUE;
	contexts[depth++] = context;
	return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context)
{
	if (!depth)
		return INVALID_CONTEXT;
	*context = contexts[--depth];
	return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	if (device != DEVICE)
		return INVALID_VALUE;
	retained++;
	*context = &primary_context;
	return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	if (device != DEVICE || !retained)
		return INVALID_VALUE;
	retained--;
	return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	if (device != DEVICE || (attribute != 100 && attribute != 124))
		return INVALID_VALUE;
	*value = !!(rules & (attribute == 100 ? GPU_IS_COHERENT : GPU_HAS_DMA_BUF));
	return SUCCESS;
}

/* Of several handles it is the one at the address. */
static size_t handle_size(const struct allocation *of) { return of->kind == GPU_TWO_HANDLES ? HANDLE : of->size; }
static uint64_t handle_start(const struct allocation *of, uint64_t pointer)
{
	return of->kind == GPU_TWO_HANDLES ? pointer / HANDLE * HANDLE : of->start;
}

/* Of the address `pointer` in an allocation, or in none. Returns whether there is such an attribute. */
static bool tell(void *data, int attribute, const struct allocation *of, uint64_t pointer)
{
	switch (attribute) {
	case 1: *(void **)data = of->id && (of->kind == GPU_PLAIN || of->kind == GPU_MANAGED) ? &own_context : NULL; return true;
	case 2: *(unsigned int *)data = of->id ? 2 : 0; return true;
	case 7: *(uint64_t *)data = of->id; return true;
	case 8: *(unsigned int *)data = of->kind == GPU_MANAGED; return true;
	case 9: *(int *)data = DEVICE; return true;
	case 11: *(uint64_t *)data = of->start; return true;
	case 12: *(size_t *)data = of->size; return true;
	case 15: *(unsigned int *)data = of->kind != GPU_INCAPABLE && of->kind != GPU_MANAGED; return true;
	case 18: *(size_t *)data = handle_size(of); return true;
	case 19: *(uint64_t *)data = handle_start(of, pointer); return true;
	default: return false;
	}
}

int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer)
{
	const struct allocation *of = at(pointer);

	/* A runtime may leave errno as it likes. */
	errno = 99;
	return of && tell(data, attribute, of, pointer) ? SUCCESS : INVALID_VALUE;
}

/* As CUDA, it answers for each address; what is none of a GPU has zeros. */
int cuPointerGetAttributes(unsigned int wanted, const int *attributes, void **data, unsigned long long pointer)
{
	static const struct allocation none;
	const struct allocation *of;
	bool known = true;

	errno = 99;
	pthread_mutex_lock(&lock);
	of = at(pointer);
	for (unsigned int n = 0; n < wanted; n++)
		known = known && tell(data[n], attributes[n], of ? of : &none, pointer);
	pthread_mutex_unlock(&lock);
	return known ? SUCCESS : INVALID_VALUE;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, unsigned long long pointer)
{
	struct allocation *of = at(pointer);

	if (!of)
		return INVALID_VALUE;
	if (!has_context())
		return NOT_FOUND;
	*base = handle_start(of, pointer);
	*size = handle_size(of);
	return SUCCESS;
}

int cuMemGetHandleForAddressRange(void *handle, unsigned long long pointer, size_t size, int type, unsigned long long flags)
{
	struct allocation *of;
	bool may;

	if (!has_context())
		return INVALID_CONTEXT;
	if (type != 1 || flags > 1 || (flags && (!(rules & GPU_IS_COHERENT) || rules & GPU_REFUSES_PCIE)))
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	of = at(pointer);
	may = may_export(of, pointer, size);
	if (may)
		*(int *)handle = dma_buf(of, pointer, size);
	pthread_mutex_unlock(&lock);
	if (!may)
		return rules & GPU_HAS_DMA_BUF ? INVALID_VALUE : NOT_SUPPORTED;
	by_pcie += flags == 1;
	return *(int *)handle < 0 ? NOT_SUPPORTED : SUCCESS;
}
#else
struct info {
	uint32_t size;
	int type;
	uint64_t agent_base, host_base;
	size_t bytes;
	void *user_data;
	uint64_t owner;
	uint32_t flags;
	bool registered;
};

enum { SUCCESS = 0, INVALID_ARGUMENT = 0x1001, INVALID_ALLOCATION = 0x1003, AGENT = 77 };

int hsa_amd_pointer_info(const void *pointer, struct info *info, void *(*alloc)(size_t), uint32_t *agents, uint64_t **accessible)
{
	struct allocation *of = at((uintptr_t)pointer);

	(void)alloc;
	errno = 99;
	if (!info || info->size < sizeof(*info) || agents || accessible)
		return INVALID_ARGUMENT;
	memset(&info->type, 0, sizeof(*info) - sizeof(info->size));
	if (!of)
		return SUCCESS;
	/* Managed memory is a range of addresses that the runtime has reserved. */
	info->type = of->kind == GPU_VMM ? 6 : of->kind == GPU_MANAGED ? 5 : 1;
	info->agent_base = of->start;
	info->bytes = of->size;
	info->owner = AGENT;
	return SUCCESS;
}

int hsa_agent_get_info(uint64_t agent, int attribute, void *value)
{
	if (agent != AGENT || attribute != 17)
		return INVALID_ARGUMENT;
	*(int *)value = 1;
	return SUCCESS;
}

/* The dma-buf is of the whole allocation, with the range's offset in it. */
int hsa_amd_portable_export_dmabuf(const void *pointer, size_t size, int *file, uint64_t *offset)
{
	struct allocation *of = at((uintptr_t)pointer);

	if (of && of->kind == GPU_VMM)
		return INVALID_ALLOCATION;
	if (!may_export(of, (uintptr_t)pointer, size))
		return INVALID_ARGUMENT;
	*file = dma_buf(of, of->start, of->size);
	*offset = (uintptr_t)pointer - of->start;
	return *file < 0 ? INVALID_ARGUMENT : SUCCESS;
}
#endif
