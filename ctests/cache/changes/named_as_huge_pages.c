/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * /proc/self/maps shows a file on an unmounted hugetlbfs by the name that the program gives it, so
 * the name can equal the kernel's for huge pages of no file. It is a file all the same: a change of
 * its size takes the pages of a private mapping, without an event. The cache reuses no region of
 * it, but reuses those of huge pages of no file.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { HUGE = 2 << 20, ROUNDS = 20 };

static bool lands(void *memory, size_t length)
{
	struct ibv_mr *mr = NULL;
	bool good;

	/*
	 * The io_uring of Linux 6.1 unpins later than a device would: the machine may be short of huge
	 * pages for a while.
	 */
	for (int tries = 0; !mr && tries < 10000; tries++) {
		mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);
		must(mr || (errno == EFAULT && usleep(10000) == 0));
	}
	must(mr);
	good = stub_lands(mr);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return good;
}

/* A folder of a hugetlbfs of this program's own, mounted nowhere. */
static int detached(void)
{
	int config = (int)syscall(SYS_fsopen, "hugetlbfs", 0), folder = -1;

	if (config < 0)
		return -1;
	if (syscall(SYS_fsconfig, config, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		folder = (int)syscall(SYS_fsmount, config, 0, 0);
	must(close(config) == 0);
	return folder;
}

static void named(int folder, const char *name, bool deleted)
{
	int file = openat(folder, name, O_CREAT | O_RDWR | O_CLOEXEC, 0600), stale = 0;
	char *memory;

	must(file >= 0 && ftruncate(file, HUGE) == 0);
	if (deleted)
		must(unlinkat(folder, name, 0) == 0);
	memory = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	must(memory != MAP_FAILED);
	for (int round = 0; round < ROUNDS; round++) {
		stale += !lands(memory, PAGE);
		stale += !lands(memory, PAGE);
		must(ftruncate(file, 0) == 0 && ftruncate(file, HUGE) == 0);
		stale += !lands(memory, PAGE);
	}
	is(stale, 0, "a file called \"%s\"%s, cut: data lands in the current page", name, deleted ? ", deleted" : "");
	must(munmap(memory, HUGE) == 0 && close(file) == 0);
	if (!deleted)
		must(unlinkat(folder, name, 0) == 0);
}

static void of_no_file(void)
{
	char *memory = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	struct rdmamr_stats before = stats();
	int stale = 0;

	must(memory != MAP_FAILED);
	for (int round = 0; round < ROUNDS; round++)
		stale += !lands(memory, PAGE);
	is(stale, 0, "huge pages of no file: data lands");
	is((long long)(stats().hits - before.hits), ROUNDS - 1, "and they are reused");
	must(munmap(memory, HUGE) == 0);
}

int main(int argc, char **argv)
{
	const char *why;
	void *room;
	int folder;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	if (getenv("VM"))
		must(system("[ $(cat /proc/sys/vm/nr_hugepages) -ge 2 ] || echo 8 >/proc/sys/vm/nr_hugepages") == 0);
	room = mmap(NULL, 2 * HUGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (room == MAP_FAILED)
		skip_all("there are no two free huge pages of 2 MiB (vm.nr_hugepages)");
	must(munmap(room, 2 * HUGE) == 0);
	must(lands(pages(1), PAGE));
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	of_no_file();
	folder = detached();
	if (folder < 0) {
		skip_errno("a hugetlbfs of its own", "fsopen");
	} else {
		named(folder, "anon_hugepage", true);
		named(folder, "anon_hugepage (deleted)", false);
	}
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(stub_registered() - stub_deregistered(), 0, "the device has no region left");
	return done_testing();
}
