/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Each change of an address space (changes.h) below an idle region and below one in use, by this
 * thread and by another, by the relaxed calls or, with CHECK_CALLS=plain, by the plain calls under
 * RDMAMR_CACHE=all or =local. After the change a registration must be of the current pages, which
 * RDMA traffic proves, and unchanged memory must be a hit.
 *
 * Usage: changes [TEXT]: only those with TEXT in their name
 */
#include "../../lib/changes.h"
#include "../../lib/observe.h"

enum situation { IDLE_REMOTE, IDLE_LOCAL, IN_USE, BY_THREAD, SITUATIONS };
static const char *const situations[] = {
	"an idle region with remote rights", "an idle region with local rights", "a region in use", "by another thread",
};

static struct pair pair;
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

static void in_other_domain(void *at, size_t length)
{
	struct rdmamr_stats before;
	struct ibv_mr *mr = register_by_cache(other_pd, at, length, LOCAL_AND_REMOTE, &before);

	must(mr && deregister_region(mr) == 0);
}

static int access_in(enum situation situation)
{
	/* RDMAMR_CACHE=local keeps no region with remote rights. */
	if (plain_calls() && !strcmp(getenv("RDMAMR_CACHE"), "local"))
		return IBV_ACCESS_LOCAL_WRITE;
	return situation == IDLE_LOCAL ? IBV_ACCESS_LOCAL_WRITE : LOCAL_AND_REMOTE;
}

static const char *named(const struct run *run, const struct range *range)
{
	static char name[200];

	snprintf(name, sizeof(name), "%s%s%s", situations[run->situation], range->what ? ", " : "",
		 range->what ? range->what : "");
	return name;
}

/* A registration that may write fails, with the kernel's errno. */
static void refused(const char *name, const struct range *range, int access)
{
	struct ibv_mr *mr = NULL;
	int err;

	/* The kernel's own answer, by a call that no cache serves. */
	errno = 0;
	must(!ibv_reg_mr_iova2(pair.pd, range->at, range->length, (uintptr_t)range->at + PAGE, (unsigned int)access));
	err = errno;
	errno = 0;
	mr = register_region(pair.pd, range->at, range->length, access);
	is(mr ? 0 : errno, err, "%s: refused as the kernel refuses it (%s)", name, strerrorname_np(err));
	if (mr)
		deregister_region(mr);
}

/* A registration without a right to write succeeds or fails as the kernel's does. */
static void as_kernel(const char *name, const struct range *range)
{
	struct ibv_mr *mr = ibv_reg_mr_iova2(pair.pd, range->at, range->length, (uintptr_t)range->at + PAGE, 0);
	int err = mr ? 0 : errno;

	if (mr)
		must(ibv_dereg_mr(mr) == 0);
	errno = 0;
	mr = register_region(pair.pd, range->at, range->length, 0);
	is(mr ? 0 : errno, err, "%s, no right to write: as the kernel answers (%s)", name, strerrorname_np(err));
	if (mr)
		is(deregister_region(mr), 0, "%s, no right to write: deregistered", name);
}

/* The device reads the program's earlier data, by a region that may not write. */
static void readable(const char *name, const struct range *range, int access)
{
	struct ibv_mr *mr = register_region(pair.pd, range->at, range->length, access);
	int status;

	if (!ok(mr != NULL, "%s, rights %#x: registered", name, access))
		return;
	memset(far.in, 0, range->length);
	if (access & IBV_ACCESS_REMOTE_READ)
		status = pair_read(&pair, far.mr, far.in, range->length, (uintptr_t)range->at, mr->rkey);
	else
		status = pair_write(&pair, mr, range->at, range->length, (uintptr_t)far.in, far.mr->rkey);
	is(status, IBV_WC_SUCCESS, "%s, rights %#x: the device reads", name, access);
	if (pair.iwarp) /* the answer to a read behind a write comes after it */
		must(pair_read(&pair, far.mr, far.out, 8, (uintptr_t)far.in, far.mr->rkey) == IBV_WC_SUCCESS);
	ok(!memcmp(range->at, far.in, range->length), "%s, rights %#x: the program's data", name, access);
	is(deregister_region(mr), 0, "%s, rights %#x: deregistered", name, access);
}

/*
 * No event reported the lost right. The pages are the same, so data that the device may write lands
 * in them.
 */
