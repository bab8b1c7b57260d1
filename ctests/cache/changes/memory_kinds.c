/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory of each kind: stacks, variables of shared objects, sealed and shared memory, huge pages,
 * memory of devices, untouched memory; and many regions at one page. The cache keeps no region of
 * memory that can change unseen; of all others, a registration gets the current pages, which RDMA
 * traffic proves, and unchanged memory is a hit.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <linux/if_packet.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/udmabuf.h>
#include <malloc.h>
#include <stdatomic.h>
#include "../../lib/pair_rows.h"

enum { COUNT = 8, SIZE = COUNT * PAGE, HUGE = 2 << 20, PART = 64 << 10 };
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define OWN (MAP_PRIVATE | MAP_ANONYMOUS)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static struct ibv_mr *in_use(void *memory, size_t length, int access)
{
	struct rdmamr_stats before;
	struct ibv_mr *mr = register_by_cache(pair.pd, memory, length, access, &before);

	must(mr);
	return mr;
}

static char *map(int fd, size_t length, int protection, int flags, off_t offset)
{
	char *memory = fd < 0 && !(flags & MAP_ANONYMOUS) ? MAP_FAILED : mmap(NULL, length, protection, flags, fd, offset);

	return memory == MAP_FAILED ? NULL : memory;
}

/* Shared memory. */

