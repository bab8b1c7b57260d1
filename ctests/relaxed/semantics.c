/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The meaning of the three relaxed calls, sentence by sentence: names, arguments and errors, the
 * page range, a handle for each call, both ways to deregister, the requests that bypass the cache,
 * the rights that serve others, flush, the end of a domain and of a device. (Linger, watermark,
 * pressure, fresh keys, and operation without userfaultfd are programs of their own.)
 */
#include "../lib/observe.h"
#include <dlfcn.h>

static struct pair pair;
static char *memory; /* of 16 pages */

static struct ibv_mr *relaxed(size_t at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, memory + at, length, access);

	must(mr);
	return mr;
}

static void names(void)
{
	static const char *const calls[] = { "ibv_reg_mr_relaxed", "ibv_dereg_mr_relaxed", "ibv_flush_relaxed_mr" };

	for (int n = 0; n < 3; n++) {
		void *versioned = dlvsym(RTLD_DEFAULT, calls[n], "IBVERBS_1.1");

		ok(versioned && versioned == dlsym(RTLD_DEFAULT, calls[n]), "%s is at IBVERBS_1.1", calls[n]);
	}
}

/* 1. Invalid arguments. */

static void refused_with(const char *name, void *at, size_t length, int access, int err)
{
	int regions = kernel_regions(pair.context);
	struct rdmamr_stats before = stats(), after;
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr_relaxed(pair.pd, at, length, access);
	is(mr ? 0 : errno, err, "%s: %s", name, strerrorname_np(err));
	ok(strlen(rdmamr_last_reason()) > 0, "%s: for a reason: %s", name, rdmamr_last_reason());
	after = stats();
	is((long long)(after.reg_failed - before.reg_failed), 1, "%s: counted as a failure", name);
	ok(kernel_regions(pair.context) == regions && after.idle == before.idle && after.live == before.live &&
		   after.hits == before.hits, "%s: and nothing is left of it", name);
}

/* Implicit on-demand paging has no range that the cache could look for. */
static void whole_address_space(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND, err;
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, NULL, SIZE_MAX, access);

	err = mr ? 0 : errno;
	must(!mr || ibv_dereg_mr(mr) == 0);
	errno = 0;
	mr = ibv_reg_mr_relaxed(pair.pd, NULL, SIZE_MAX, access);
	is(mr ? 0 : errno, err, "the whole address space on demand: the result of a plain registration (%s)",
	   err ? strerrorname_np(err) : "yes");
	must(!mr || ibv_dereg_mr_relaxed(mr) == 0);
}

/* A value of access that the kernel must judge: the same result as for a plain registration. */
static void judged_as_plain(const char *name, int access, bool kept)
{
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, memory, PAGE, access);
	int err = mr ? 0 : errno, regions;
	struct rdmamr_stats before, after;

	/* Regions of memory that was unmapped before could end at any time. */
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	must(!mr || ibv_dereg_mr(mr) == 0);
	regions = kernel_regions(pair.context);
	for (int round = 0; round < 2; round++) {
		before = stats();
		errno = 0;
		mr = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, access);
		after = stats();
		is(mr ? 0 : errno, err, "%s: the result of a plain registration (%s)", name,
		   err ? strerrorname_np(err) : "yes");
		if (!mr) {
			is(kernel_regions(pair.context), regions, "%s: nothing is left", name);
			continue;
		}
		if (kept) {
			is(ibv_dereg_mr_relaxed(mr), 0, "%s: deregistered", name);
			continue;
		}
		ok(made_anew(before, after) && after.bypassed_access == before.bypassed_access + 1,
		   "%s: a region of its own", name);
		if (access & IBV_ACCESS_REMOTE_WRITE)
			ok(lands_in(&pair, mr, memory, PAGE), "%s: data lands by it", name);
		is(ibv_dereg_mr_relaxed(mr), 0, "%s: deregistered", name);
		is(kernel_regions(pair.context), regions, "%s: at once", name);
		is((long long)stats().idle, (long long)before.idle, "%s: and it is not cached", name);
	}
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
}