static void unseen(const char *name, const struct range *range, int access)
{
	struct ibv_mr *mr = register_region(pair.pd, range->at, range->length, access);
	int status;

	if (!mr) {
		is(errno, EFAULT, "%s: refused", name);
		return;
	}
	fill(far.out, range->length);
	status = access & IBV_ACCESS_REMOTE_WRITE ?
		pair_write(&pair, far.mr, far.out, range->length, (uintptr_t)range->at, mr->rkey) :
		pair_read(&pair, mr, range->at, range->length, (uintptr_t)far.out, far.mr->rkey);
	if (pair.iwarp)
		must(pair_read(&pair, far.mr, far.in, 8, (uintptr_t)range->at, mr->rkey) == IBV_WC_SUCCESS);
	is(status, IBV_WC_SUCCESS, "%s: the device writes", name);
	ok(!memcmp(range->at, far.out, range->length), "%s: into the current page", name);
	is(deregister_region(mr), 0, "%s: deregistered", name);
}

static void examine(const struct run *run, const struct range *range, enum expected expected)
{
	const char *name = named(run, range);

	switch (expected) {
	case FRESH:
		anew_with(&pair, name, range->at, range->length, run->access);
		break;
	case KEPT:
		still_with(&pair, name, range->at, range->length, run->access);
		break;
	case EITHER:
		either_with(&pair, name, range->at, range->length, run->access);
		break;
	case LANDS:
		ok(lands_with(&pair, range->at, range->length, run->access), "%s: data lands in the current page", name);
		break;
	case READABLE:
		refused(name, range, run->access);
		readable(name, range, 0);
		readable(name, range, IBV_ACCESS_REMOTE_READ);
		break;
	case OUT_OF_REACH:
		refused(name, range, run->access);
		/* Linux before 6.2 nevertheless pins such memory for reading. */
		as_kernel(name, range);
		break;
	case UNSEEN:
		unseen(name, range, run->access);
		break;
	case AS_STEP:
		must(!"an expectation");
	}
}

/* The region in use during the change is good again if its pages are the same. */
static bool old_is_good(enum expected expected)
{
	return expected == KEPT || expected == EITHER || expected == LANDS;
}

static void before(struct run *run)
{
	const struct range *first = &run->place.ranges[0];
	struct rdmamr_stats since;

	if (run->situation == IN_USE) {
		run->old = register_by_cache(pair.pd, first->at, first->length, run->access, &since);
		must(run->old);
		return;
	}
	for (int n = 0; n < run->place.count; n++) {
		const struct range *range = &run->place.ranges[n];

		if (!range->before)
			continue;
		if (run->place.unkept)
			not_kept_with(&pair, named(run, range), range->at, range->length, run->access);
		else
			control_with(&pair, named(run, range), range->at, range->length, run->access);
	}
}

static void *make(void *argument)
{
	struct run *run = argument;

	run->refused = 0;
	if (run->step->make(&run->place, &ways[run->way]))
		run->refused = errno;
	return NULL;
}

static void after_step(const struct run *run)
{
	const struct place *place = &run->place;

	if (place->emptied)
		is(*place->emptied, 0, "%s: the page is a new one", situations[run->situation]);
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
	const struct place *place = &run->place;
	enum expected expected = expected_of(run->change, run->step, &place->ranges[0], run->way);

	if (!run->old)
		return;
	if (old_is_good(expected))
		ok(all_lands(&pair, run->old, run->old->addr, run->old->length, run->access & IBV_ACCESS_REMOTE_WRITE),
		   "%s: goes on", situations[run->situation]);
	is(deregister_region(run->old), 0, "%s: deregistered", situations[run->situation]);
	for (int n = 0; n < place->count && !(run->change->flags & UNKNOWN_AFTER); n++) {
		const struct range *range = &place->ranges[n];

		if (place->unkept)
			not_kept_with(&pair, named(run, range), range->at, range->length, run->access);
		else
			control_with(&pair, named(run, range), range->at, range->length, run->access);
	}
}

/* After a change that the kernel refuses, the region is as good as before. */
static void not_made(const struct run *run)
{
	const struct range *range = &run->place.ranges[0];
	bool seen = run->way == LIBRARY || run->way == PROCESS || run->situation == IN_USE || run->place.unkept;

	/*
	 * The hook of the C library's function may end the region before the kernel refuses. The other
	 * process is a child, and the library ends idle regions before a fork.
	 */
	examine(run, range, seen ? EITHER : KEPT);
	if (run->old)
		is(deregister_region(run->old), 0, "%s: deregistered", situations[run->situation]);
}

