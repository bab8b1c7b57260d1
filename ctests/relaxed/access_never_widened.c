/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A region serves requests with fewer local rights than it has, and no others: no registration gets
 * a remote right that it did not request, nor a region that was registered by other rules. A
 * registration that the cache cannot share has a region of its own, which ends with it.
 */
#include "../lib/reuse.h"

#define FLUSH_GLOBAL (1 << 8) /* IBV_ACCESS_FLUSH_GLOBAL, younger than some headers */

enum { COUNT = 8, SIZE = COUNT * PAGE };

static struct pair pair;
static char *memory;

static struct ibv_mr *reg(char *at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, at, length, access);

	must(mr);
	return mr;
}

/* Ends all regions of earlier checks. */
static void from_nothing(void)
{
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	must(stats().idle == 0);
}

/*
 * Whether a registration of some pages with `wants` is served by one of all pages with `had` that is
 * idle or in use.
 */
static bool is_served(int had, int wants, int first, int count, bool in_use)
{
	struct rdmamr_stats before, after;
	struct ibv_mr *one, *other;

	from_nothing();
	one = reg(memory, SIZE, had);
	if (!in_use)
		must(ibv_dereg_mr_relaxed(one) == 0);
	before = stats();
	other = reg(memory + first * PAGE, (size_t)count * PAGE, wants);
	after = stats();
	must(reused(before, after) || made_anew(before, after));
	must(ibv_dereg_mr_relaxed(other) == 0);
	if (in_use)
		must(ibv_dereg_mr_relaxed(one) == 0);
	return reused(before, after);
}

/* On a busy machine the cache may still read of a change, and registers anew meanwhile. */
static void serves(const char *name, int had, int wants, int first, int count, bool in_use, bool served)
{
	bool was_served = false;

	for (int tries = 0; tries < 20 && !was_served; tries++)
		was_served = is_served(had, wants, first, count, in_use);
	ok(was_served == served, "%s%s: is %sserved", name, in_use ? ", in use" : "", served ? "" : "not ");
}

static void who_serves_whom(void)
{
	enum {
		WRITE = IBV_ACCESS_LOCAL_WRITE,
		READ_AFAR = IBV_ACCESS_REMOTE_READ,
		ALL = LOCAL_AND_REMOTE,
		ATOMIC = LOCAL_AND_REMOTE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	static const struct {
		const char *name;
		int had, wants, first, count;
		bool served;
	} cases[] = {
		{ "local write for local write", WRITE, WRITE, 0, COUNT, true },
		{ "local write for local read", WRITE, 0, 0, COUNT, true },
		{ "local write for a part", WRITE, WRITE, 2, 3, true },
		{ "local write for local read of a part", WRITE, 0, 7, 1, true },
		{ "local read for local write", 0, WRITE, 0, COUNT, false },
		{ "local read for local write of a part", 0, WRITE, 2, 3, false },
		{ "local write for remote read", WRITE, READ_AFAR, 0, COUNT, false },
		{ "local write for all remote", WRITE, ALL, 0, COUNT, false },
		/* The second would get a key that others can use, though it requested none. */
		{ "all remote for local write", ALL, WRITE, 0, COUNT, false },
		{ "remote read for local read", READ_AFAR, 0, 0, COUNT, false },
		{ "all remote for remote read", ALL, WRITE | READ_AFAR, 0, COUNT, false },
		{ "remote read for remote read", READ_AFAR, READ_AFAR, 0, COUNT, true },
		{ "remote read for that and local write", READ_AFAR, READ_AFAR | WRITE, 0, COUNT, false },
		{ "all remote for all remote", ALL, ALL, 0, COUNT, true },
		{ "all remote for all remote of a part", ALL, ALL, 0, COUNT - 1, false },
		{ "all remote for all remote of one page", ALL, ALL, 3, 1, false },
		{ "all remote and atomic for all remote", ATOMIC, ALL, 0, COUNT, false },
	};

	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
		serves(cases[n].name, cases[n].had, cases[n].wants, cases[n].first, cases[n].count, false,
		       cases[n].served);
		serves(cases[n].name, cases[n].had, cases[n].wants, cases[n].first, cases[n].count, true,
		       cases[n].served);
	}
}

/* A remote write by a key without the right to it: it fails, and the memory is unchanged. */
static void no_write(const char *name, uint32_t rkey, char *at)
{
	int status;

	memset(far.out, 0x11, 64);
	memset(at, 0x22, 64);
	status = pair_write(&pair, far.mr, far.out, 64, (uintptr_t)at, rkey);
	/* On iWARP a write is complete when it is sent; a request behind it is not answered. */
	if (pair.iwarp && status == IBV_WC_SUCCESS)
		status = pair_read(&pair, far.mr, far.in, 8, (uintptr_t)far.out, far.mr->rkey);
	ok(status != IBV_WC_SUCCESS && at[0] == 0x22 && at[63] == 0x22, "%s: a remote write is refused",
	   name);
	pair_reconnect(&pair);
}

static void no_read(const char *name, uint32_t rkey, char *at)
{
	int status = pair_read(&pair, far.mr, far.in, 64, (uintptr_t)at, rkey);

	ok(status != IBV_WC_SUCCESS, "%s: a remote read is refused", name);
	pair_reconnect(&pair);
}

