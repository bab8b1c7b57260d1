/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a relaxed registration gives: its arguments and their errors, the pages that its region covers, its
 * rights, and the object that describes it. A region serves requests of its access, for its pages or, without
 * remote rights, for its first pages if it has at most 64 KiB more. Its key grants access to exactly its pages.
 * Each registration has an object of its own; the region lives until the last of them is deregistered.
 */
#include "../lib/pair_rows.h"

enum { LW = IBV_ACCESS_LOCAL_WRITE, RW = IBV_ACCESS_REMOTE_WRITE, RR = IBV_ACCESS_REMOTE_READ,
       RA = IBV_ACCESS_REMOTE_ATOMIC, RO = IBV_ACCESS_RELAXED_ORDERING, ALL = LW | RW | RR, PLACE = 8 };
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

/* Which region serves which request: one of the first pages, idle or in use. */
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
		{ "local write for local read", LW, 1, 0, 0, 1, false },
		{ "local read for local write", 0, 1, LW, 0, 1, false },
		{ "two pages for three", LW, 2, LW, 0, 3, false },
		{ "local write for all remote", LW, 1, ALL, 0, 1, false },
		/* The second would get a key that others can use, though it requested none. */
		{ "all remote for local write", ALL, 1, LW, 0, 1, false },
		{ "remote read for remote read", RR, 1, RR, 0, 1, true },
		{ "all remote for all remote", ALL, 1, ALL, 0, 1, true },
		{ "all remote for all remote of a page", ALL, 4, ALL, 2, 1, false },
		{ "all remote for all remote of the first page", ALL, 4, ALL, 0, 1, false },
		{ "all remote and atomic for all remote", ALL | RA, 1, ALL, 0, 1, false },
		/* Flags that restrict how, not who. */
		{ "none for relaxed ordering", ALL, 1, ALL | RO, 0, 1, false },
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
		if (cases[n].wants & RW && at + wanted < memory + had)
			ok(write_refused(&pair, at + wanted, second->rkey) && (pair.iwarp || read_refused(at + wanted, second->rkey)),
			   "%s: a remote access beyond the request is refused", cases[n].name);
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
	char *hole = memory, *read_only = memory + 4 * PAGE, *none = memory + 6 * PAGE;
	const struct {
		const char *name;
		void *at;
		size_t length;
		int access, err;
	} cases[] = {
		{ "length 0", memory, 0, ALL, EINVAL },
		{ "length 0 within a page", memory + 100, 0, ALL, EINVAL },
		{ "a range past the last address", memory, SIZE_MAX, ALL, EINVAL },
		{ "the greatest length from 0", NULL, SIZE_MAX, ALL, EINVAL },
		{ "a sum that wraps around", (void *)-100L, 200, ALL, EINVAL },
		{ "a sum that is 0", (void *)-(long)PAGE, PAGE, ALL, EINVAL },
		{ "a range that ends with the last address", (void *)(UINTPTR_MAX - 10), 11, ALL, EINVAL },
		{ "a range whose pages run past the last address", (void *)(UINTPTR_MAX - 100), 50, ALL, EINVAL },
		{ "remote write without local write", memory, PAGE, RW, EINVAL },
		{ "remote write and read without local write", memory, PAGE, RW | RR, EINVAL },
		{ "remote atomic without local write", memory, PAGE, RA, EINVAL },
		{ "bit 10 of the access", memory, PAGE, LW | 1 << 10, EINVAL },
		{ "bit 15 of the access", memory, PAGE, ALL | 1 << 15, EINVAL },
		{ "bit 19 of the access", memory, PAGE, LW | 1 << 19, EINVAL },
		{ "bit 30 of the access", memory, PAGE, ALL | 1 << 30, EINVAL },
		{ "a hole", hole, 3 * PAGE, ALL, EFAULT },
		{ "beyond the end of a page", hole + 10, PAGE, ALL, EFAULT },
		{ "before the start of a page", hole + 2 * PAGE - 1, PAGE, ALL, EFAULT },
		{ "the same with local rights", hole + 2 * PAGE - 1, PAGE, LW, EFAULT },
		{ "nothing at all", hole + PAGE, 1, ALL, EFAULT },
		{ "the first page", (void *)8, 8, ALL, EFAULT },
		{ "memory that cannot be written", read_only, PAGE, LW, EFAULT },
		{ "memory that cannot be accessed", none, PAGE, LW, EFAULT },
	};

	must(munmap(hole + PAGE, PAGE) == 0 && mprotect(read_only, PAGE, PROT_READ) == 0 && mprotect(none, PAGE, PROT_NONE) == 0);
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
		{ "flush, persistent", ALL | 1 << 9, true },
		{ "relaxed ordering", ALL | IBV_ACCESS_RELAXED_ORDERING, true },
		{ "an unknown optional bit", ALL | 1 << 29, true },
		{ "memory windows", ALL | IBV_ACCESS_MW_BIND, false },
		{ "zero-based", LW | IBV_ACCESS_ZERO_BASED, false },
		{ "zero-based, with remote rights", ALL | IBV_ACCESS_ZERO_BASED, false },
		{ "huge pages", ALL | IBV_ACCESS_HUGETLB, false },
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