static void *whole_run(void *argument)
{
	struct run *run = argument;

	run->place = (struct place){ .fd = -1 };
	run->change->place(&run->place);
	run->access = access_in(run->situation);
	run->old = NULL;
	before(run);
	for (size_t n = 0; n < 2 && run->change->steps[n].make; n++) {
		run->step = &run->change->steps[n];
		if (run->situation == BY_THREAD)
			in_thread(make, run);
		else
			make(run);
		if (run->refused)
			break;
		after_step(run);
	}
	if (run->refused)
		not_made(run);
	else
		afterwards(run);
	release(&run->place);
	return NULL;
}

static void try_change(const struct change *change, int way)
{
	struct run run = { .change = change, .way = way };
	int refused = 0;

	case_begin("%s", change_name(change, way));
	if (change->limits & BY(way)) {
		case_skip("a limit that README lists");
		return;
	}
	for (enum situation situation = 0; situation < SITUATIONS; situation++) {
		if (situation && change->flags & ONCE)
			break;
		if (situation == BY_THREAD && change->flags & NOT_BY_THREAD)
			continue;
		run.situation = situation;
		if (change->flags & IN_A_THREAD)
			in_thread(whole_run, &run);
		else
			whole_run(&run);
		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		refused = refused ? refused : run.refused;
	}
	if (refused && !change_is_due(change))
		case_skip("this kernel refuses it: %s", strerrorname_np(refused));
	else {
		is(refused, 0, "this kernel has it");
		case_end();
	}
}

/*
 * Registers memory 200 times while an io_uring may be discarding it. Then it is discarded, and data
 * must land.
 */
static void beside_workers(int way)
{
	char *memory = pages(5);
	int stale = 0;

	case_begin("registrations beside `MADV_DONTNEED`%s", way == WORKER ? " by a worker of an io_uring" : " by an io_uring");
	control(&pair, "before", memory, 2 * PAGE);
	for (int round = 0; round < 200; round++) {
		memory[0] = 1;
		if (!ring_begin_discard(memory, 2 * PAGE, way == WORKER)) {
			case_skip("no io_uring for this user: %s", strerrorname_np(errno));
			return;
		}
		must(lands_local(&pair, memory + 4 * PAGE, PAGE));
		must(deregister_region(register_region(pair.pd, memory, 2 * PAGE, LOCAL_AND_REMOTE)) == 0);
		must(ring_result() == 0);
		/* Registered again before it is invalidated, so that the cache tries again at once. */
		stale += !lands(&pair, memory, 2 * PAGE);
		stale += !lands(&pair, memory, 2 * PAGE);
	}
	is(stale, 0, "data landed 200 times");
	if (access_in(IDLE_REMOTE) == LOCAL_AND_REMOTE)
		control_later(&pair, "afterwards", memory, 2 * PAGE);
	case_end();
	must(munmap(memory, 5 * PAGE) == 0);
}

static void layers(void)
{
	struct rdmamr_stats now = stats();

	case_begin("the layers that saw the changes");
	printf("# invalidated: by calls %llu, by events %llu, by the fence %llu\n",
	       (unsigned long long)now.stale_avoided_hook,
	       (unsigned long long)now.stale_avoided_event, (unsigned long long)now.stale_avoided_fence);
	ok(now.stale_avoided_hook > 0, "hooks saw the calls of the C library");
	ok(now.stale_avoided_event > 0, "userfaultfd reported the raw system calls");
	is((long long)now.flushed_linger, 0, "no region ended by age");
	case_end();
}

int main(int argc, char **argv)
{
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	other_pd = ibv_alloc_pd(pair.context);
	must(other_pd);
	another_domain_registers = in_other_domain;
	for (size_t n = 0; n < change_count; n++) {
		for (int way = 0; way < WAYS; way++) {
			if (changes[n].by & BY(way) && (argc < 2 || strstr(change_name(&changes[n], way), argv[1])))
				try_change(&changes[n], way);
		}
	}
	if (argc < 2) {
		beside_workers(WORKER);
		beside_workers(RING);
		layers();
	}
	must(ibv_flush_relaxed_mr(other_pd) == 0 && ibv_dealloc_pd(other_pd) == 0);
	return relaxed_close(&pair);
}
