/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a relaxed registration gives: its arguments and their errors, its rights, and the object that describes
 * it. A region serves requests of its access, for its pages or, without remote rights, for its first pages if it
 * has at most 64 KiB more. cache/transparent/served.c has the pages that a key reaches.
 * lifetimes.c has the end of a region that several registrations share.
 */
#include "../lib/pair_rows.h"

enum { LW = IBV_ACCESS_LOCAL_WRITE, RW = IBV_ACCESS_REMOTE_WRITE, RR = IBV_ACCESS_REMOTE_READ,
       RO = IBV_ACCESS_RELAXED_ORDERING, ALL = LW | RW | RR, PLACE = 8 };
#define FLUSH_GLOBAL (1 << 8) /* IBV_ACCESS_FLUSH_GLOBAL, younger than some headers */
#define each(n, table) (size_t n = 0; n < sizeof(table) / sizeof(*(table)); n++)

static struct ibv_mr *relaxed(char *at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, at, length, access);

	must(mr);
	if (mr->addr != at || mr->length != length || mr->pd != pair.pd || mr->context != pair.context)
		ok(false, "the object describes the request");
	return mr;
}

static void flush(void) { must(ibv_flush_relaxed_mr(pair.pd) == 0 && stats().idle == 0); }

static bool read_refused(char *at, uint32_t rkey)
{
	int status = pair_read(&pair, far.mr, far.in, 8, (uintptr_t)at, rkey);

	pair_reconnect(&pair);
	return status != IBV_WC_SUCCESS;
}

/* The device grants what was requested, and refuses the rest. */
static void as_requested(const char *name, const struct ibv_mr *mr, int access)
{
	char *at = mr->addr;

	if (access & LW)
		ok(lands_by_lkey(&pair, mr, at, mr->length), "%s: data lands by its local key", name);
	if (access & RW && access & RR)
		ok(lands_in(&pair, mr, at, mr->length), "%s: data lands by its remote key", name);
	else if (access & RR)
		ok(pair_read(&pair, far.mr, far.in, 8, (uintptr_t)at, mr->rkey) == IBV_WC_SUCCESS, "%s: it is read remotely", name);
	if (!(access & RW))
		ok(write_refused(&pair, at, mr->rkey), "%s: a remote write is refused", name);
	if (access & RR)
		return;
	if (pair.iwarp)
		skip(name, "siw of Linux 6.1 answers reads of any region");
	else
		ok(read_refused(at, mr->rkey), "%s: a remote read is refused", name);
}

/* Which region serves which request: one of the first pages, idle or in use. served.c has more rights. */
static void serves(void)
{
	static const struct {
		const char *name;
		int had, pages, wants, first, count;
		bool served;
	} cases[] = {
		{ "local write for local write", LW, 1, LW, 0, 1, true },
		{ "local write for its first page", LW, PLACE, LW, 0, 1, true },
		{ "local write for its second page", LW, PLACE, LW, 1, 1, false },
		{ "local write and 64 KiB more", LW, 17, LW, 0, 1, true },
		{ "local write and 68 KiB more", LW, 18, LW, 0, 1, false },
		{ "two pages for three", LW, 2, LW, 0, 3, false },
		{ "local write for all remote", LW, 1, ALL, 0, 1, false },
		/* The second would get a key that others can use, though it requested none. */
		{ "all remote for local write", ALL, 1, LW, 0, 1, false },
		{ "all remote for all remote", ALL, 1, ALL, 0, 1, true },
		/* Flags that restrict how, not who. */
		{ "relaxed ordering for none", ALL | RO, 1, ALL, 0, 1, false },
		{ "relaxed ordering for relaxed ordering", LW | RO, 1, LW | RO, 0, 1, true },
	};

	for each(n, cases) {
		size_t had = (size_t)cases[n].pages * PAGE, wanted = (size_t)cases[n].count * PAGE;
		char *at = memory + cases[n].first * PAGE;
		struct ibv_mr *first, *second = NULL;
		bool served = !cases[n].served;
		uint32_t key;

		/* On a busy machine the cache may still read of a change, and registers anew meanwhile. */
		for (int tries = 0; tries < 20 && served != cases[n].served; tries++) {
			struct rdmamr_stats before;

			flush();
			first = relaxed(memory, had, cases[n].had);
			key = first->lkey;
			if (!row->value)
				let_go(first);
			before = stats();
			second = relaxed(at, wanted, cases[n].wants);
			served = reused(before, stats());
			must((served || made_anew(before, stats())) && served == (second->lkey == key));
			must(stats().shared - before.shared == (served && row->value));
			if (served == cases[n].served)
				break;
			let_go(second);
			if (row->value)
				let_go(first);
		}
		if (!ok(served == cases[n].served, "%s: %s", cases[n].name, cases[n].served ? "is served" : "is not served"))
			continue;
		as_requested(cases[n].name, second, cases[n].wants);
		let_go(second);
		if (row->value) {
			as_requested(cases[n].name, first, cases[n].had);
			let_go(first);
		}
	}
}

