/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Arguments that the kernel refuses, or accepts surprisingly: that differs by version and by page offset. */
#include "../../lib/verdict.h"
#include <fcntl.h>

enum {
	LW = IBV_ACCESS_LOCAL_WRITE,
	RR = IBV_ACCESS_REMOTE_READ,
	ODP = IBV_ACCESS_ON_DEMAND,
};

static struct ibv_pd *pd;

static void try_iova(const char *name, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	errno = 0;
	verdict_region(name, pd, addr, length, ibv_reg_mr_iova2(pd, addr, length, iova, access));
}

static void try(const char *name, void *addr, size_t length, unsigned int access)
{
	try_iova(name, addr, length, (uintptr_t)addr, access);
}

static void addresses(char *memory)
{
	char on_stack[64];
	char *hole = pages(3);

	must(munmap(hole + PAGE, PAGE) == 0);
	try("a hole in the middle", hole, 3 * PAGE, LW);
	try("a hole at the start", hole + PAGE, 2 * PAGE, LW);
	try("a hole behind the end", hole, PAGE + 1, LW);
	try("up to the hole", hole, PAGE, LW);
	try("address NULL", NULL, PAGE, LW);
	try("address NULL, length 0", NULL, 0, LW);
	try("a non-canonical address", (void *)0x8000000000000000ul, PAGE, LW);
	try("the last page", (void *)~0xffful, PAGE, LW);
	try("address and length wrap", (void *)~0xffful, 2 * PAGE, LW);
	try("length 0, aligned", memory, 0, LW);
	try("length 2^64 - 1", memory, SIZE_MAX, LW);
	try("length 2^47", memory, 1ul << 47, LW);
	try("the stack", on_stack, sizeof(on_stack), LW);
	try("program text, remote read", (void *)(uintptr_t)addresses, 16, RR);
	try("program text, local write", (void *)(uintptr_t)addresses, 16, LW);
	try("a string constant, remote read", (void *)(uintptr_t)"constant", 8, RR);

	try_iova("iova 8 for an aligned address", memory, PAGE, 8, LW);
	try_iova("iova 0", memory, PAGE, 0, LW);
	try_iova("iova 8 for an address 8 off", memory + 8, 64, 8, LW);
	try_iova("iova any, same offset", memory, PAGE, 0x123456789000, LW);
	try_iova("iova the last page, and it wraps", memory, 2 * PAGE, ~0xffful, LW);
}

/* unpinned.c has each kind of memory that the kernel cannot pin, and access_flags.c the flags alone. */
static void mapped_memory(void)
{
	char *read_only = pages(1), *none = pages(1);

	must(mprotect(read_only, PAGE, PROT_READ) == 0 && mprotect(none, PAGE, PROT_NONE) == 0);
	try("PROT_NONE, access 0", none, PAGE, 0);
	try("made read-only, remote read", read_only, PAGE, RR);
	try("made read-only, local write", read_only, PAGE, LW);
}

static void flags(char *memory)
{
	try("zero-based, not aligned", memory + 8, 64, LW | IBV_ACCESS_ZERO_BASED);
	try("on demand, everything", NULL, SIZE_MAX, LW | ODP);
	try("on demand, everything but from elsewhere", memory, SIZE_MAX, LW | ODP);
	try("on demand, length 0", memory, 0, LW | ODP);
}

static void unknown_domains(struct ibv_pd another, char *memory, const struct ibv_mr *mr)
{
	another.handle = 0x7777;
	errno = 0;
	verdict_region("a domain that the kernel does not know", &another, memory, PAGE,
		       ibv_reg_mr(&another, memory, PAGE, LW));
	another.handle = mr->handle;
	errno = 0;
	verdict_region("a region's handle as a domain's", &another, memory, PAGE,
		       ibv_reg_mr(&another, memory, PAGE, LW));
}

/* Wrong domains and files. libibverbs uses the fields of the structures unchecked. */
static void handles(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LW);
	int fd = pd->context->cmd_fd;
	int closed = dup(fd), null = open("/dev/null", O_RDWR), result;

	must(mr && closed >= 0 && null >= 0);
	close(closed);
	/* ionic's provider takes the handle of the domain that its private part points to. */
	if (strncmp(ibv_get_device_name(pd->context->device), "ionic", 5))
		unknown_domains(*pd, memory, mr);

	pd->context->cmd_fd = closed;
	try("the device's file is closed", memory, PAGE, LW);
	result = ibv_dereg_mr(mr);
	verdict("deregistering when the file is closed\t%s", strerrorname_np(result));
	pd->context->cmd_fd = null;
	/* Memory of which the cache has no region: a hit does not look at the file. */
	try("the device's file is another", pages(1), PAGE, LW);
	pd->context->cmd_fd = fd;
	verdict("deregistering when it is open again\t%d", ibv_dereg_mr(mr));
	try("registering when it is open again", memory, PAGE, LW);
}

int main(void)
{
	char *memory = pages(2);

	pd = domain_of_device();
	addresses(memory);
	mapped_memory();
	flags(memory);
	handles(memory);
	verdict("deallocating the domain at the end\t%d", ibv_dealloc_pd(pd));
	return 0;
}
