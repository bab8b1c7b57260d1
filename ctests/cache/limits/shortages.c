/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the device or the kernel refuses, and what a process has little of. Idle regions end for a shortage,
 * and a wrong request costs none. A refused registration returns the kernel's errno with a reason and leaves
 * nothing behind; a refused deregistration is tried again; a registration that the cache has no room for is a
 * plain one. Some drivers have errnos of their own: the stand-in takes the place of each.
 */
#include <malloc.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include "../../lib/observe.h"
#include "../../lib/stub_rows.h"

static struct ibv_mr *plainly(char *at, size_t length, int access)
{
	errno = 0;
	return ibv_reg_mr(stub_pd(), at, length, access);
}

static void refused(struct ibv_mr *mr, int err, const char *what, const char *words)
{
	is(mr ? 0 : errno, err, "%s: its errno", what);
	ok(strstr(rdmamr_last_reason(), words) != NULL, "%s: %s", what, rdmamr_last_reason());
}

/* Keys. */

/* Newer than the headers of Linux 6.1. */
enum { MANA = 20, IONIC = 21 };
enum { KEYS = 32, IDLE = 30, LONGEST = 64 * PAGE };

static void of_driver(void)
{
	const struct stub_driver *says = row->of;
	uint32_t id = says->id;
	/* These report RLIMIT_MEMLOCK as they report memory that is not mapped; bnxt_re in Linux 6.1. */
	int over = id == RDMA_DRIVER_BNXT_RE || id == RDMA_DRIVER_QEDR || id == RDMA_DRIVER_OCRDMA ? EFAULT : ENOMEM;
	const struct rlimit limit = { 16 * PAGE, 16 * PAGE };
	char *memory = pages(4L * KEYS + LONGEST / PAGE), *hole = pages(3);
	struct ibv_mr *regions[KEYS];

	stub_drive(*says);
	stub_have(KEYS);
	must(munmap(hole + PAGE, PAGE) == 0);
	for (int n = 0; n < IDLE; n++)
		leave_idle(memory + 2L * n * PAGE);
	refused(plainly(hole, 3 * PAGE, LOCAL_AND_REMOTE), says->unpinned, "memory with a hole", "nothing is mapped at 0x");
	refused(plainly(memory, LONGEST + PAGE, LOCAL_AND_REMOTE), says->too_long, "a region that is too long", "(262144, max_mr_size)");
	refused(plainly(memory, PAGE, IBV_ACCESS_REMOTE_WRITE), EINVAL, "a wrong access flag", "need local write");
	is(stats().idle, IDLE, "the wrong requests cost no idle region");
	for (int n = 0; n < KEYS; n++) {
		regions[n] = reg(memory + (2L * (IDLE + n)) * PAGE, PAGE);
		ok(stub_lands(regions[n]), "registered beside %d idle regions of a device with %d keys", IDLE, KEYS);
	}
	refused(plainly(memory, PAGE, LOCAL_AND_REMOTE), says->full, "with all keys in use, one more",
		"the device has no key left of its 1048576 (max_mr)");
	for (int n = 0; n < KEYS; n++)
		dereg(regions[n]);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(stub_registered(), stub_deregistered(), "no region is left");
	drop_memlock_right();
	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	stub_fail(STUB_REGISTER, over, 1);
	/* Linux 6.1 unpins the stand-in's regions some time later. */
	ok(comes(field_of("/proc/self/status", "VmPin") == 0), "nothing is pinned");
	refused(plainly(memory, 20 * PAGE, LOCAL_AND_REMOTE), over, "over RLIMIT_MEMLOCK",
		"RLIMIT_MEMLOCK: this needs 80 KiB, and 0 of 64 KiB are pinned already (VmPin)");
	ok(!strstr(rdmamr_last_reason(), "; or "), "it is the only cause");
}

/* Idle regions are at most an eighth of those that the device has left for all processes. */

enum { REGIONS = 800, COUNT = 400 };

/* Regions in use leave fewer. */
static void part_at_once(void)
{
	char *memory = pages(2 * COUNT);
	struct ibv_mr *regions[COUNT];

	stub_have(REGIONS);
	for (int n = 0; n < COUNT; n++)
		regions[n] = reg(memory + 2L * n * PAGE, PAGE);
	for (int n = 0; n < COUNT; n++)
		once(memory + (2L * n + 1) * PAGE);
	/* The library reads the limit when the regions have doubled, and each second. */
	ok(comes(stats().idle <= (REGIONS - COUNT) / 8), "while %d are in use, at most an eighth of the others is idle", COUNT);
	for (int n = 0; n < COUNT; n++)
		dereg(regions[n]);
	ok(comes(stats().idle <= REGIONS / 8), "all at once leave no more than an eighth");
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "flushed");
	is(in_device(), 0, "the device has no region left");
}