/* The seals forbid a change of the pages, but the cache does not look at seals. */
static void sealed(void)
{
	int fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char *memory;

	must(fd >= 0 && ftruncate(fd, SIZE) == 0 && (memory = map(fd, SIZE, READ_WRITE, MAP_SHARED, 0)));
	not_kept(&pair, "without seals", memory, SIZE);
	must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	not_kept(&pair, "sealed against shrinking only", memory, SIZE);
	must(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
	must(ftruncate(fd, 0) == -1 && errno == EPERM);
	must(madvise(memory, SIZE, MADV_REMOVE) == -1 && errno == EPERM);
	not_kept(&pair, "sealed against shrinking and holes", memory, SIZE);
	must(raw_munmap(memory, SIZE) == 0);
	fresh_at(memory, SIZE);
	anew(&pair, "other memory where it was", memory, SIZE);
	must(munmap(memory, SIZE) == 0 && close(fd) == 0);
}

/* The cache asks the kernel about the memory when it is registered again, and remembers the answer. */
static void counted(void)
{
	char *memory = map(-1, SIZE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, 0);
	struct rdmamr_stats before, after;

	for (int n = 0; n < 3; n++)
		must(lands_by_cache(&pair, memory, SIZE, LOCAL_AND_REMOTE, &before, &after));
	is((long long)(after.bypassed_memory - before.bypassed_memory), 1, "as bypassing the cache");
	is((long long)(after.hits + after.misses - before.hits - before.misses), 0, "as neither hit nor miss");
	must(munmap(memory, SIZE) == 0);
}

/*
 * The variables of a shared object are a private mapping of its file, and go with it: dlclose unmaps
 * them inside libc. Transfers change them; the object gets them back.
 */

#define OBJECT "libresolv.so.2" /* of libc, unused here, and small */
static char saved[PAGE];

/* The last page of its writable mapping of the file; NULL if it is not loaded. */
static char *variables(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long start, end;
	char line[400], access[5], *found = NULL;

	must(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %4s", &start, &end, access) == 3 && !strcmp(access, "rw-p") && strstr(line, OBJECT))
			found = (char *)end - PAGE;
	}
	fclose(maps);
	return found;
}

static char *load(void **object)
{
	char *memory;

	must(!variables() && (*object = dlopen(OBJECT, RTLD_NOW)) && (memory = variables()));
	memcpy(saved, memory, PAGE);
	return memory;
}

static void unload(void *object, char *memory)
{
	memcpy(memory, saved, PAGE);
	must(dlclose(object) == 0 && !variables());
}

static void unloaded(void)
{
	void *object;
	char *memory = load(&object);
	struct ibv_mr *old = NULL;

	if (row->value)
		old = in_use(memory, PAGE, LOCAL_AND_REMOTE);
	else
		not_kept(&pair, "variables", memory, PAGE);
	unload(object, memory);
	fresh_at(memory, PAGE);
	anew(&pair, "memory where they were", memory, PAGE);
	if (old)
		is(deregister_region(old), 0, "they are deregistered");
	must(munmap(memory, PAGE) == 0);
}

static void reloaded(void)
{
	void *object;
	char *memory = load(&object), *again;

	not_kept(&pair, "variables", memory, PAGE);
	unload(object, memory);
	again = load(&object);
	if (again != memory)
		skip_all("it came elsewhere");
	anew(&pair, "at the same place", again, PAGE);
	not_kept(&pair, "variables once more", again, PAGE);
	unload(object, again);
}

/*
 * Stacks: a buffer of a function that has returned becomes memory of the next function, and stays
 * registered. The stack of an ended thread is used again at the same address with other pages.
 */

enum { BUFFER = 16 * PAGE, SMALL = 1 << 20, LARGE = 64 << 20 };

static char *page_in(char *room)
{
	return (char *)(((uintptr_t)room + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

__attribute__((noinline))
static void function(bool again)
{
	char room[BUFFER + PAGE], *buffer = page_in(room);
	static char *was;

	must(!again || buffer == was);
	was = buffer;
	(again ? still_with : control_with)(&pair, "a buffer on the stack", buffer, BUFFER, LOCAL_AND_REMOTE);
}

static void next_call(void)
{
	function(false);
	function(true);
}

/* Each call is deeper than the last, with a buffer that overlaps those of earlier descents. */
__attribute__((noinline))
static int descend(int depth, size_t size)
{
	char *room = alloca(size);
	int good;

	memset(room, depth, size);
	good = lands_local(&pair, room, size) && lands(&pair, room, size);
	if (depth > 1)
		good &= descend(depth - 1, size + 1234);
	/* The deeper calls did not touch the memory of this one. */
	memset(room, depth, size);
	return good && lands(&pair, room, size) && room != NULL;
}

static void recursion(void)
{
	int wrong = 0;

	for (int n = 0; n < 5; n++)
		wrong += !descend(6, 1000 + (size_t)n * 777);
	is(wrong, 0, "data lands in the current page");
}

/* The buffer lies far from the top of the stack, where libc gives pages back when the thread ends. */
struct thread {
	size_t depth;
	char *buffer, *expected; /* the second thread's buffer must be there */
};

__attribute__((noinline))
static void *on_stack(void *argument)
{
	struct thread *thread = argument;
	char *room = alloca(thread->depth);

	thread->buffer = page_in(room);
	if (thread->expected && thread->buffer != thread->expected)
		return NULL;
	if (thread->expected)
		anew(&pair, "the second thread's buffer", thread->buffer, BUFFER);
	control(&pair, "the thread's buffer", thread->buffer, BUFFER);
	return NULL;
}

/*
 * Two threads one after the other on the same stack of this size: libc's, or, if negative, one that
 * the program unmaps between. libc's choice of an address depends on the other mappings, so the test
 * tries again if the second stack lies elsewhere.
 */
static void recycled(void)
{
	size_t size = (size_t)labs(row->value);
	char *own = row->value < 0 ? pages(size / PAGE) : NULL;
	bool same = false;

	for (int tries = 0; tries < 10 && !same; tries++) {
		struct thread runs[2] = { { .depth = size / 2 }, { .depth = size / 2 } };

		for (int n = 0; n < 2; n++) {
			pthread_attr_t attr;
			pthread_t thread;

			must(pthread_attr_init(&attr) == 0 && (own ? pthread_attr_setstack(&attr, own, size) :
								     pthread_attr_setstacksize(&attr, size)) == 0);
			must(pthread_create(&thread, &attr, on_stack, &runs[n]) == 0 && pthread_join(thread, NULL) == 0);
			must(pthread_attr_destroy(&attr) == 0);
			if (own)
				remap(own, size);
			runs[1].expected = runs[0].buffer;
		}
		same = runs[1].buffer == runs[1].expected;
	}
	if (!same)
		skip_all("libc puts each stack elsewhere");
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
	must(munmap(grown, FIRST + MORE) == 0);
}

/*
 * Memory is registered without a right to write, while its pages are the zero page or shared pages
 * of a file. Then the program writes, which gives it pages of its own, and registers it with the
 * right. The first region must not serve the second registration, and must read the data that the
 * program sees.
 */

static bool reads(const struct ibv_mr *mr, char *memory, int access)
{
	int status;

	memset(far.in, 0x55, SIZE);
	if (access & IBV_ACCESS_REMOTE_READ)
		status = pair_read(&pair, far.mr, far.in, SIZE, (uintptr_t)memory, mr->rkey);
	else
		status = pair_write(&pair, mr, memory, SIZE, (uintptr_t)far.in, far.mr->rkey);
	if (pair.iwarp && !status) /* the answer to a read behind a write comes after it */
		status = pair_read(&pair, far.mr, far.out, 8, (uintptr_t)far.in, far.mr->rkey);
	return status_is_good(status, "the device reads") && !memcmp(far.in, memory, SIZE);
}

/* By a registration of its own; `before` has the statistics before it. */
static bool reads_anew(char *memory, int access, struct rdmamr_stats *before)
{
	struct ibv_mr *mr = register_by_cache(pair.pd, memory, SIZE, access, before);
	bool good;

	must(mr);
	good = reads(mr, memory, access);
	must(deregister_region(mr) == 0);
	return good;
}

enum upgraded { UNTOUCHED, ZEROS, OF_FILE, REMOTE = 4 };

static void upgraded(void)
{
	int kind = (int)row->value & 3, file = kind == OF_FILE ? open("/proc/self/exe", O_RDONLY | O_CLOEXEC) : -1;
	int first = row->value & REMOTE ? IBV_ACCESS_REMOTE_READ : 0;
	int second = row->value & REMOTE ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE;
	char *memory = map(file, SIZE, READ_WRITE, kind == OF_FILE ? MAP_PRIVATE : OWN, 0);
	struct rdmamr_stats before;
	struct ibv_mr *mr, *writes;

	must(memory);
	if (kind != UNTOUCHED)
		must(memory[0] + memory[SIZE - 1] < 1000); /* read only: pages that are shared */
	ok(reads_anew(memory, first, &before), "the device reads what the program sees");
	ok(reads_anew(memory, first, &before), "a second time");
	/* A file may be cut, and the library does not see it. */
	ok((kind == OF_FILE ? made_anew : reused)(before, stats()), "by the same region, if it is of no file");
	fill(memory, SIZE);
	ok(reads_anew(memory, first, &before), "the device reads the data that the program wrote since");

	mr = register_region(pair.pd, memory, SIZE, first);
	must(mr);
	writes = register_by_cache(pair.pd, memory, SIZE, second, &before);
	must(writes);
	ok(made_anew(before, stats()) && writes->lkey != mr->lkey, "the right to write takes another region");
	ok(all_lands(&pair, writes, memory, SIZE, row->value & REMOTE), "by that, data lands in the current page");
	ok(reads(mr, memory, first), "and the first reads it");
	fill(memory, SIZE);
	ok(reads(mr, memory, first), "and reads the program's later data");
	is(deregister_region(mr), 0, "the first is deregistered");
	is(deregister_region(writes), 0, "and the second");
	ok(reads_anew(memory, first, &before), "without the right to write again");
	ok(lands_with(&pair, memory, SIZE, second), "with it again");
	must(munmap(memory, SIZE) == 0);
}

/* A region with the right does not serve for one without it. */
static void downgraded(void)
{
	char *at = map(-1, SIZE, READ_WRITE, OWN, 0);
	struct rdmamr_stats before;

	control_with(&pair, "local rights", at, SIZE, IBV_ACCESS_LOCAL_WRITE);
	ok(reads_anew(at, 0, &before), "the device reads what the program sees");
	ok(made_anew(before, stats()), "by a region of its own");
}

/*
 * Memory of a device or the kernel: its contents can change without a change of the CPU's page
 * tables. A registration has the result of a plain one, and its region is one of its own, which ends
 * with its deregistration.
 */

static void as_plain(void *at, size_t length, int access)
{
	int regions = kernel_regions(pair.context), verdict = 0;
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, at, length, access);

	verdict = mr ? 0 : errno;
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

static char *packet_ring(void)
{
	struct tpacket_req ring = { .tp_block_size = SIZE, .tp_block_nr = 1, .tp_frame_size = 2048, .tp_frame_nr = SIZE / 2048 };
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);

	if (fd >= 0 && setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)) == 0)
		return map(fd, SIZE, READ_WRITE, MAP_SHARED, 0);
	return NULL;
}

static char *uring_entries(void)
{
	struct io_uring_params params = { 0 };

	return map((int)syscall(SYS_io_uring_setup, 64, &params), PAGE, READ_WRITE, MAP_SHARED | MAP_POPULATE,
		   IORING_OFF_SQES);
}

static char *perf_buffer(void)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE, .size = sizeof(attr), .disabled = 1,
					.config = PERF_COUNT_SW_DUMMY };
	char *memory = map((int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0), 3 * PAGE, READ_WRITE, MAP_SHARED, 0);

	return memory ? memory + PAGE : NULL;
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