static void arguments(void)
{
	char *hole = pages(3), *read_only = pages(1), *none = pages(1);

	must(munmap(hole + PAGE, PAGE) == 0 && mprotect(read_only, PAGE, PROT_READ) == 0);
	must(mprotect(none, PAGE, PROT_NONE) == 0);
	refused_with("length 0", memory, 0, LOCAL_AND_REMOTE, EINVAL);
	refused_with("length 0 within a page", memory + 100, 0, LOCAL_AND_REMOTE, EINVAL);
	refused_with("a range past the last address", memory, SIZE_MAX, LOCAL_AND_REMOTE, EINVAL);
	refused_with("a range that ends with the last address", (void *)(UINTPTR_MAX - 10), 11, LOCAL_AND_REMOTE, EINVAL);
	refused_with("a range whose pages run past the last address", (void *)(UINTPTR_MAX - 100), 50, LOCAL_AND_REMOTE,
		     EINVAL);
	refused_with("remote write without local write", memory, PAGE, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	refused_with("remote atomic without local write", memory, PAGE, IBV_ACCESS_REMOTE_ATOMIC, EINVAL);
	refused_with("bit 10 of the access", memory, PAGE, IBV_ACCESS_LOCAL_WRITE | 1 << 10, EINVAL);
	refused_with("bit 19 of the access", memory, PAGE, IBV_ACCESS_LOCAL_WRITE | 1 << 19, EINVAL);
	refused_with("bit 30 of the access", memory, PAGE, IBV_ACCESS_LOCAL_WRITE | 1 << 30, EINVAL);
	refused_with("a hole", hole, 3 * PAGE, LOCAL_AND_REMOTE, EFAULT);
	refused_with("nothing at all", hole + PAGE, 1, LOCAL_AND_REMOTE, EFAULT);
	refused_with("the first page", (void *)8, 8, LOCAL_AND_REMOTE, EFAULT);
	refused_with("memory that cannot be written", read_only, PAGE, IBV_ACCESS_LOCAL_WRITE, EFAULT);
	refused_with("memory that cannot be accessed", none, PAGE, IBV_ACCESS_LOCAL_WRITE, EFAULT);
	control(&pair, "after all these", hole, PAGE);
	control(&pair, "and these", hole + 2 * PAGE, PAGE);
	must(munmap(hole, PAGE) == 0 && munmap(hole + 2 * PAGE, PAGE) == 0);
	must(munmap(read_only, PAGE) == 0 && munmap(none, PAGE) == 0);

	judged_as_plain("flush, global", LOCAL_AND_REMOTE | 1 << 8, true);
	judged_as_plain("flush, persistent", LOCAL_AND_REMOTE | 1 << 9, true);
	judged_as_plain("relaxed ordering", LOCAL_AND_REMOTE | IBV_ACCESS_RELAXED_ORDERING, true);
	judged_as_plain("an unknown optional bit", LOCAL_AND_REMOTE | 1 << 29, true);
	judged_as_plain("memory windows", LOCAL_AND_REMOTE | IBV_ACCESS_MW_BIND, false);
	judged_as_plain("zero-based", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED, false);
	judged_as_plain("huge pages", LOCAL_AND_REMOTE | IBV_ACCESS_HUGETLB, false);
	judged_as_plain("on demand", LOCAL_AND_REMOTE | IBV_ACCESS_ON_DEMAND, false);
	whole_address_space();
}

/* 2. The page range, and a handle for each call. */

static void page_range(void)
{
	struct ibv_mr *mr = relaxed(2 * PAGE + 100, 50, LOCAL_AND_REMOTE), *other, *across;
	uint32_t key = mr->rkey;

	ok(mr->addr == memory + 2 * PAGE + 100 && mr->length == 50, "the region has the caller's address and length");
	ok(mr->pd == pair.pd && mr->context == pair.context, "and the caller's domain");
	ok(lands_in(&pair, mr, memory + 2 * PAGE, PAGE), "the whole page can be reached");
	ok(write_refused(&pair, memory + 3 * PAGE, key), "the next one cannot");
	ok(write_refused(&pair, memory + 2 * PAGE - 8, key), "nor the one before");

	other = relaxed(2 * PAGE + 4000, 96, LOCAL_AND_REMOTE);
	ok(other != mr && other->addr == memory + 2 * PAGE + 4000 && other->length == 96,
	   "another call, another handle");
	ok(other->lkey == mr->lkey && other->rkey == key, "of the same region");
	ok(mr->addr == memory + 2 * PAGE + 100 && mr->length == 50, "the first is unchanged");
	is((long long)stats().shared, 1, "which is counted as shared");
	is(ibv_dereg_mr_relaxed(mr), 0, "the first ends");
	ok(lands_in(&pair, other, memory + 2 * PAGE + 4000, 96), "the other does not");
	across = relaxed(3 * PAGE - 1, 2, LOCAL_AND_REMOTE);
	ok(across->rkey != key, "two bytes in two pages are another region");
	ok(lands_in(&pair, across, memory + 2 * PAGE, 2 * PAGE), "of both");
	is(ibv_dereg_mr_relaxed(across), 0, "it ends");
	is(ibv_dereg_mr_relaxed(other), 0, "the other ends too");
	is(stats().idle, 2, "two regions are idle");
	is(stats().idle_bytes, 3 * PAGE, "of three pages");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "flushed");
}