/* A device is unplugged: soon the cache hands out none of its regions any more. */

enum { UNPLUGGED = 40 };

static bool is_refused(char *page)
{
	struct ibv_mr *mr = plainly(page, PAGE, LOCAL_AND_REMOTE);

	/* A hit, before the cache knows. Its deregistration may meet the end. */
	if (mr)
		ibv_dereg_mr(mr);
	return !mr && errno == EIO;
}

static void device_gone(void)
{
	char *memory = pages(2 * UNPLUGGED);
	struct ibv_mr *held;

	for (int n = 0; n < UNPLUGGED; n++)
		leave_idle(memory + 2L * n * PAGE);
	is(stats().idle, UNPLUGGED, "%d regions are idle", UNPLUGGED);
	held = reg(memory, PAGE);
	ok(stats().hits > 0 && stub_lands(held), "a hit is in use");
	stub_unplug();
	ok(comes(is_refused(memory + 2 * PAGE)), "soon a registration fails with EIO");
	for (int n = 0; n < UNPLUGGED; n++)
		ok(is_refused(memory + 2L * n * PAGE), "so does that of all other ranges");
	ok(comes(stats().idle == 0), "no region of the device is idle");
	is(ibv_dereg_mr(held), 0, "a deregistration succeeds, as the kernel's does");
}

/* The kernel's refusals. */

static void same_errno(void)
{
	const char *name = strerrorname_np((int)row->value);
	struct ibv_mr *mr;

	stub_fail(STUB_REGISTER, (int)row->value, 1000);
	errno = 0;
	mr = ibv_reg_mr_relaxed(stub_pd(), pages(1), PAGE, LOCAL_AND_REMOTE);
	refused(mr, (int)row->value, "a registration", name);
}

/* A shortage ends when the idle regions have ended. */
static void relieved(void)
{
	uint64_t before;
	struct ibv_mr *mr;

	idle();
	before = stats().flushed_pressure;
	stub_fail(STUB_REGISTER, (int)row->value, 1);
	mr = plainly(pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(mr != NULL, "a plain registration succeeds");
	is((long long)(stats().flushed_pressure - before), 1, "the idle region has ended");
	must(!mr || ibv_dereg_mr(mr) == 0);
}

/* One region that is flushed, then one that the cleaner ends; both ends are refused first. */
static void tried_again(void)
{
	int err = (int)row->value;

	once(pages(1));
	/* The cleaner may try again meanwhile. */
	stub_fail(STUB_DEREGISTER, err, 1000);
	is(ibv_flush_relaxed_mr(stub_pd()), err, "a flush returns the kernel's refusal");
	is(in_device(), 1, "the region is still there");
	stub_fail(STUB_DEREGISTER, 0, 0);
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "the next flush");
	is(in_device(), 0, "has ended it");
	once(pages(1));
	stub_fail(STUB_DEREGISTER, err, 1);
	is(ibv_flush_relaxed_mr(stub_pd()), err, "refused again");
	none_is_left();
	/* The cache counts after the kernel has deregistered. */
	ok(comes(stats().idle == 0), "nothing is idle");
}

static void nothing_split(void)
{
	enum { REFUSED = 40000, APART = 4 << 20 }; /* the watch of a region reaches 2 MiB around it */
	char *scattered = untouched((size_t)REFUSED * APART);
	int before;

	idle();
	before = mappings();
	stub_fail(STUB_REGISTER, EFAULT, REFUSED);
	for (long n = 0; n < REFUSED; n++)
		must(!ibv_reg_mr_relaxed(stub_pd(), scattered + n * APART, PAGE, LOCAL_AND_REMOTE) && errno == EFAULT);
	ok(mappings() <= before + 2, "which leaves no mapping split: %d, %d before", mappings(), before);
	stub_fail(STUB_REGISTER, 0, 0);
	served(scattered, FRESH, "a registration there");
}

/*
 * Address space. The cache starts small, in less than a MiB, or in 2 where a page may have 64 KiB, and
 * grows as far as the limit allows.
 */

#ifdef __x86_64__
enum { ROOM = 1 << 20 };
#else
enum { ROOM = 2 << 20 };
#endif
enum { MANY = 10000 };

static long status(const char *field) { return field_of("/proc/self/status", field) << 10; }

static void limit_by(int which, long room)
{
	const char *field = which == RLIMIT_AS ? "VmSize" : "VmData";
	struct rlimit limit = { (rlim_t)(status(field) + room), (rlim_t)(status(field) + room) };

	must(setrlimit(which, &limit) == 0);
}

static void little_space(void)
{
	char *page = pages(1);

	limit_by((int)row->value, ROOM);
	ok(comes(hits(page, 1)), "regions are reused");
}

