/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Each change of an address space (changes.h) below an idle region and below one in use, by this
 * thread and by another, by the relaxed calls or, with CHECK_CALLS=plain, by the plain calls under
 * RDMAMR_CACHE=all or =local. After the change a registration must be of the current pages, which
 * RDMA traffic proves, and unchanged memory must be a hit.
 */
#include "../../lib/changes.h"
#include "../../lib/pair_rows.h"

enum situation { IDLE_REMOTE, IDLE_LOCAL, IN_USE, BY_THREAD, SITUATIONS };
static const char *const situations[] = {
	"an idle region with remote rights", "an idle region with local rights", "a region in use", "by another thread",
};

static struct ibv_pd *other_pd;

/* One run of a change. */
struct run {
	const struct change *change;
	int way;
	enum situation situation;
	const struct step *step;
	struct place place;
	struct ibv_mr *old; /* in use during the change */
	int access;
	int refused; /* the errno with which the kernel refused the change */
};

static void in_other_domain(void *at, size_t length) { let_go(by_cache(other_pd, at, length, LOCAL_AND_REMOTE)); }

static int access_in(enum situation situation)
{
	/* RDMAMR_CACHE=local keeps no region with remote rights. */
	if (plain_calls() && !strcmp(getenv("RDMAMR_CACHE"), "local"))
		return IBV_ACCESS_LOCAL_WRITE;
	return situation == IDLE_LOCAL ? IBV_ACCESS_LOCAL_WRITE : LOCAL_AND_REMOTE;
}

/*
 * A registration has the kernel's own answer: that to a call with another iova, which no cache
 * serves. Linux before 6.2 pins memory without access for reading nevertheless.
 */
static void as_kernel(const struct range *range, int access, bool refused)
{
	struct ibv_mr *mr = ibv_reg_mr_iova2(pair.pd, range->at, range->length,
					     (uintptr_t)range->at + PAGE, (unsigned int)access);
	int err = mr ? 0 : errno;

	must(mr ? !refused && ibv_dereg_mr(mr) == 0 : err);
	errno = 0;
	mr = register_region(pair.pd, range->at, range->length, access);
	is(mr ? 0 : errno, err, "rights %#x: as the kernel answers (%s)", access,
	   strerrorname_np(err));
	if (mr)
		let_go(mr);
}

/* The pages are the same: the device reads the program's data, if a registration is not refused. */
static void readable(const struct range *range, int access, bool may_be_refused)
{
	struct ibv_mr *mr = register_region(pair.pd, range->at, range->length, access);

	if (!mr) {
		ok(may_be_refused && errno == EFAULT, "rights %#x: registered", access);
		return;
	}
	ok(is_read_by_device(&pair, mr, range->at, range->length, access),
	   "rights %#x: the device reads the program's data", access);
	let_go(mr);
}

static const char *name_of(const struct range *range) { return range->what ? range->what : "it"; }

static void examine(const struct run *run, const struct range *range, enum expected expected)
{
	const char *name = name_of(range);

	switch (expected) {
	case ANEW: anew_with(&pair, name, range->at, range->length, run->access); break;
	case KEPT: still_with(&pair, name, range->at, range->length, run->access); break;
	case EITHER: either_with(&pair, name, range->at, range->length, run->access); break;
	case LANDS:
		ok(lands_with(&pair, range->at, range->length, run->access), "%s: data lands in the current page", name);
		break;
	case READABLE:
		as_kernel(range, run->access, true);
		readable(range, 0, false);
		readable(range, IBV_ACCESS_REMOTE_READ, false);
		break;
	case OUT_OF_REACH:
		as_kernel(range, run->access, true);
		as_kernel(range, 0, false);
		break;
	/* No event reported the lost right. */
	case UNSEEN: readable(range, run->access, true); break;
	case AS_STEP: must(!"an expectation");
	}
}

/* The cache keeps a region of each range, or of none of such memory. */
static void kept(const struct run *run, bool all)
{
	for (int n = 0; n < run->place.count; n++) {
		const struct range *range = &run->place.ranges[n];

		if (all || range->before)
			(run->place.unkept ? not_kept_with : control_with)(
				&pair, name_of(range), range->at, range->length, run->access);
	}
}

