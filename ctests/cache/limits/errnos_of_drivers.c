/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Some drivers have errnos of their own for a device without a free key, for memory that cannot be
 * pinned and for a region that is too long. By whichever of them a full device refuses, the cache
 * deregisters its idle regions, and the registration succeeds. A wrong request, even one that gets
 * the same errno, costs no idle region. The reason in words names the cause, not the errno.
 *
 * The device is the stand-in (stub_device.h), in the place of each driver.
 */
#include <rdma/ib_user_ioctl_verbs.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/observe.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

/* Newer than the headers of Linux 6.1. */
enum { MANA = 20, IONIC = 21 };
enum { KEYS = 32, IDLE = 30, WANTED = 20, LONGEST = 64 * PAGE };

static const struct driver {
	const char *name;
	struct stub_driver says;
} drivers[] = {
	{ "rxe", { RDMA_DRIVER_RXE, ENOMEM, EFAULT, LONGEST, EINVAL, 1 << 20 } },
	{ "erdma", { RDMA_DRIVER_ERDMA, ENOSPC, EFAULT, LONGEST, EINVAL, 1 << 20 } },
	{ "ionic", { IONIC, ENOSPC, EFAULT, LONGEST, EINVAL, 1 << 20 } },
	{ "qedr", { RDMA_DRIVER_QEDR, EINVAL, EFAULT, LONGEST, EINVAL, 1 << 20 } },
	{ "bnxt_re", { RDMA_DRIVER_BNXT_RE, EIO, EFAULT, LONGEST, ENOMEM, 1 << 20 } },
	{ "hns", { RDMA_DRIVER_HNS, ENOMEM, ENOMEM, LONGEST, EINVAL, 1 << 20 } },
	{ "mana", { MANA, EPROTO, EFAULT, LONGEST, EPROTO, 1 << 20 } },
	{ "vmw_pvrdma", { RDMA_DRIVER_VMW_PVRDMA, EFAULT, EFAULT, LONGEST, EINVAL, 1 << 20 } },
	{ "ocrdma", { RDMA_DRIVER_OCRDMA, EAGAIN, EFAULT, LONGEST, EINVAL, 1 << 20 } },
	{ "cxgb4", { RDMA_DRIVER_CXGB4, ENOMEM, ENOMEM, LONGEST, EINVAL, 1 << 20 } },
};

static struct ibv_mr *registered(char *memory, size_t length)
{
	return ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);
}

static void refused(struct ibv_mr *mr, int err, const char *what, const char *words)
{
	int was = errno;
	const char *reason = rdmamr_last_reason();

	ok(!mr && was == err, "%s has errno %d", what, was);
	ok(strstr(reason, words) != NULL, "%s: %s", what, reason);
}

static void wrong_requests(const struct driver *driver, char *memory)
{
	char *hole = pages(3);
	int idle = (int)stats().idle;

	must(munmap(hole + PAGE, PAGE) == 0);
	errno = 0;
	refused(ibv_reg_mr(stub_pd(), hole, 3 * PAGE, LOCAL_AND_REMOTE), driver->says.unpinned, "memory with a hole",
		"nothing is mapped at 0x");
	errno = 0;
	refused(ibv_reg_mr(stub_pd(), memory, LONGEST + PAGE, LOCAL_AND_REMOTE), driver->says.too_long,
		"a region that is too long", "(262144, max_mr_size)");
	errno = 0;
	refused(ibv_reg_mr(stub_pd(), memory, PAGE, IBV_ACCESS_REMOTE_WRITE), EINVAL, "a wrong access flag",
		"need local write");
	is(stats().idle, idle, "the wrong requests cost no idle region");
}

static void full_device(const struct driver *driver, char *memory)
{
	struct ibv_mr *held[KEYS], *mr;
	int count = 0;

	for (int n = 0; n < WANTED; n++) {
		held[n] = registered(memory + (2L * (IDLE + n)) * PAGE, PAGE);
		count += held[n] && stub_lands(held[n]);
	}
	is(count, WANTED, "%d registrations beside %d idle regions of a device with %d keys", WANTED, IDLE, KEYS);
	for (; count < KEYS; count++)
		must(held[count] = registered(memory + (2L * (IDLE + count)) * PAGE, PAGE));
	errno = 0;
	mr = ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	refused(mr, driver->says.full, "with all keys in use, one more", "the device has no key left of its 1048576 (max_mr)");
	for (int n = 0; n < KEYS; n++)
		must(ibv_dereg_mr_relaxed(held[n]) == 0);
}

/* bnxt_re of Linux 6.1, qedr and ocrdma report the limit as they report memory that is not mapped. */
static bool limit_is_fault(const struct driver *driver)
{
	uint32_t id = driver->says.id;

	return id == RDMA_DRIVER_BNXT_RE || id == RDMA_DRIVER_QEDR || id == RDMA_DRIVER_OCRDMA;
}

static void over_the_limit(const struct driver *driver, char *memory)
{
	const struct rlimit limit = { 16 * PAGE, 16 * PAGE };
	int err = limit_is_fault(driver) ? EFAULT : ENOMEM;

	drop_memlock_right();
	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	stub_fail(STUB_REGISTER, err, 1);
	errno = 0;
	refused(ibv_reg_mr(stub_pd(), memory, 20 * PAGE, LOCAL_AND_REMOTE), err, "over RLIMIT_MEMLOCK",
		"RLIMIT_MEMLOCK: this needs 80 KiB, and 0 of 64 KiB are pinned already (VmPin)");
	ok(!strstr(rdmamr_last_reason(), "; or "), "it is the only cause");
}

/*
 * A cached region. On a busy machine a registration may bypass the cache, which then counts that,
 * and the next one may not.
 */
static struct ibv_mr *cached(char *memory, size_t length)
{
	for (int tries = 1;; tries++) {
		const struct rdmamr_stats before = stats();
		struct ibv_mr *mr = registered(memory, length);

		must(mr);
		if (tries == 10 || stats().bypassed_busy == before.bypassed_busy)
			return mr;
		must(ibv_dereg_mr_relaxed(mr) == 0);
		usleep(tries * 50000);
	}
}

static void of_driver(const struct driver *driver)
{
	char *memory = pages(4L * KEYS + LONGEST / PAGE);
	struct ibv_mr *regions[IDLE];

	stub_drive(driver->says);
	stub_have(KEYS);
	for (int n = 0; n < IDLE; n++)
		regions[n] = cached(memory + 2L * n * PAGE, PAGE);
	for (int n = 0; n < IDLE; n++)
		must(ibv_dereg_mr_relaxed(regions[n]) == 0);
	is(stats().idle, IDLE, "%d regions are idle", IDLE);
	wrong_requests(driver, memory);
	full_device(driver, memory);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(stub_registered(), stub_deregistered(), "no region is left");
	over_the_limit(driver, memory);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	/* A child each: the library asks a device for its driver once. */
	for (size_t n = 0; n < sizeof(drivers) / sizeof(*drivers); n++) {
		pid_t child;
		int status;

		fflush(stdout);
		child = fork();
		must(child >= 0);
		if (child == 0) {
			as_case(of_driver(&drivers[n]), "%s", drivers[n].name);
			fflush(stdout);
			_exit(0);
		}
		must(waitpid(child, &status, 0) == child && status == 0);
		tap_count++;
	}
	return done_testing();
}