/* 3. Other calls for the same objects. */

static void other_calls(void)
{
	struct ibv_mr *mr, *plain, copy;
	int regions = kernel_regions(pair.context), err;

	mr = relaxed(0, PAGE, LOCAL_AND_REMOTE);
	err = ibv_dereg_mr(mr);
	is(err, 0, "ibv_dereg_mr of a relaxed region");
	is(kernel_regions(pair.context), regions + 1, "it is cached");
	plain = ibv_reg_mr(pair.pd, memory + PAGE, PAGE, LOCAL_AND_REMOTE);
	must(plain);
	is(ibv_dereg_mr_relaxed(plain), 0, "ibv_dereg_mr_relaxed of a plain region");
	is(kernel_regions(pair.context), regions + 1, "it is gone at once");
	mr = relaxed(0, PAGE, LOCAL_AND_REMOTE);
	is(ibv_dereg_mr_relaxed(mr), 0, "deregistered");
	is(ibv_dereg_mr_relaxed(mr), EINVAL, "and again");

	control(&pair, "before ibv_rereg_mr", memory, PAGE);
	mr = relaxed(0, PAGE, LOCAL_AND_REMOTE);
	copy = *mr;
	for (int change = 1; change <= 7; change++) {
		errno = 0;
		err = ibv_rereg_mr(mr, change, pair.pd, memory + 4 * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);
		ok(err == IBV_REREG_MR_ERR_INPUT && errno == EINVAL, "ibv_rereg_mr %d of a relaxed region: EINVAL",
		   change);
	}
	ok(!memcmp(mr, &copy, sizeof(copy)), "which is unchanged");
	ok(lands_in(&pair, mr, memory, PAGE), "data lands by it");
	is(ibv_dereg_mr_relaxed(mr), 0, "it is deregistered");
	still(&pair, "and reused", memory, PAGE);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	/* A region that bypassed the cache is a relaxed region as well. */
	mr = relaxed(0, PAGE, LOCAL_AND_REMOTE | IBV_ACCESS_MW_BIND);
	is(ibv_dereg_mr(mr), 0, "ibv_dereg_mr of one that bypassed the cache");
	is(kernel_regions(pair.context), regions, "it is gone at once");
}

/* 4. Rights: which regions may serve, and which never. The far end tries accesses without a right. */