/* The pages of a buffer. */

/* A buffer that ends at the end of a page does not reach the next. */
static void edges(void)
{
	static const struct {
		const char *name;
		size_t from, to, first, last; /* requested bytes; pages that the region covers */
	} cases[] = {
		{ "within a page", 100, 200, 0, 1 },
		{ "one byte", PAGE, PAGE + 1, 1, 2 },
		{ "the last byte of a page", 2 * PAGE - 1, 2 * PAGE, 1, 2 },
		{ "across a border", 2 * PAGE - 50, 2 * PAGE + 50, 1, 3 },
		{ "two bytes across a border", 2 * PAGE - 1, 2 * PAGE + 1, 1, 3 },
		{ "a page", 2 * PAGE, 3 * PAGE, 2, 3 },
		{ "a page that starts one off", 1 * PAGE + 1, 2 * PAGE + 1, 1, 3 },
		{ "up to the end of a page", 100, 2 * PAGE, 0, 2 },
	};

	for each(n, cases) {
		const char *name = cases[n].name;
		char *start = memory + cases[n].first * PAGE, *end = memory + cases[n].last * PAGE;
		struct rdmamr_stats before;
		struct ibv_mr *mr, *pages;

		flush();
		mr = relaxed(memory + cases[n].from, cases[n].to - cases[n].from, ALL);
		ok(lands_in(&pair, mr, start, (size_t)(end - start)),
		   "%s: its pages from the first to the last byte", name);
		ok(write_refused(&pair, start - 8, mr->rkey) && write_refused(&pair, end, mr->rkey),
		   "%s: and not one byte more", name);
		before = stats();
		pages = relaxed(start, (size_t)(end - start), ALL);
		ok(reused(before, stats()) && pages->rkey == mr->rkey, "%s: its pages are the same region", name);
		is((long long)stats().idle_bytes, 0, "%s: which is in use", name);
		let_go(mr);
		let_go(pages);
		is((long long)stats().idle_bytes, end - start, "%s: and is counted by its pages", name);
	}
}

/* Many of one region: as many objects, one key, one region in the kernel, until the last is gone. */
static void many(void)
{
	enum { MANY = 200, SIZE = PLACE * PAGE };
	struct ibv_mr *mrs[MANY];

	for (int kind = 0; kind < 2; kind++) {
		struct rdmamr_stats before;
		int other = 0, same = 0, busy = 0;
		struct ibv_mr *last;

		flush();
		before = stats();
		for (int n = 0; n < MANY; n++) {
			mrs[n] = relaxed(memory, SIZE, rights[kind]);
			other += mrs[n]->lkey != mrs[0]->lkey || mrs[n]->rkey != mrs[0]->rkey;
			for (int k = 0; k < n; k++)
				same += mrs[n] == mrs[k];
		}
		is(other, 0, "%s: the same key", rights_names[kind]);
		is(same, 0, "%s: no two the same object", rights_names[kind]);
		is((long long)(stats().hits - before.hits), MANY - 1, "%s: one miss, the rest hits", rights_names[kind]);
		is((long long)(stats().shared - before.shared), MANY - 1, "%s: which share it", rights_names[kind]);
		is(kernel_regions(pair.context), far.others + 1, "%s: one in the kernel", rights_names[kind]);
		for (int n = 0; n < MANY - 1; n++) {
			let_go(mrs[row->value ? n : MANY - 1 - n]);
			busy += stats().idle == 0;
		}
		is(busy, MANY - 1, "%s: it stays in use", rights_names[kind]);
		flush();
		last = mrs[row->value ? MANY - 1 : 0];
		ok(all_lands(&pair, last, memory, SIZE, !kind), "%s: the last one works, after a flush too", rights_names[kind]);
		let_go(last);
		is((long long)stats().idle, 1, "%s: now it is idle", rights_names[kind]);
		control_with(&pair, "afterwards", memory, SIZE, rights[kind]);
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
	{ "the pages of a buffer", edges },
	{ "many of one region, the first ends first", many, true },
	{ "many of one region, the last ends first", many, false },
	{ "ibv_rereg_mr of a relaxed region", reregistered },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_pair)