static char *device_file(const char *path, off_t offset, int mode)
{
	return map(open(path, mode | O_CLOEXEC), PAGE, mode == O_RDWR ? READ_WRITE : PROT_READ, MAP_SHARED, offset);
}

static char *physical(void)
{
	return device_file("/dev/mem", 0xf0000, O_RDONLY);
}

/* The first register file of a PCI device that can be mapped. The test only registers it: it reads and writes nothing. */
static char *pci(void)
{
	DIR *dir = opendir("/sys/bus/pci/devices");
	char path[512], *memory = NULL;
	struct dirent *entry;

	while (!memory && dir && (entry = readdir(dir)))
		for (int n = 0; n < 6 && !memory; n++) {
			snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource%d", entry->d_name, n);
			memory = device_file(path, 0, O_RDWR);
		}
	return memory;
}

/* A mapping by its name in /proc/self/maps. */
static char *named(const char *pattern)
{
	FILE *file = fopen("/proc/self/maps", "re");
	char line[512], *found = NULL;
	unsigned long start = 0;

	must(file);
	while (!found && fgets(line, sizeof(line), file))
		found = strstr(line, pattern);
	fclose(file);
	return found && sscanf(line, "%lx", &start) == 1 ? (char *)start : NULL;
}

static char *queue(void)
{
	return named("infiniband");
}