enum { LW = IBV_ACCESS_LOCAL_WRITE, RW = IBV_ACCESS_REMOTE_WRITE, RR = IBV_ACCESS_REMOTE_READ,
       RA = IBV_ACCESS_REMOTE_ATOMIC };

/* Registers a first region and then the second; returns whether the first served the second. */
static void serves(const char *name, size_t pages_there, int there, size_t page, size_t pages_wanted, int wanted,
		   bool want,
		   bool in_use)
{
	struct ibv_mr *first = relaxed(0, pages_there * PAGE, there), *second;
	struct rdmamr_stats before;
	uint32_t key = first->lkey;

	if (!in_use)
		must(ibv_dereg_mr_relaxed(first) == 0);
	before = stats();
	second = relaxed(page * PAGE, pages_wanted * PAGE, wanted);
	ok((want ? reused(before, stats()) : made_anew(before, stats())) && (second->lkey == key) == want,
	   "%s, %s: %s", name,
	   in_use ? "in use" : "idle", want ? "serves" : "does not serve");
	if (wanted & LW)
		ok(lands_by_lkey(&pair, second, memory + page * PAGE, pages_wanted * PAGE),
		   "%s: data lands by its local key", name);
	if (wanted & RW && wanted & RR)
		ok(lands_in(&pair, second, memory + page * PAGE, pages_wanted * PAGE), "%s: and by its remote key",
		   name);
	if (!(wanted & RW))
		ok(write_refused(&pair, memory + page * PAGE, second->rkey), "%s: a remote write is refused", name);
	if (!(wanted & RR)) {
		int status = pair_read(&pair, far.mr, far.in, 8, (uintptr_t)memory + page * PAGE, second->rkey);

		pair_reconnect(&pair);
		if (pair.iwarp)
			skip(name, "siw of Linux 6.1 answers reads of any region");
		else
			is(status, IBV_WC_REM_ACCESS_ERR, "%s: a remote read is refused", name);
	}
	if (wanted & RW && page + pages_wanted < pages_there)
		ok(write_refused(&pair, memory + (page + pages_wanted) * PAGE, second->rkey),
		   "%s: a remote write beyond the request is refused", name);
	must(ibv_dereg_mr_relaxed(second) == 0 && (!in_use || ibv_dereg_mr_relaxed(first) == 0));
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
}

static void as_asked_for(void)
{
	for (int in_use = 0; in_use < 2; in_use++) {
		serves("local write for local write", 1, LW, 0, 1, LW, true, in_use);
		serves("local write for local read", 1, LW, 0, 1, 0, true, in_use);
		serves("local read for local write", 1, 0, 0, 1, LW, false, in_use);
		serves("four pages for the third", 4, LW, 2, 1, LW, true, in_use);
		serves("four pages for the third, to read", 4, LW, 2, 1, 0, true, in_use);
		serves("two pages for three", 2, LW, 0, 3, LW, false, in_use);
		serves("all rights for the same", 1, LW | RW | RR, 0, 1, LW | RW | RR, true, in_use);
		serves("remote rights for local ones", 1, LW | RW | RR, 0, 1, LW, false, in_use);
		serves("remote rights for none", 1, LW | RW | RR, 0, 1, 0, false, in_use);
		serves("local rights for remote ones", 1, LW, 0, 1, LW | RW | RR, false, in_use);
		serves("remote write and read for read", 1, LW | RW | RR, 0, 1, LW | RR, false, in_use);
		serves("remote write and read for write", 1, LW | RW | RR, 0, 1, LW | RW, false, in_use);
		serves("remote read for write and read", 1, LW | RR, 0, 1, LW | RW | RR, false, in_use);
		serves("atomic and others for the others", 1, LW | RW | RR | RA, 0, 1, LW | RW | RR, false, in_use);
		serves("remote read for remote read", 1, RR, 0, 1, RR, true, in_use);
		serves("four remote pages for the third", 4, LW | RW | RR, 2, 1, LW | RW | RR, false, in_use);
		serves("four remote pages for the first two", 4, LW | RW | RR, 0, 2, LW | RW | RR, false, in_use);
	}
}

