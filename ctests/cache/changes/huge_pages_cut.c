/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program registers and deregisters huge pages, cuts their file by ftruncate and maps huge pages
 * anew. A machine has few of them. So the cache keeps no region of these pages, not for a moment:
 * pages that the file gave back are free, and the next mmap gets them.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { HUGE = 2 << 20, ROUNDS = 50 };

/* The number of huge pages that the machine has. */
static size_t free_pages(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	size_t number = 0;
	char line[200];

	must(file);
	while (fgets(line, sizeof(line), file))
		sscanf(line, "HugePages_Free: %zu", &number);
	must(fclose(file) == 0);
	return number;
}

static void use(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);

	must(mr && stub_lands(mr) && ibv_dereg_mr_relaxed(mr) == 0);
}

static long pinned(void)
{
	return stub_registered() - stub_deregistered();
}

/* Waits until all huge pages are free, and returns their number. */
static void comes_back(size_t all)
{
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	must(comes(free_pages() >= all));
}

/*
 * Whether the stand-in unpins pages as soon as it has deregistered them, as a device does. The
 * io_uring of Linux 6.1 does so later.
 */
static bool lets_go(size_t all)
{
	char *memory = mmap(NULL, all * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	struct ibv_mr *mr;
	bool free;

	must(memory != MAP_FAILED);
	mr = stub_register(stub_pd(), memory, all * HUGE, LOCAL_AND_REMOTE);
	must(mr && stub_deregister(mr) == 0 && munmap(memory, all * HUGE) == 0);
	free = free_pages() == all;
	comes_back(all);
	return free;
}

/* The kernel goes on reserving pages for a private mapping whose file was cut. */
static void of_a_file(const char *kind, int flags, size_t all)
{
	int file = memfd_create("file", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB), kept = 0, refused = 0;
	size_t length = all * HUGE;

	must(file >= 0);
	for (int round = 0; round < ROUNDS; round++) {
		char *memory, *others;

		must(ftruncate(file, (off_t)length) == 0);
		memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, file, 0);
		must(memory != MAP_FAILED);
		use(memory, length);
		kept += pinned() != 0;
		must(ftruncate(file, 0) == 0);
		others = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
		refused += others == MAP_FAILED;
		if (others != MAP_FAILED)
			must(munmap(others, length) == 0);
		must(munmap(memory, length) == 0);
		comes_back(all);
	}
	is(kept, 0, "a %s mapping of a file: after none of %d releases are its huge pages pinned", kind, ROUNDS);
	if (flags != MAP_SHARED)
		;
	else if (lets_go(all))
		is(refused, 0, "and none of %d mmaps fails after the file was cut", ROUNDS);
	else
		skip("mmap after the file was cut", "this kernel unpins later than a device would");
	must(close(file) == 0);
}

static void of_a_segment(size_t all)
{
	int kept = 0;

	for (int round = 0; round < ROUNDS; round++) {
		int id = shmget(IPC_PRIVATE, all * HUGE, IPC_CREAT | SHM_HUGETLB | 0600);
		char *memory;

		if (id < 0) {
			skip_errno("a segment of huge pages", "shmget");
			return;
		}
		memory = shmat(id, NULL, 0);
		must(memory != (char *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
		use(memory, all * HUGE);
		kept += pinned() != 0;
		must(shmdt(memory) == 0);
		comes_back(all);
	}
	is(kept, 0, "a System V segment: after none of %d releases are its huge pages pinned", ROUNDS);
}

static void of_no_file(size_t all)
{
	char *memory = mmap(NULL, all * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	int kept = 0;

	must(memory != MAP_FAILED);
	for (int round = 0; round < ROUNDS; round++) {
		use(memory, all * HUGE);
		kept += pinned() != 0;
	}
	is(kept, 0, "private ones: after none of %d releases are the huge pages pinned", ROUNDS);
	must(munmap(memory, all * HUGE) == 0);
	comes_back(all);
}

int main(int argc, char **argv)
{
	const char *why;
	size_t all;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE_BYTES", "1G");
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	if (getenv("VM"))
		must(system("[ $(cat /proc/sys/vm/nr_hugepages) -ge 2 ] || echo 8 >/proc/sys/vm/nr_hugepages") == 0);
	all = free_pages();
	if (all == 0)
		skip_all("there is no free huge page (vm.nr_hugepages)");
	use(pages(1), PAGE);
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	of_no_file(all);
	of_a_file("shared", MAP_SHARED, all);
	of_a_file("private", MAP_PRIVATE, all);
	of_a_segment(all);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(pinned(), 0, "the device has no region left");
	return done_testing();
}