static char *clock_page(void)
{
	return named("[vvar]");
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
 * The kernel splits, collapses, merges and moves pages as it likes, but not those that a device has
 * pinned: idle regions stay good through all of it, and do not end needlessly. Also, registering a
 * part of a transparent huge page must not split it.
 */

/* Memory of `count` huge pages, aligned to their size. */
static char *aligned(size_t count)
{
	size_t length = (count + 1) * HUGE;
	char *all = map(-1, length, PROT_NONE, OWN, 0), *memory;

	must(all && munmap(all, length) == 0);
	memory = (char *)(((uintptr_t)all + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	fresh_at(memory, count * HUGE);
	return memory;
}

/* KiB of transparent huge pages from there up to `length` on, in any number of mappings. */
static long huge_kib(const char *memory, size_t length)
{
	FILE *smaps = fopen("/proc/self/smaps", "re");
	unsigned long start, end;
	long sum = 0, kib;
	char line[300];
	bool inside = false;

	must(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start < (uintptr_t)memory + length && end > (uintptr_t)memory;
		else if (inside && sscanf(line, "AnonHugePages: %ld", &kib) == 1)
			sum += kib;
	}
	fclose(smaps);
	return sum;
}

/* Touches the memory as huge pages. Skips the row if the kernel gives none. */
static long huge_touched(char *memory, size_t length)
{
	must(madvise(memory, length, MADV_HUGEPAGE) == 0);
	memset(memory, 1, length);
	if (huge_kib(memory, length) < (long)length / 1024)
		skip_all("the kernel gave none");
	return huge_kib(memory, length);
}

static void part_of_a_huge_page(void)
{
	char *memory = aligned(2);
	long before = huge_touched(memory, 2 * HUGE);

	control(&pair, "a part of a huge page", memory, PART);
	is(huge_kib(memory, 2 * HUGE), before, "the huge pages are whole after it was registered");
	/* The rest of it is discarded: the kernel splits it, and the part has its pages still. */
	must(syscall(SYS_madvise, memory + HUGE / 2, PAGE, MADV_DONTNEED) == 0);
	still(&pair, "the rest of the huge page discarded", memory, PART);
	is(huge_kib(memory + HUGE, HUGE), HUGE / 1024, "the huge page beside it is whole");
	must(madvise(memory + HUGE / 2, HUGE / 2, MADV_NOHUGEPAGE) == 0); /* splits the mapping as well */
	either(&pair, "the mapping split", memory, PART);
	control(&pair, "in what was a huge page", memory, PART);
	/* The kernel may join them again, or not, since pages are pinned. */
	must(madvise(memory, 2 * HUGE, MADV_HUGEPAGE) == 0);
	printf("# collapse: %s\n", syscall(SYS_madvise, memory, HUGE, MADV_COLLAPSE) ? strerror(errno) : "done");
	still(&pair, "collapsed", memory, PART);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	printf("# collapse after a flush: %s\n", syscall(SYS_madvise, memory, HUGE, MADV_COLLAPSE) ? strerror(errno) : "done");
	control(&pair, "after a flush", memory, PART);
	must(munmap(memory, 2 * HUGE) == 0);
}

/* Nor do regions of other parts of the huge page split it, or a region in use that is older than the huge page. */
static void neighbours(void)
{
	char *memory = aligned(1);
	long before = huge_touched(memory, HUGE);
	struct ibv_mr *old;

	for (int n = 0; n < 4; n++)
		control(&pair, "parts of a huge page", memory + n * 3 * PART, PART);
	is(huge_kib(memory, HUGE), before, "the huge page is whole after four parts were registered");
	old = in_use(memory, PART, LOCAL_AND_REMOTE);
	must(raw_munmap(memory, HUGE) == 0);
	fresh_at(memory, HUGE);
	before = huge_touched(memory, HUGE);
	anew(&pair, "a huge page where a region in use was", memory + 3 * PART, PART);
	is(huge_kib(memory, HUGE), before, "it is whole after a part was registered");
	is(deregister_region(old), 0, "the region in use is deregistered");
	control(&pair, "where a region in use was", memory, PART);
	must(munmap(memory, HUGE) == 0);
}

/* Below an idle region, a huge page replaces a page of a page table. */
static void huge_page_comes(void)
{
	char *memory = aligned(1);

	control(&pair, "before a huge page", memory, PART);
	must(syscall(SYS_madvise, memory, HUGE, MADV_DONTNEED) == 0 && madvise(memory, HUGE, MADV_HUGEPAGE) == 0);
	memset(memory, 1, HUGE);
	printf("# %ld KiB of huge pages\n", huge_kib(memory, HUGE));
	anew(&pair, "a huge page where small ones were", memory, PART);
	must(munmap(memory, HUGE) == 0);
}

static bool write_to(const char *path, const char *value)
{
	FILE *file = fopen(path, "we");

	return file && fputs(value, file) >= 0 && fclose(file) == 0;
}

static void compacted(void)
{
	char *memory = pages(COUNT);

	control(&pair, "before", memory, SIZE);
	for (int n = 0; n < 4; n++) {
		if (!write_to("/proc/sys/vm/compact_memory", "1"))
			skip_all("only root may");
		still(&pair, "after compaction", memory, SIZE);
	}
	must(munmap(memory, SIZE) == 0);
}

#define KSM "/sys/kernel/mm/ksm/"

static long number_in(const char *path)
{
	FILE *file = fopen(path, "re");
	long number = -1;

	if (file) {
		if (fscanf(file, "%ld", &number) != 1)
			number = -1;
		fclose(file);
	}
	return number;
}

/* The kernel merges pages with the same content, except pinned ones. */
static void merged(void)
{
	char *memory = pages(3 * COUNT), *idle = memory + COUNT * PAGE;
	long scans = number_in(KSM "full_scans");

	control(&pair, "before pages are merged", idle, SIZE);
	memset(memory, 7, 3 * SIZE);
	if (!write_to(KSM "pages_to_scan", "1000") || !write_to(KSM "sleep_millisecs", "1") ||
	    madvise(memory, 3 * SIZE, MADV_MERGEABLE) || !write_to(KSM "run", "1"))
		skip_all("only root may, on a kernel that can");
	for (int tries = 0; tries < 500 && number_in(KSM "full_scans") < scans + 4; tries++)
		usleep(10000);
	printf("# %ld pages are merged\n", number_in(KSM "pages_sharing"));
	ok(number_in(KSM "full_scans") >= scans + 4, "all pages were looked at");
	either(&pair, "after pages were merged", idle, SIZE);
	/* A merged page is copied before a device gets it. */
	ok(lands(&pair, memory, 3 * SIZE), "merged pages: data lands in the current page");
	control(&pair, "merged pages", memory, 3 * SIZE);
	memset(memory, 8, 3 * SIZE);
	ok(lands(&pair, memory, 3 * SIZE), "written again: data lands in the current page");
	must(write_to(KSM "run", "2") && write_to(KSM "run", "0"));
	ok(lands(&pair, memory, 3 * SIZE), "all unmerged: data lands in the current page");
	must(munmap(memory, 3 * SIZE) == 0);
}

/*
 * A program registers the first part of a buffer, in ever other lengths: more regions begin at its
 * first page than the index has entries for one page. The last registered region is reused. Before
 * Linux 6.11 the library reads all mappings to find one, for a tenth of the time at most: on a busy
 * machine it may have to wait, and then counts that.
 */
static bool used_again(char *memory, size_t length, int access, int *failed)
{
	for (int tries = 1;; tries++) {
		struct rdmamr_stats before = stats(), after;

		*failed += !lands_with(&pair, memory, length, access);
		after = stats();
		if (reused(before, after))
			return true;
		show(before, after);
		if (tries == 20 || after.bypassed_busy != before.bypassed_busy + 1)
			return false;
		usleep(tries * 50000);
	}
}

static void many_at_one_page(void)
{
	enum { PAGES = 100 };
	char *memory = pages(PAGES);
	int failed = 0, anew = 0;

	if (plain_calls())
		skip_all("by the relaxed calls alone, which the cache serves from the first time on");
	for (int n = 1; n <= PAGES; n++) {
		for (int round = 0; round < 2; round++) {
			struct ibv_mr *mr = register_region(pair.pd, memory, (size_t)n * PAGE, (int)row->value);

			failed += !mr || deregister_region(mr) != 0;
		}
		anew += !used_again(memory, (size_t)n * PAGE, (int)row->value, &failed);
	}
	is(failed, 0, "each of 1 to %d pages is registered three times, and data lands", PAGES);
	is(anew, 0, "by a cached region");
}

/*
 * A call that changes memory can take long. While one is under way the cache reuses no region: a
 * registration bypasses it. The program gets one region, and no other user holds it.
 *
 * The call is an mremap(2) that gives up the memory behind the region. Another userfaultfd watches
 * that memory: the call waits until its event is read, when the registration has returned.
 */

enum { LENGTH = 4 * PAGE, ROUNDS = 50 };
static int watch;
static atomic_bool returned, ended;

static void *shrink(void *at)
{
	must(mremap(at, LENGTH + PAGE, LENGTH, 0) == at);
	return NULL;
}

static void *read_event(void *argument)
{
	struct uffd_msg message;

	while (!returned)
		sched_yield();
	must(read(watch, &message, sizeof(message)) == sizeof(message) && message.event == UFFD_EVENT_UNMAP);
	return argument;
}

static uint32_t key_of(char *at)
{
	struct ibv_mr *mr = reg_with(at, LENGTH, LOCAL_AND_REMOTE);
	uint32_t key = mr->lkey;

	let_go(mr);
	return key;
}

/* Brings the cache up to date soon after the call has returned, as the other threads of a program do. */
static void *use_other_memory(void *other)
{
	while (!ended)
		key_of(other);
	return NULL;
}

/* Registers while a call is under way. Returns whether the cache served it. */
static bool register_beside(char *at)
{
	struct uffdio_register tail = { .range = { (uintptr_t)at + LENGTH, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	pthread_t shrinking, reading;
	unsigned char there;
	struct ibv_mr *mr;
	uint32_t kept;
	bool hit;

	/* By its second use the cache knows the kind of the memory. */
	do
		kept = key_of(at);
	while (key_of(at) != kept);
	returned = false;
	fresh_at(at + LENGTH, PAGE);
	must(ioctl(watch, UFFDIO_REGISTER, &tail) == 0);
	must(pthread_create(&shrinking, NULL, shrink, at) == 0);
	/* The call has begun: its memory is gone. */
	while (mincore(at + LENGTH, PAGE, &there) == 0)
		sched_yield();
	must(errno == ENOMEM && pthread_create(&reading, NULL, read_event, NULL) == 0);
	mr = reg_with(at, LENGTH, LOCAL_AND_REMOTE);
	returned = true;
	must(pthread_join(reading, NULL) == 0 && pthread_join(shrinking, NULL) == 0);
	must(lands_in(&pair, mr, at, LENGTH));
	hit = mr->lkey == kept;
	let_go(mr);
	return hit;
}

static void long_change(void)
{
	char *at = new_place(LENGTH + PAGE);
	pthread_t other;
	int hits = 0;

	fresh_at(at, LENGTH);
	watch = open_userfaultfd(UFFD_FEATURE_EVENT_UNMAP);
	must(watch >= 0 && fcntl(watch, F_SETFL, 0) == 0);
	must(pthread_create(&other, NULL, use_other_memory, memory) == 0);
	for (int n = 0; n < ROUNDS; n++)
		hits += register_beside(at);
	ended = true;
	must(pthread_join(other, NULL) == 0);
	is(hits, 0, "beside a call that does not end, %d registrations bypass the cache", ROUNDS);
}

static const struct row rows[] = {
	{ "a sealed memfd", sealed },
	{ "shared memory counts", counted },
	{ "variables of a shared object that is unloaded", unloaded },
	{ "variables of a shared object that is unloaded while they are in use", unloaded, 1 },
	{ "variables of a shared object that is loaded again", reloaded },
	{ "the same buffer in the next call of a function", next_call },
	{ "buffers at all depths of a recursion", recursion },
	/* Too large for libc's cache of stacks; libc caches the other, and gives its pages back by madvise. */
	{ "a thread's stack that libc unmaps", recycled, LARGE },
	{ "a thread's stack that libc caches", recycled, SMALL },
	{ "a thread's stack of the program's own", recycled, -SMALL },
	{ "a mapping that grows down", grows_down },
	{ "a right to write comes, untouched memory, local", upgraded, UNTOUCHED },
	{ "a right to write comes, untouched memory, remote", upgraded, UNTOUCHED | REMOTE },
	{ "a right to write comes, pages of zeros, local", upgraded, ZEROS },
	{ "a right to write comes, pages of zeros, remote", upgraded, ZEROS | REMOTE },
	{ "a right to write comes, a file's pages, local", upgraded, OF_FILE },
	{ "a right to write comes, a file's pages, remote", upgraded, OF_FILE | REMOTE },
	{ "one right less", downgraded },
	{ "device memory, a packet ring", of_device, COUNT, packet_ring, PLAIN },
	{ "device memory, the entries of an io_uring", of_device, 1, uring_entries, PLAIN },
	{ "device memory, a perf buffer", of_device, 1, perf_buffer },
	{ "device memory, a dma-buf", of_device, COUNT, dmabuf },
	{ "device memory, the registers of a PCI device", of_device, 1, pci },
	{ "device memory, physical memory", of_device, 1, physical },
	{ "device memory, a queue of the RDMA device", of_device, 1, queue },
	{ "device memory, the kernel's clock page", of_device, 1, clock_page },
	{ "a part of a huge page", part_of_a_huge_page },
	{ "parts of a huge page", neighbours },
	{ "a huge page comes", huge_page_comes },
	{ "compaction", compacted },
	{ "merged pages", merged },
	{ "more regions at one page than the index has entries, remote rights", many_at_one_page, LOCAL_AND_REMOTE },
	{ "more regions at one page than the index has entries, local rights", many_at_one_page, IBV_ACCESS_LOCAL_WRITE },
	{ "beside a call that takes long", long_change },
};

static void around(void)
{
	/* A thread's first malloc would map an arena, perhaps where its old stack was. */
	must(mallopt(M_ARENA_MAX, 1) == 1);
	on_pair();
	is((long long)stats().flushed_linger, 0, "no region ended by age");
}

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, around);
}