/* 5. Flush, and the ends of domains and devices. */

static void flush(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(pair.context);
	struct ibv_mr *used = relaxed(8 * PAGE, PAGE, LOCAL_AND_REMOTE), *others;
	struct ibv_mr *mr = relaxed(0, PAGE, LOCAL_AND_REMOTE);
	struct rdmamr_stats before;
	uint32_t key = mr->rkey;

	must(pd);
	others = ibv_reg_mr_relaxed(pd, memory, PAGE, LOCAL_AND_REMOTE);
	must(others && ibv_dereg_mr_relaxed(others) == 0 && ibv_dereg_mr_relaxed(mr) == 0);
	before = stats();
	is(ibv_flush_relaxed_mr(pair.pd), 0, "a flush of a domain");
	is((long long)(stats().flushed_flush - before.flushed_flush), 1, "of its one idle region");
	ok(write_refused(&pair, memory, key), "the old key is refused by the device");
	ok(lands_in(&pair, used, memory + 8 * PAGE, PAGE), "the region in use is untouched");
	is(stats().idle, 1, "that of another domain too");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "a flush with nothing idle");
	before = stats();
	mr = ibv_reg_mr_relaxed(pd, memory, PAGE, LOCAL_AND_REMOTE);
	ok(mr && reused(before, stats()), "the other domain's is reused");
	is(ibv_dealloc_pd(pd), EBUSY, "a domain with a region in use is busy");
	must(ibv_dereg_mr_relaxed(mr) == 0);
	is(ibv_dealloc_pd(pd), 0, "with an idle one it can be deallocated");
	is(stats().idle, 0, "with that");
	is(ibv_dereg_mr_relaxed(used), 0, "the region in use is deregistered");
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	is(kernel_regions(pair.context), far.others, "the kernel has none");
}

static void device(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr;
	long pins = pinned();

	must(pd);
	mr = ibv_reg_mr_relaxed(pd, memory, 3 * PAGE, LOCAL_AND_REMOTE);
	must(mr);
	is(ibv_close_device(context), EBUSY, "a device with a region in use is busy");
	must(ibv_dereg_mr_relaxed(mr) == 0);
	is(pinned() - pins, 3, "idle, it pins three pages");
	is(ibv_close_device(context), 0, "the device is closed with it");
	is(pinned() - pins, 0, "it pins nothing");
	is(stats().idle, 0, "nothing is idle");
}

/* Each successful call is a hit or has made a region. */
static void figures(void)
{
	struct rdmamr_stats before = stats(), after;
	int calls = 0;

	for (int round = 0; round < 3; round++)
		for (size_t page = 0; page < 8; page++, calls++)
			must(ibv_dereg_mr_relaxed(relaxed(page * PAGE, PAGE, round ? LW : LW | RW)) == 0);
	after = stats();
	is((long long)(after.hits - before.hits), 8, "%d calls: those that found a region", calls);
	is((long long)(after.misses - before.misses), 16, "and those that made one");
	is((long long)(after.reg_kernel - before.reg_kernel), 16, "in the kernel");
	is((long long)(bypassed(&after) - bypassed(&before)), 0, "none bypassed the cache");
	is((long long)after.idle, 16, "all are idle");
	is((long long)after.idle_bytes, 16 * PAGE, "with as many pages");
	is(kernel_regions(pair.context), far.others + 16, "the kernel has as many");
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	as_root();
	relaxed_open(&pair);
	memory = pages(16);
	as_case(names(), "the names of the calls");
	as_case(arguments(), "bad arguments");
	as_case(page_range(), "the pages around a buffer");
	as_case(other_calls(), "other calls on a region");
	as_case(as_asked_for(), "the requested rights");
	as_case(flush(), "a flush");
	as_case(device(), "a device that is closed");
	as_case(figures(), "the statistics");
	return relaxed_close(&pair);
}