/* Wrong requests, with idle regions that must not serve them. */
static void refused_ones(void)
{
	char *hole = memory, *read_only = memory + 4 * PAGE;
	const struct {
		const char *name;
		void *at;
		size_t length;
		int access, err;
	} cases[] = {
		{ "length 0", memory, 0, ALL, EINVAL },
		{ "a range past the last address", memory, SIZE_MAX, ALL, EINVAL },
		{ "a sum that is 0", (void *)-(long)PAGE, PAGE, ALL, EINVAL },
		{ "a range whose pages run past the last address", (void *)(UINTPTR_MAX - 100), 50, ALL, EINVAL },
		{ "remote write without local write", memory, PAGE, RW, EINVAL },
		{ "bit 10 of the access", memory, PAGE, LW | 1 << 10, EINVAL },
		{ "a hole", hole, 3 * PAGE, ALL, EFAULT },
		{ "beyond the end of a page", hole + 10, PAGE, ALL, EFAULT },
		{ "before the start of a page", hole + 2 * PAGE - 1, PAGE, ALL, EFAULT },
		{ "memory that cannot be written", read_only, PAGE, LW, EFAULT },
	};

	must(munmap(hole + PAGE, PAGE) == 0 && mprotect(read_only, PAGE, PROT_READ) == 0);
	control(&pair, "before all these", hole, PAGE);
	for each(n, cases) {
		int regions = kernel_regions(pair.context);
		struct rdmamr_stats before = stats(), after;
		struct ibv_mr *mr;

		errno = 0;
		mr = ibv_reg_mr_relaxed(pair.pd, cases[n].at, cases[n].length, cases[n].access);
		is(mr ? 0 : errno, cases[n].err, "%s: its errno", cases[n].name);
		ok(strlen(rdmamr_last_reason()) > 0, "%s: a reason: %s", cases[n].name, rdmamr_last_reason());
		after = stats();
		is((long long)(after.reg_failed - before.reg_failed), 1, "%s: counted as a failure", cases[n].name);
		ok(kernel_regions(pair.context) == regions && after.idle == before.idle && after.live == before.live &&
			   after.hits == before.hits, "%s: nothing is left of it", cases[n].name);
	}
	still(&pair, "after all these", hole, PAGE);
	/* Pages with nothing around them: nothing else may be pinned. */
	for (int kind = 0; kind < 2; kind++)
		ok(lands_with(&pair, hole + 2 * PAGE + 10, PAGE - 10, rights[kind]) &&
		   lands_with(&pair, hole + 2 * PAGE, PAGE - 10, rights[kind]), "a page with nothing before it, %s", rights_names[kind]);
}

/* Flags that the kernel must judge: the result of a plain registration. The cache keeps some of the regions. */
static void judged_as_plain(void)
{
	static const struct {
		const char *name;
		int access;
		bool kept;
	} cases[] = {
		{ "flush, global", ALL | FLUSH_GLOBAL, true },
		{ "an unknown optional bit", ALL | 1 << 29, true },
		{ "memory windows", ALL | IBV_ACCESS_MW_BIND, false },
		{ "zero-based, with remote rights", ALL | IBV_ACCESS_ZERO_BASED, false },
		{ "on demand", ALL | IBV_ACCESS_ON_DEMAND, false },
	};

	for each(n, cases) {
		struct ibv_mr *mr = ibv_reg_mr(pair.pd, memory, PAGE, cases[n].access);
		int err = mr ? 0 : errno, regions;
		const char *name = cases[n].name;

		must(!mr || ibv_dereg_mr(mr) == 0);
		flush();
		control(&pair, "an idle region without the flag", memory, PAGE);
		regions = kernel_regions(pair.context);
		for (int round = 0; round < 2; round++) {
			struct rdmamr_stats before = stats(), after;

			errno = 0;
			mr = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, cases[n].access);
			after = stats();
			is(mr ? 0 : errno, err, "%s: the result of a plain registration", name);
			if (mr && !cases[n].kept) {
				ok(made_anew(before, after) && after.bypassed_access == before.bypassed_access + 1,
				   "%s: it bypasses the cache", name);
				ok(mr->addr == memory && mr->length == PAGE, "%s: the object describes the request", name);
				if (cases[n].access & RW && !(cases[n].access & IBV_ACCESS_ZERO_BASED))
					ok(lands_in(&pair, mr, memory, PAGE), "%s: data lands by it", name);
			}
			/* Either call deregisters it. */
			must(!mr || (round ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr)) == 0);
			if (!mr || !cases[n].kept)
				is(kernel_regions(pair.context), regions, "%s: it is gone at once", name);
		}
		still(&pair, "without the flag", memory, PAGE);
	}
}

static void reregistered(void)
{
	struct ibv_mr *mr, copy;

	control(&pair, "before it", memory, PAGE);
	mr = relaxed(memory, PAGE, ALL);
	copy = *mr;
	for (int change = 1; change <= 7; change++) {
		errno = 0;
		is(ibv_rereg_mr(mr, change, pair.pd, memory + 4 * PAGE, PAGE, LW), IBV_REREG_MR_ERR_INPUT, "change %d is refused", change);
		is(errno, EINVAL, "change %d: EINVAL", change);
	}
	ok(!memcmp(mr, &copy, sizeof(copy)), "the object is unchanged");
	ok(lands_in(&pair, mr, memory, PAGE), "data lands by it");
	let_go(mr);
	still(&pair, "after it", memory, PAGE);
}

static const struct row rows[] = {
	{ "wrong requests", refused_ones },
	{ "flags that the kernel judges", judged_as_plain },
	{ "which idle region serves which request", serves, false },
	{ "which region in use serves which request", serves, true },
	{ "ibv_rereg_mr of a relaxed region", reregistered },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_pair)