static void *make(void *argument)
{
	struct run *run = argument;

	run->refused = run->step->make(&run->place, &ways[run->way]) ? errno : 0;
	return NULL;
}

static void after_step(const struct run *run)
{
	const struct place *place = &run->place;

	for (int n = 0; n < place->count; n++) {
		enum expected expected = expected_of(run->change, run->step, &place->ranges[n], run->way);

		/* Relaxed registrations share a region in use, plain ones do not. */
		if (expected == KEPT && run->situation == IN_USE)
			expected = EITHER;
		examine(run, &place->ranges[n], expected);
	}
}

/* After the last step: checks the region that was in use, and later registrations. */
static void afterwards(const struct run *run)
{
	enum expected expected = expected_of(run->change, run->step, &run->place.ranges[0], run->way);

	if (!run->old)
		return;
	/* It is good again if its pages are the same. */
	if (expected == KEPT || expected == EITHER || expected == LANDS)
		ok(all_lands(&pair, run->old, run->old->addr, run->old->length, run->access & IBV_ACCESS_REMOTE_WRITE),
		   "the region in use goes on");
	let_go(run->old);
	if (!(run->change->flags & UNKNOWN_AFTER))
		kept(run, true);
}

/* After a change that the kernel refuses, the region is as good as before. */
static void not_made(const struct run *run)
{
	bool seen = run->way == LIBRARY || run->situation == IN_USE || run->place.unkept;

	/* The hook of the C library's function may end the region before the kernel refuses. */
	examine(run, &run->place.ranges[0], seen ? EITHER : KEPT);
	if (run->old)
		let_go(run->old);
}

static void whole_run(struct run *run)
{
	const struct range *first = &run->place.ranges[0];

	about("%s", situations[run->situation]);
	run->place = (struct place){ .fd = -1 };
	run->change->place(&run->place);
	run->access = access_in(run->situation);
	run->refused = 0;
	run->old = NULL;
	if (run->situation == IN_USE)
		run->old = by_cache(pair.pd, first->at, first->length, run->access);
	else
		kept(run, false);
	for (size_t n = 0; n < 2 && run->change->steps[n].make && !run->refused; n++) {
		run->step = &run->change->steps[n];
		if (run->situation == BY_THREAD)
			in_thread(make, run);
		else
			make(run);
		if (!run->refused)
			after_step(run);
	}
	(run->refused ? not_made : afterwards)(run);
	about("%s", "");
	release(&run->place);
}

static void try_change(void)
{
	const struct change *change = row->of;
	struct run run = { .change = change, .way = (int)row->value };
	char refusal[60];
	int refused = 0;

	if (change->limits & BY(run.way))
		skip_all("a limit that README lists");
	for (; run.situation < (change->flags & ONCE ? 1 : SITUATIONS); run.situation++) {
		if (run.situation == BY_THREAD && change->flags & NOT_BY_THREAD)
			continue;
		whole_run(&run);
		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		refused = refused ? refused : run.refused;
	}
	snprintf(refusal, sizeof(refusal), "this kernel refuses it: %s", strerrorname_np(refused));
	if (refused && (!change->since || kernel_is_before(change->since / 1000, change->since % 1000)))
		skip_all(refusal);
	is(refused, 0, "this kernel has it");
}

static void with_other_domain(void)
{
	other_pd = ibv_alloc_pd(pair.context);
	must(other_pd);
	another_domain_registers = in_other_domain;
	try_change();
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	must(ibv_flush_relaxed_mr(other_pd) == 0 && ibv_dealloc_pd(other_pd) == 0);
}

static struct row rows[400];

int main(int argc, char **argv)
{
	size_t count = 0;

	(void)argc;
	for (size_t n = 0; n < change_count; n++)
		for (int way = 0; way < WAYS; way++)
			if (changes[n].by & BY(way))
				rows[count++] = (struct row){ strdup(change_name(&changes[n], way)), with_other_domain, way, &changes[n] };
	return run_rows(argv, rows, count, "RDMAMR_CACHE_LINGER=" FOREVER, on_pair);
}
