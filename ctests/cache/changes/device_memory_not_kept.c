/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory of a device or the kernel: its contents can change without a change of the CPU's page
 * tables, so the cache keeps no region of it. A relaxed registration has the result of a plain one,
 * and its region is one of its own, which ends with its deregistration.
 */
#include "../../lib/observe.h"
#include <dirent.h>
#include <linux/if_packet.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/udmabuf.h>
#include <sys/auxv.h>

static struct pair pair;
static int good_ones, refused_ones;

/* The errno of a plain registration; 0 if it succeeds. */
static int plain_verdict(void *memory, size_t length, int access)
{
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr(pair.pd, memory, length, access);
	if (!mr)
		return errno;
	must(ibv_dereg_mr(mr) == 0);
	return 0;
}

static void as_plain(const char *name, void *memory, size_t length, int access)
{
	int verdict = plain_verdict(memory, length, access), regions = kernel_regions(pair.context), got;

	for (int round = 0; round < 2; round++) {
		struct rdmamr_stats before, after;
		struct ibv_mr *mr;

		errno = 0;
		mr = register_by_cache(pair.pd, memory, length, access, &before);
		got = mr ? 0 : errno;
		after = stats();
		is(got, verdict, "%s: the result of a plain registration (%s)", name,
		   verdict ? strerrorname_np(verdict) : "registered");
		if (!mr) {
			refused_ones++;
			is(kernel_regions(pair.context), regions, "%s: nothing is left of it", name);
			continue;
		}
		good_ones++;
		ok(made_anew(before, after) && after.bypassed_memory == before.bypassed_memory + 1,
		   "%s: a region of its own", name);
		if (access & IBV_ACCESS_REMOTE_WRITE)
			ok(lands_in(&pair, mr, memory, length), "%s: data lands", name);
		is(deregister_region(mr), 0, "%s: deregistered", name);
		is(kernel_regions(pair.context), regions, "%s: at once", name);
		is((long long)stats().idle, (long long)before.idle, "%s: and it is not cached", name);
	}
}

static void packet_ring(void)
{
	struct tpacket_req ring = { .tp_block_size = 4 * PAGE, .tp_block_nr = 1, .tp_frame_size = 2048,
				    .tp_frame_nr = 8 };
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	void *memory = MAP_FAILED;

	if (fd >= 0 && setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)) == 0)
		memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED) {
		skip("a packet ring", "no packet sockets for this user");
		return;
	}
	as_plain("a packet ring", memory, 4 * PAGE, LOCAL_AND_REMOTE);
	must(munmap(memory, 4 * PAGE) == 0 && close(fd) == 0);
}

static void uring(void)
{
	struct io_uring_params params = { 0 };
	int fd = (int)syscall(SYS_io_uring_setup, 64, &params);
	void *memory = MAP_FAILED;

	if (fd >= 0)
		memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQES);
	if (memory == MAP_FAILED) {
		skip_errno("the entries of an io_uring", "there is no io_uring");
		return;
	}
	as_plain("the entries of an io_uring", memory, PAGE, LOCAL_AND_REMOTE);
	must(munmap(memory, PAGE) == 0 && close(fd) == 0);
}

static void perf_buffer(void)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE, .size = sizeof(attr), .disabled = 1,
					.config = PERF_COUNT_SW_DUMMY };
	int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	char *memory = MAP_FAILED;

	if (fd >= 0)
		memory = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED) {
		skip("a perf buffer", "no perf events for this user");
		return;
	}
	as_plain("a perf buffer", memory + PAGE, PAGE, LOCAL_AND_REMOTE);
	must(munmap(memory, 3 * PAGE) == 0 && close(fd) == 0);
}

