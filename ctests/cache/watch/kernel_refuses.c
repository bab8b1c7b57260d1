/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls of the cache that the kernel refuses. A refused registration returns the kernel's errno,
 * and leaves nothing behind, not even split mappings. A refused deregistration is tried again: by
 * the cleaner, and by a flush of the domain.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { REFUSED = 40000 };
static const size_t APART = 4 << 20;

static char *memory;

static void same_errno(int err, const char *name)
{
	struct ibv_mr *mr;

	stub_fail(STUB_REGISTER, err, 1000);
	errno = 0;
	mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	is(errno, err, "a registration fails with the kernel's own errno: %s", name);
	ok(!mr && strstr(rdmamr_last_reason(), name), "and the reason names it: %s", rdmamr_last_reason());
	stub_fail(STUB_REGISTER, 0, 0);
}

/* A shortage ends when the idle regions have ended. */
static void relieved(int err, const char *name)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + PAGE, PAGE, LOCAL_AND_REMOTE);
	uint64_t before = stats().flushed_pressure;

	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	stub_fail(STUB_REGISTER, err, 1);
	mr = ibv_reg_mr(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(mr && stats().flushed_pressure == before + 1, "%s: idle regions go, and a plain registration succeeds", name);
	must(!mr || ibv_dereg_mr(mr) == 0);
	stub_fail(STUB_REGISTER, 0, 0);
}

static void nothing_is_left(void)
{
	/* The cache watches up to 2 MiB around a region: none of these is near another. */
	char *scattered = mmap(NULL, REFUSED * APART, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int before = mappings(), refused = 0;
	struct rdmamr_stats then;

	must(scattered != MAP_FAILED);
	stub_fail(STUB_REGISTER, EFAULT, REFUSED);
	for (long n = 0; n < REFUSED; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), scattered + n * APART, PAGE, LOCAL_AND_REMOTE);

		refused += !mr && errno == EFAULT;
	}
	stub_fail(STUB_REGISTER, 0, 0);
	is(refused, REFUSED, "that many registrations are refused");
	ok(mappings() <= before + 2, "which leaves no mapping split: %d, %d before", mappings(), before);
	then = stats();
	for (int n = 0; n < 2; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), scattered, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
	is((long long)(stats().hits - then.hits), 1, "and the cache still keeps a region");
	must(munmap(scattered, REFUSED * APART) == 0);
}

/* One region that is flushed, then one that the cleaner ends; both ends are refused first. */
static void tried_again(int err, const char *name)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	/* The cleaner may try again meanwhile. */
	stub_fail(STUB_DEREGISTER, err, 1000);
	is(ibv_flush_relaxed_mr(stub_pd()), err, "%s: a flush returns the kernel's refusal", name);
	is(stub_registered() - stub_deregistered(), 1, "%s: the region is still there", name);
	stub_fail(STUB_DEREGISTER, 0, 0);
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "%s: the next flush", name);
	is(stub_registered() - stub_deregistered(), 0, "%s: has ended it", name);

	mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	stub_fail(STUB_DEREGISTER, err, 1);
	is(ibv_flush_relaxed_mr(stub_pd()), err, "%s: refused again", name);
	ok(comes(stub_registered() == stub_deregistered()), "%s: the cleaner ends the region soon", name);
	/* The cache counts after the kernel has deregistered. */
	ok(comes(stats().idle == 0), "%s: nothing is idle", name);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	memory = pages(2);
	same_errno(EAGAIN, "EAGAIN");
	same_errno(ENOMEM, "ENOMEM");
	same_errno(EFAULT, "EFAULT");
	relieved(ENOMEM, "ENOMEM");
	relieved(EAGAIN, "EAGAIN");
	tried_again(EIO, "EIO");
	tried_again(EBADF, "EBADF");
	tried_again(EBUSY, "EBUSY");
	nothing_is_left();
	return done_testing();
}
