/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory of some kinds: stacks, huge pages, memory of devices, untouched memory. The cache keeps no
 * region of memory that can change unseen; of all others, a registration gets the current pages,
 * which RDMA traffic proves, and unchanged memory is a hit.
 */
#include <linux/io_uring.h>
#include <linux/udmabuf.h>
#include "../../lib/pair_rows.h"

enum { COUNT = 8, SIZE = COUNT * PAGE, HUGE = 2 << 20, PART = 64 << 10 };
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define OWN (MAP_PRIVATE | MAP_ANONYMOUS)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static char *map(int fd, size_t length, int protection, int flags, off_t offset)
{
	char *memory = fd < 0 && !(flags & MAP_ANONYMOUS) ? MAP_FAILED : mmap(NULL, length, protection, flags, fd, offset);

	return memory == MAP_FAILED ? NULL : memory;
}

/* The stack of an ended thread is used again at the same address with other pages. */

/* Far from the top of the stack, where libc gives pages back when the thread ends. */
static void *on_stack(void *last)
{
	uintptr_t room = (uintptr_t)alloca((size_t)row->value / 2);
	char *buffer = (char *)((room + PAGE - 1) & ~(uintptr_t)(PAGE - 1));

	if (buffer == last)
		anew(&pair, "the next thread's buffer, at the same place", buffer, SIZE);
	control(&pair, "the thread's buffer", buffer, SIZE);
	return buffer;
}

static void recycled(void)
{
	pthread_attr_t attributes;
	void *last = NULL;
	pthread_t thread;

	must(pthread_attr_init(&attributes) == 0 &&
	     pthread_attr_setstacksize(&attributes, (size_t)row->value) == 0);
	for (int n = 0; n < 3; n++) {
		must(pthread_create(&thread, &attributes, on_stack, last) == 0);
		last = must_join(thread);
	}
}