/* A buffer of another device's driver, as a GPU's is: here one that is made of a memfd. */
static void dmabuf(void)
{
	struct udmabuf_create create = { .size = 4 * PAGE };
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd = memfd_create("dmabuf", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	int buffer = -1;
	void *memory = MAP_FAILED;
	struct rdmamr_stats before;
	struct ibv_mr *mr;

	must(fd >= 0 && ftruncate(fd, 4 * PAGE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	create.memfd = (uint32_t)fd;
	if (device >= 0)
		buffer = ioctl(device, UDMABUF_CREATE, &create);
	if (buffer >= 0)
		memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, buffer, 0);
	if (memory == MAP_FAILED) {
		skip_errno("a dma-buf", "the kernel has no udmabuf");
		return;
	}
	memset(memory, 1, 4 * PAGE);
	as_plain("a dma-buf that is mapped", memory, 4 * PAGE, LOCAL_AND_REMOTE);
	before = stats();
	mr = ibv_reg_dmabuf_mr(pair.pd, 0, 4 * PAGE, 0, buffer, IBV_ACCESS_LOCAL_WRITE);
	ok(stats().hits == before.hits && stats().misses == before.misses && stats().idle == before.idle,
	   "a dma-buf by its descriptor (%s) is not the cache's", mr ? "registered" : strerrorname_np(errno));
	must(!mr || ibv_dereg_mr(mr) == 0);
	must(munmap(memory, 4 * PAGE) == 0);
	close(buffer);
	close(device);
	close(fd);
}

static void device_file(const char *name, const char *path, off_t offset, int mode)
{
	int fd = open(path, mode | O_CLOEXEC);
	void *memory = MAP_FAILED;

	if (fd >= 0)
		memory = mmap(NULL, PAGE, mode == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, offset);
	if (memory == MAP_FAILED) {
		skip(name, "it cannot be mapped here");
		return;
	}
	as_plain(name, memory, PAGE, IBV_ACCESS_REMOTE_READ);
	as_plain(name, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(munmap(memory, PAGE) == 0 && close(fd) == 0);
}

/*
 * The first register file of a PCI device that can be mapped. The test only registers it: it reads
 * and writes nothing.
 */
static void pci(void)
{
	DIR *dir = opendir("/sys/bus/pci/devices");
	struct dirent *entry;
	char path[512];

	while (dir && (entry = readdir(dir)))
		for (int n = 0; n < 6; n++) {
			void *memory = MAP_FAILED;
			int fd;

			snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource%d", entry->d_name, n);
			fd = open(path, O_RDWR | O_CLOEXEC);
			if (fd >= 0)
				memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (fd >= 0)
				close(fd);
			if (memory == MAP_FAILED)
				continue;
			must(munmap(memory, PAGE) == 0);
			closedir(dir);
			device_file("the registers of a PCI device", path, 0, O_RDWR);
			return;
		}
	if (dir)
		closedir(dir);
	skip("the registers of a PCI device", "none can be mapped here");
}

/* A mapping by its name in /proc/self/maps. */
static void named(const char *name, const char *pattern, int access)
{
	FILE *file = fopen("/proc/self/maps", "re");
	char line[512], *found = NULL;
	unsigned long start = 0;

	must(file);
	while (!found && fgets(line, sizeof(line), file))
		found = strstr(line, pattern);
	fclose(file);
	if (!found || sscanf(line, "%lx", &start) != 1) {
		skip(name, "there is no such mapping");
		return;
	}
	as_plain(name, (void *)start, PAGE, access);
}

int main(int argc, char **argv)
{
	char *memory = pages(1);

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	control(&pair, "memory of the program's own", memory, PAGE);
	packet_ring();
	uring();
	perf_buffer();
	dmabuf();
	pci();
	device_file("physical memory", "/dev/mem", 0xf0000, O_RDONLY);
	named("a queue of the RDMA device", "infiniband", IBV_ACCESS_REMOTE_READ);
	named("the kernel's clock page", "[vvar]", 0);
	ok(good_ones > 0 && refused_ones > 0, "%d were registered and %d were not", good_ones, refused_ones);
	still(&pair, "memory of the program's own, after all that", memory, PAGE);
	return relaxed_close(&pair);
}