/* More regions than fit: each registration works. */
static void until_full(void)
{
	char *many = pages(MANY);
	struct ibv_mr **regions = (struct ibv_mr **)pages(MANY * sizeof(*regions) / PAGE + 1);
	int reused = 0;

	/* The memory that the C library needs for the objects of plain regions. */
	must(mallopt(M_TRIM_THRESHOLD, 64 << 20) == 1 && mallopt(M_MMAP_THRESHOLD, 16 << 20) == 1);
	spare_in_heap(8 << 20);
	limit_by((int)row->value, ROOM);
	for (int time = 0; time < 3; time++) {
		for (size_t n = 0; n < MANY; n++)
			regions[n] = reg(many + n * PAGE, PAGE);
		for (size_t n = 0; n < MANY; n++)
			dereg(regions[n]);
	}
	for (size_t n = 0; n < MANY; n++)
		reused += hits(many + n * PAGE, 1);
	ok(reused > 0, "the regions that fit are reused: %d of %d", reused, MANY);
}

static void all_resident(void)
{
	struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
	char *page = pages(1);
	long before;

	setrlimit(RLIMIT_MEMLOCK, &none);
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		skip_all("this process may not lock its memory");
	before = status("RssAnon");
	ok(comes(hits(page, 1)), "regions are reused");
	ok(status("RssAnon") - before <= ROOM, "%ld KiB have become resident", (status("RssAnon") - before) >> 10);
}

#define DRIVER(name, ...) { "the errnos of " name, of_driver, .of = &(const struct stub_driver){ __VA_ARGS__, 1 << 20 } }

static const struct row rows[] = {
	DRIVER("rxe", RDMA_DRIVER_RXE, ENOMEM, EFAULT, LONGEST, EINVAL),
	DRIVER("rxe after Linux 6.1", RDMA_DRIVER_RXE, EINVAL, EFAULT, LONGEST, EINVAL),
	DRIVER("erdma", RDMA_DRIVER_ERDMA, ENOSPC, EFAULT, LONGEST, EINVAL),
	DRIVER("ionic", IONIC, ENOSPC, EFAULT, LONGEST, EINVAL),
	DRIVER("qedr", RDMA_DRIVER_QEDR, EINVAL, EFAULT, LONGEST, EINVAL),
	DRIVER("bnxt_re", RDMA_DRIVER_BNXT_RE, EIO, EFAULT, LONGEST, ENOMEM),
	DRIVER("hns", RDMA_DRIVER_HNS, ENOMEM, ENOMEM, LONGEST, EINVAL),
	DRIVER("mana", MANA, EPROTO, EFAULT, LONGEST, EPROTO),
	DRIVER("vmw_pvrdma", RDMA_DRIVER_VMW_PVRDMA, EFAULT, EFAULT, LONGEST, EINVAL),
	DRIVER("ocrdma", RDMA_DRIVER_OCRDMA, EAGAIN, EFAULT, LONGEST, EINVAL),
	DRIVER("cxgb4", RDMA_DRIVER_CXGB4, ENOMEM, ENOMEM, LONGEST, EINVAL),
	{ "the idle part of a device, at once", part_at_once, .flags = NO_PINS },
	{ "a device that is gone", device_gone, .flags = PLAIN_CALLS },
	{ "a registration is refused, EAGAIN", same_errno, EAGAIN, .flags = NO_PINS },
	{ "a registration is refused, ENOMEM", same_errno, ENOMEM, .flags = NO_PINS },
	{ "a registration is refused, EFAULT", same_errno, EFAULT, .flags = NO_PINS },
	{ "a registration is refused once, ENOMEM", relieved, ENOMEM, .flags = NO_PINS },
	{ "a registration is refused once, EAGAIN", relieved, EAGAIN, .flags = NO_PINS },
	{ "many registrations are refused", nothing_split, .flags = NO_PINS },
	{ "a deregistration is refused, EIO", tried_again, EIO, .flags = NO_PINS },
	{ "a deregistration is refused, EBADF", tried_again, EBADF, .flags = NO_PINS },
	{ "a deregistration is refused, EBUSY", tried_again, EBUSY, .flags = NO_PINS },
	{ "RLIMIT_AS leaves little", little_space, RLIMIT_AS, .flags = UNPINNED },
	{ "RLIMIT_DATA leaves little", little_space, RLIMIT_DATA, .flags = UNPINNED },
	{ "RLIMIT_AS leaves little for 10000 regions in use", until_full, RLIMIT_AS, .flags = UNPINNED },
	{ "RLIMIT_DATA leaves little for 10000 regions in use", until_full, RLIMIT_DATA, .flags = UNPINNED },
	{ "mlockall", all_resident, .flags = UNPINNED },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
