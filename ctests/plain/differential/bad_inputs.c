/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Arguments that the kernel refuses, and some that it accepts surprisingly: its behaviour differs
 * by version and by page offset.
 */
#include "../../lib/verdict.h"
#include <fcntl.h>
#include <sys/syscall.h>

enum {
	LW = IBV_ACCESS_LOCAL_WRITE,
	RW = IBV_ACCESS_REMOTE_WRITE,
	RR = IBV_ACCESS_REMOTE_READ,
	RA = IBV_ACCESS_REMOTE_ATOMIC,
	MW = IBV_ACCESS_MW_BIND,
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

static void *map(size_t count, int protection, int flags, int fd)
{
	void *memory = mmap(NULL, count * PAGE, protection, flags, fd, 0);

	return memory == MAP_FAILED ? NULL : memory;
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
	try("a kernel address", (void *)0xffff888000000000ul, PAGE, LW);
	try("a non-canonical address", (void *)0x8000000000000000ul, PAGE, LW);
	try("the last page", (void *)~0xffful, PAGE, LW);
	try("address and length wrap", (void *)~0xffful, 2 * PAGE, LW);
	try("length 0, aligned", memory, 0, LW);
	try("length 0, not aligned", memory + 8, 0, LW);
	try("length 1", memory + 8, 1, LW);
	try("length 2^64 - 1", memory, SIZE_MAX, LW);
	try("length 2^63", memory, 1ul << 63, LW);
	try("length 2^47", memory, 1ul << 47, LW);
	try("the stack", on_stack, sizeof(on_stack), LW);
	try("program text, remote read", (void *)(uintptr_t)addresses, 16, RR);
	try("program text, local write", (void *)(uintptr_t)addresses, 16, LW);
	try("a string constant, remote read", (void *)(uintptr_t)"constant", 8, RR);

	try_iova("iova of another page offset", memory, PAGE, (uintptr_t)memory + 8, LW);
	try_iova("iova 8 for an aligned address", memory, PAGE, 8, LW);
	try_iova("iova 0", memory, PAGE, 0, LW);
	try_iova("iova 0 for an address not aligned", memory + 8, 64, 0, LW);
	try_iova("iova 8 for an address 8 off", memory + 8, 64, 8, LW);
	try_iova("iova any, same offset", memory, PAGE, 0x123456789000, LW);
	try_iova("iova the last page, and it wraps", memory, 2 * PAGE, ~0xffful, LW);
}

static void mapped_memory(void)
{
	int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
	char *read_only = map(1, PROT_READ, anonymous, -1);
	char *touched = pages(1);
	int memfd = memfd_create("check", 0);
	int fd = open("/proc/self/exe", O_RDONLY);
	int tmp = open("/dev/shm/rdmamr-check", O_CREAT | O_RDWR, 0600);
	char *memory;

	try("PROT_NONE, access 0", map(1, PROT_NONE, anonymous, -1), PAGE, 0);
	try("PROT_NONE, local write", map(1, PROT_NONE, anonymous, -1), PAGE, LW);
	try("PROT_EXEC, local write", map(1, PROT_EXEC, anonymous, -1), PAGE, LW);
	try("PROT_WRITE, local write", map(1, PROT_WRITE, anonymous, -1), PAGE, LW);
	try("read-only anonymous, access 0", read_only, PAGE, 0);
	try("read-only anonymous, remote read", read_only, PAGE, RR);
	try("read-only anonymous, local write", read_only, PAGE, LW);
	try("read-only anonymous, window", read_only, PAGE, MW);
	must(mprotect(touched, PAGE, PROT_READ) == 0);
	try("made read-only, remote read", touched, PAGE, RR);
	try("made read-only, local write", touched, PAGE, LW);

	must(memfd >= 0 && ftruncate(memfd, 2 * PAGE) == 0);
	try("memfd, local write", map(2, PROT_READ | PROT_WRITE, MAP_SHARED, memfd), 2 * PAGE, LW);
	try("memfd read-only, remote read", map(2, PROT_READ, MAP_SHARED, memfd), 2 * PAGE, RR);
	try("memfd read-only, local write", map(2, PROT_READ, MAP_SHARED, memfd), 2 * PAGE, LW);
	try("memfd beyond its end", map(4, PROT_READ | PROT_WRITE, MAP_SHARED, memfd), 4 * PAGE, LW);
	try("file private, local write", map(1, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd), PAGE, LW);
	try("file private read-only, remote read", map(1, PROT_READ, MAP_PRIVATE, fd), PAGE, RR);
	try("file shared read-only, remote read", map(1, PROT_READ, MAP_SHARED, fd), PAGE, RR);
	must(tmp >= 0 && ftruncate(tmp, PAGE) == 0);
	try("tmpfs shared, local write", map(1, PROT_READ | PROT_WRITE, MAP_SHARED, tmp), PAGE, LW);
	unlink("/dev/shm/rdmamr-check");

	memory = map(512, PROT_READ | PROT_WRITE, anonymous | MAP_HUGETLB, -1);
	if (memory) {
		try("a huge page", memory, 512 * PAGE, LW);
		try("part of a huge page", memory + PAGE, PAGE, LW);
		try("huge page and the flag", memory, 512 * PAGE, LW | IBV_ACCESS_HUGETLB);
	}
#ifdef SYS_memfd_secret
	int secret = (int)syscall(SYS_memfd_secret, 0);

	if (secret >= 0 && ftruncate(secret, PAGE) == 0)
		try("memfd_secret", map(1, PROT_READ | PROT_WRITE, MAP_SHARED, secret), PAGE, LW);
#endif
}

static void flags(char *memory)
{
	try("remote write without local write", memory, PAGE, RW);
	try("remote atomic without local write", memory, PAGE, RA);
	try("window alone", memory, PAGE, MW);
	try("zero-based", memory, PAGE, LW | IBV_ACCESS_ZERO_BASED);
	try("zero-based, not aligned", memory + 8, 64, LW | IBV_ACCESS_ZERO_BASED);
	try("the huge page flag on small pages", memory, PAGE, LW | IBV_ACCESS_HUGETLB);
	try("on demand", memory, PAGE, LW | ODP);
	try("on demand, everything", NULL, SIZE_MAX, LW | ODP);
	try("on demand, everything but from elsewhere", memory, SIZE_MAX, LW | ODP);
	try("on demand, length 0", memory, 0, LW | ODP);
	try("relaxed ordering", memory, PAGE, LW | IBV_ACCESS_RELAXED_ORDERING);
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