/* A mapping grows when the page below it is touched, where other memory may have been. */
static void grows_down(void)
{
	enum { ROOM = 8 << 20, FIRST = 4 * PAGE, MORE = 2 * PAGE };
	char *all = map(-1, ROOM, PROT_NONE, OWN, 0), *memory = all + ROOM - PAGE - FIRST, *grown = memory - MORE;

	/* The kernel leaves a gap below it, so it needs much free space. */
	must(all && munmap(all, ROOM) == 0);
	must(mmap(memory, FIRST, READ_WRITE, OWN | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	memset(memory, 1, FIRST);
	control(&pair, "before", memory, FIRST);
	for (int time = 0; time < 2; time++) {
		for (char *page = memory - PAGE; page >= grown; page -= PAGE)
			*(volatile char *)page = 1;
		if (!time)
			still(&pair, "after it has grown", memory, FIRST);
		anew(&pair, time ? "grown again" : "grown", grown, FIRST + MORE);
		control(&pair, "with the grown part", grown, FIRST + MORE);
		if (!time)
			must(raw_munmap(grown, MORE) == 0);
	}
}

/*
 * Memory is registered without a right to write, while its pages are the zero page or shared pages of a file.
 * Then the program writes, which gives it pages of its own, and registers it with the right. The first region
 * must not serve the second registration, and must read the data that the program sees.
 */

/* By a registration of its own. */
static bool reads_anew(char *memory, int access)
{
	struct ibv_mr *mr = by_cache(pair.pd, memory, SIZE, access);
	bool good = is_read_by_device(&pair, mr, memory, SIZE, access);

	let_go(mr);
	return good;
}

enum upgraded { UNTOUCHED, ZEROS, OF_FILE, REMOTE = 4 };

static void upgraded(void)
{
	int kind = (int)row->value & 3, file = kind == OF_FILE ? open("/proc/self/exe", O_RDONLY | O_CLOEXEC) : -1;
	int first = row->value & REMOTE ? IBV_ACCESS_REMOTE_READ : 0;
	int second = row->value & REMOTE ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE;
	char *memory = map(file, SIZE, READ_WRITE, kind == OF_FILE ? MAP_PRIVATE : OWN, 0);
	struct ibv_mr *mr, *writes;

	must(memory);
	if (kind != UNTOUCHED)
		must(memory[0] + memory[SIZE - 1] < 1000); /* read only: pages that are shared */
	ok(reads_anew(memory, first), "the device reads what the program sees");
	ok(reads_anew(memory, first), "a second time");
	/* A file may be cut, and the library does not see it. */
	ok(kind == OF_FILE ? was_made() : was_hit(), "by the same region, if it is of no file");
	fill(memory, SIZE);
	ok(reads_anew(memory, first), "the device reads the data that the program wrote since");

	mr = reg_with(memory, SIZE, first);
	writes = by_cache(pair.pd, memory, SIZE, second);
	ok(was_made() && writes->lkey != mr->lkey, "the right to write takes another region");
	ok(all_lands(&pair, writes, memory, SIZE, row->value & REMOTE), "by that, data lands in the current page");
	ok(is_read_by_device(&pair, mr, memory, SIZE, first), "and the first reads it");
	fill(memory, SIZE);
	ok(is_read_by_device(&pair, mr, memory, SIZE, first), "and reads the program's later data");
	let_go(mr);
	let_go(writes);
}

/*
 * Memory of a device or the kernel can change without a change of the CPU's page tables. A registration
 * has the result of a plain one, and a region of its own, which ends with its deregistration.
 */

static void as_plain(void *at, size_t length, int access)
{
	int regions = kernel_regions(pair.context);
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, at, length, access);
	int verdict = mr ? 0 : errno;

	must(!mr || ibv_dereg_mr(mr) == 0);
	ok(!verdict || !row->then, "the kernel registers it");
	for (int round = 0; round < 2; round++) {
		struct rdmamr_stats before, after;

		errno = 0;
		mr = register_by_cache(pair.pd, at, length, access, &before);
		after = stats();
		is(mr ? 0 : errno, verdict, "the result of a plain registration (%s)", strerrorname_np(verdict));
		if (!mr) {
			is(kernel_regions(pair.context), regions, "nothing is left of it");
			continue;
		}
		ok(made_anew(before, after) && after.bypassed_memory == before.bypassed_memory + 1, "a region of its own");
		if (access & IBV_ACCESS_REMOTE_WRITE)
			ok(lands_in(&pair, mr, at, length), "data lands");
		is(deregister_region(mr), 0, "deregistered");
		is(kernel_regions(pair.context), regions, "at once");
		is((long long)stats().idle, (long long)before.idle, "and it is not cached");
	}
}

static char *uring_entries(void)
{
	struct io_uring_params params = { 0 };

	return map((int)syscall(SYS_io_uring_setup, 64, &params), PAGE, READ_WRITE, MAP_SHARED | MAP_POPULATE,
		   IORING_OFF_SQES);
}

/* A buffer of another device's driver, as a GPU's is: here one that is made of a memfd. */
static char *dmabuf(void)
{
	struct udmabuf_create create = { .size = SIZE };
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd = memfd_create("dmabuf", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	struct rdmamr_stats before = stats();
	char *memory = NULL;
	struct ibv_mr *mr;
	int buffer;

	must(fd >= 0 && ftruncate(fd, SIZE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	create.memfd = (uint32_t)fd;
	buffer = device < 0 ? -1 : ioctl(device, UDMABUF_CREATE, &create);
	memory = map(buffer, SIZE, READ_WRITE, MAP_SHARED, 0);
	if (!memory)
		skip_all("the kernel has no udmabuf");
	memset(memory, 1, SIZE);
	mr = ibv_reg_dmabuf_mr(pair.pd, 0, SIZE, 0, buffer, IBV_ACCESS_LOCAL_WRITE);
	ok(stats().hits == before.hits && stats().misses == before.misses && stats().idle == before.idle,
	   "by its descriptor (%s) it is not the cache's", mr ? "registered" : strerrorname_np(errno));
	must(!mr || ibv_dereg_mr(mr) == 0);
	return memory;
}

static char *queue(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[4096], *start = NULL;

	must(maps);
	while (!start && fgets(line, sizeof(line), maps))
		if (strstr(line, " rw-s ") && strstr(line, "infiniband"))
			start = (char *)strtoul(line, NULL, 16);
	must(fclose(maps) == 0);
	return start;
}

/* The kernel registers memory that has pages of its own (row->then). */
static void of_device(void)
{
	char *own = pages(1), *at;
	int access = row->then ? LOCAL_AND_REMOTE : IBV_ACCESS_REMOTE_READ;

	control(&pair, "memory of the program's own, before", own, PAGE);
	at = ((char *(*)(void))(uintptr_t)row->of)();
	if (!at)
		skip_all("it cannot be had by this user, or on this machine");
	as_plain(at, PAGE * (size_t)row->value, access);
	if (!row->then)
		as_plain(at, PAGE, IBV_ACCESS_LOCAL_WRITE);
	still(&pair, "memory of the program's own, after all that", own, PAGE);
}

/*
 * The kernel splits and collapses huge pages as it likes, but not those that a device has pinned.
 * Registering a part of a transparent huge page must not split it.
 */

static void part_of_a_huge_page(void)
{
	/* A new place is aligned to the size of a huge page. */
	char *memory = new_place(2 * HUGE);

	fresh_at(memory, 2 * HUGE);
	must(madvise(memory, 2 * HUGE, MADV_HUGEPAGE) == 0);
	memset(memory, 1, 2 * HUGE);
	if (smaps_kib(memory, 2 * HUGE, "AnonHugePages") < 2 * HUGE / 1024)
		skip_all("the kernel gave none");
	control(&pair, "a part of a huge page", memory, PART);
	is(smaps_kib(memory, 2 * HUGE, "AnonHugePages"), 2 * HUGE / 1024, "the huge pages are whole after it was registered");
	/* The rest of it is discarded: the kernel splits it, and the part has its pages still. */
	must(syscall(SYS_madvise, memory + HUGE / 2, PAGE, MADV_DONTNEED) == 0);
	still(&pair, "the rest of the huge page discarded", memory, PART);
	is(smaps_kib(memory + HUGE, HUGE, "AnonHugePages"), HUGE / 1024, "the huge page beside it is whole");
	must(madvise(memory + HUGE / 2, HUGE / 2, MADV_NOHUGEPAGE) == 0); /* splits the mapping as well */
	either(&pair, "the mapping split", memory, PART);
	control(&pair, "in what was a huge page", memory, PART);
	/* The kernel may join them again, or not, since pages are pinned. */
	must(madvise(memory, 2 * HUGE, MADV_HUGEPAGE) == 0);
	syscall(SYS_madvise, memory, HUGE, MADV_COLLAPSE);
	still(&pair, "perhaps collapsed", memory, PART);
}

static const struct row rows[] = {
	/* Too large for libc's cache of stacks; libc caches the other, and gives its pages back by madvise. */
	{ "a thread's stack that libc unmaps", recycled, 64 << 20 },
	{ "a thread's stack that libc caches", recycled, 1 << 20 },
	{ "a mapping that grows down", grows_down },
	{ "a right to write comes, untouched memory, local", upgraded, UNTOUCHED },
	{ "a right to write comes, untouched memory, remote", upgraded, UNTOUCHED | REMOTE },
	{ "a right to write comes, pages of zeros, local", upgraded, ZEROS },
	{ "a right to write comes, pages of zeros, remote", upgraded, ZEROS | REMOTE },
	{ "a right to write comes, a file's pages, local", upgraded, OF_FILE },
	{ "a right to write comes, a file's pages, remote", upgraded, OF_FILE | REMOTE },
	{ "device memory, the entries of an io_uring", of_device, 1, uring_entries, PLAIN },
	{ "device memory, a dma-buf", of_device, COUNT, dmabuf },
	{ "device memory, a queue of the RDMA device", of_device, 1, queue },
	{ "a part of a huge page", part_of_a_huge_page },
};

static void around(void)
{
	on_pair();
	is((long long)stats().flushed_linger, 0, "no region ended by age");
}

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, around)