/* The rights are the requested ones, in the device as well, whatever other regions the cache has. */
static void as_asked_for(void)
{
	struct ibv_mr *all, *read, *local, *less;

	from_nothing();
	for (int round = 0; round < 2; round++) { /* made, and reused */
		const char *when = round ? "used again" : "new";
		char name[60];

		all = reg(memory, SIZE, LOCAL_AND_REMOTE);
		read = reg(memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
		local = reg(memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
		less = reg(memory, SIZE, 0);
		ok(lands_in(&pair, all, memory, SIZE), "all remote, %s: written and read", when);
		ok(lands_by_lkey(&pair, read, memory, SIZE), "remote read, %s: local use", when);
		ok(lands_by_lkey(&pair, local, memory, SIZE), "local write, %s: local use", when);
		is(pair_read(&pair, far.mr, far.in, 64, (uintptr_t)memory, read->rkey), IBV_WC_SUCCESS,
		   "remote read, %s: read remotely", when);
		snprintf(name, sizeof(name), "remote read, %s", when);
		no_write(name, read->rkey, memory);
		snprintf(name, sizeof(name), "local write, %s", when);
		no_write(name, local->rkey, memory);
		no_read(name, local->rkey, memory);
		snprintf(name, sizeof(name), "local read, %s", when);
		no_write(name, less->rkey, memory);
		no_read(name, less->rkey, memory);
		must(ibv_dereg_mr_relaxed(all) == 0 && ibv_dereg_mr_relaxed(read) == 0);
		must(ibv_dereg_mr_relaxed(local) == 0 && ibv_dereg_mr_relaxed(less) == 0);
	}
}

/*
 * Flags that restrict how, not who: some of them must be equal. The library refuses the same as a
 * device.
 */
static void other_rules(const char *name, int flag)
{
	struct ibv_mr *plain = ibv_reg_mr(pair.pd, memory, SIZE, LOCAL_AND_REMOTE | flag), *mr;
	int err = errno;

	from_nothing();
	if (!plain) {
		mr = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, LOCAL_AND_REMOTE | flag);
		ok(!mr && errno == err, "%s: refused as a plain registration is (%s)", name,
		   strerrorname_np(err));
		return;
	}
	must(ibv_dereg_mr(plain) == 0);
	for (int kind = 0; kind < 2; kind++) {
		char plainly[60];

		snprintf(plainly, sizeof(plainly), "without %s", name);
		control_with(&pair, name, memory, SIZE, rights[kind] | flag);
		anew_with(&pair, plainly, memory, SIZE, rights[kind]);
		from_nothing();
		control_with(&pair, plainly, memory, SIZE, rights[kind]);
		/* Stricter rules than requested do no harm to local use. */
		if (kind)
			ok(lands_with(&pair, memory, SIZE, rights[kind] | flag),
			   "%s, local rights: data lands", name);
		else
			anew_with(&pair, name, memory, SIZE, rights[kind] | flag);
		from_nothing();
	}
}

/*
 * Flags for which the cache keeps no regions: each registration has one of its own, which ends when
 * it is deregistered.
 */
static void not_cacheed(const char *name, int flag)
{
	struct ibv_mr *plain = ibv_reg_mr(pair.pd, memory, SIZE, LOCAL_AND_REMOTE | flag), *mr;
	int err = errno, regions;

	from_nothing();
	if (!plain) {
		mr = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, LOCAL_AND_REMOTE | flag);
		ok(!mr && errno == err, "%s: refused as a plain registration is (%s)", name,
		   strerrorname_np(err));
		return;
	}
	must(ibv_dereg_mr(plain) == 0);
	control(&pair, "without the flag", memory, SIZE);
	regions = kernel_regions(pair.context);
	for (int round = 0; round < 2; round++) {
		struct rdmamr_stats before = stats(), after;

		mr = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, LOCAL_AND_REMOTE | flag);
		if (!ok(mr != NULL, "%s: registered", name))
			return;
		after = stats();
		ok(made_anew(before, after) && after.bypassed_access == before.bypassed_access + 1,
		   "%s: bypasses the cache, because of its access flags", name);
		is(kernel_regions(pair.context), regions + 1, "%s: by a region of its own", name);
		ok(mr->addr == memory && mr->length == SIZE, "%s: which describes the request", name);
		is(ibv_dereg_mr_relaxed(mr), 0, "%s: deregistered", name);
		is(kernel_regions(pair.context), regions, "%s: at once", name);
	}
	still(&pair, "and the cache is unchanged", memory, SIZE);
}

static void invalid(const char *name, int access)
{
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, access);
	ok(!mr && errno == EINVAL, "%s: is refused (EINVAL)", name);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	memory = pages(COUNT);
	as_case(who_serves_whom(), "which rights serve which");
	as_case(as_asked_for(), "the requested rights");
	other_rules("RELAXED_ORDERING", IBV_ACCESS_RELAXED_ORDERING);
	other_rules("FLUSH_GLOBAL", FLUSH_GLOBAL);
	not_cacheed("ZERO_BASED", IBV_ACCESS_ZERO_BASED);
	not_cacheed("ON_DEMAND", IBV_ACCESS_ON_DEMAND);
	not_cacheed("MW_BIND", IBV_ACCESS_MW_BIND);
	not_cacheed("HUGETLB", IBV_ACCESS_HUGETLB);
	/* With an idle region of the same memory, which must not serve them. */
	control(&pair, "before invalid flags", memory, SIZE);
	invalid("remote write without local write", IBV_ACCESS_REMOTE_WRITE);
	invalid("remote write and read without local write",
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	invalid("remote atomic without local write", IBV_ACCESS_REMOTE_ATOMIC);
	invalid("a bit that means nothing", LOCAL_AND_REMOTE | 1 << 15);
	invalid("another that means nothing", LOCAL_AND_REMOTE | 1 << 30);
	still(&pair, "after invalid flags", memory, SIZE);
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	must(munmap(memory, SIZE) == 0);
	return relaxed_close(&pair);
}
