/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "reuse.h"

struct far far;
const int rights[2] = { LOCAL_AND_REMOTE, IBV_ACCESS_LOCAL_WRITE };
const char *const rights_names[2] = { "remote rights", "local rights" };

bool plain_calls(void)
{
	const char *calls = getenv("CHECK_CALLS");

	return calls && !strcmp(calls, "plain");
}

struct ibv_mr *register_region(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	static unsigned int turn;

	if (!plain_calls())
		return ibv_reg_mr_relaxed(pd, addr, length, access);
	/* The parentheses suppress the macro of verbs.h, which would choose the call. */
	return __atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % 2 ?
		ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access) :
		(ibv_reg_mr)(pd, addr, length, access);
}

int deregister_region(struct ibv_mr *mr)
{
	return plain_calls() ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr);
}

/* The cache gives a range up for fewer registrations than this, even if it does so several times. */
enum { PAST_THE_CACHE = 100 };

struct ibv_mr *register_by_cache(struct ibv_pd *pd, void *addr, size_t length, int access,
				struct rdmamr_stats *before)
{
	for (int n = 0; n < PAST_THE_CACHE; n++) {
		struct ibv_mr *mr;

		*before = stats();
		mr = register_region(pd, addr, length, access);
		if (!mr || stats().bypassed_first == before->bypassed_first)
			return mr;
		must(deregister_region(mr) == 0);
	}
	must(!"the cache never looked at the range");
	return NULL;
}

static void far_open(struct pair *pair)
{
	far.out = pages(2 * WINDOW / PAGE);
	far.in = far.out + WINDOW;
	far.mr = ibv_reg_mr(pair->pd, far.out, 2 * WINDOW, LOCAL_AND_REMOTE);
	must(far.mr);
	far.others = kernel_regions(pair->context);
}

void relaxed_open(struct pair *pair)
{
	continue_report();
	must(ibv_reg_mr_relaxed && ibv_dereg_mr_relaxed && ibv_flush_relaxed_mr);
	if (!uffd_features())
		skip_all("userfaultfd is refused here: the cache keeps no region");
	/* Without the cache the kernel serves the plain calls, and the tests would show nothing. */
	must(!plain_calls() || getenv("RDMAMR_CACHE"));
	pair_open(pair);
	far_open(pair);
}

void relaxed_end(struct pair *pair)
{
	is(ibv_flush_relaxed_mr(pair->pd), 0, "at the end: flushed");
	is(stats().idle, 0, "at the end: nothing is idle");
	is(kernel_regions(pair->context), far.others, "at the end: the kernel has no relaxed region");
	must(ibv_dereg_mr(far.mr) == 0);
	must(munmap(far.out, 2 * WINDOW) == 0);
	pair_close(pair);
	is(stats().live, 0, "at the end: no region is left");
}

int status_is_good(int status, const char *what)
{
	if (status != IBV_WC_SUCCESS)
		printf("# %s: %s\n", what,
		       status < 0 ? "not posted, or not answered" : ibv_wc_status_str(status));
	return status == IBV_WC_SUCCESS;
}

bool is_read_by_device(struct pair *pair, const struct ibv_mr *mr, char *memory, size_t length,
		       int access)
{
	bool remote = access & IBV_ACCESS_REMOTE_READ;
	uint64_t there = (uintptr_t)memory, in = (uintptr_t)far.in;
	int status;

	memset(far.in, 0, length);
	status = remote ? pair_read(pair, far.mr, far.in, length, there, mr->rkey) :
			  pair_write(pair, mr, memory, length, in, far.mr->rkey);
	/* On iWARP a write is complete when it is sent; the answer to a read behind it comes later. */
	if (!remote && pair->iwarp)
		pair_read(pair, far.mr, far.out, 8, in, far.mr->rkey);
	return status_is_good(status, "the device reads") && !memcmp(memory, far.in, length);
}

/* One transfer each way: with `remote` from the far end by the region's rkey, else to it by the lkey. */
static int piece_lands(struct pair *pair, const struct ibv_mr *mr, char *memory, size_t length, bool remote)
{
	uint64_t there = (uintptr_t)memory, out = (uintptr_t)far.out;

	fill(far.out, length);
	if (!status_is_good(remote ? pair_write(pair, far.mr, far.out, length, there, mr->rkey) :
				     pair_read(pair, mr, memory, length, out,
					       far.mr->rkey), "the device writes"))
		return 0;
	/* A read tells a write to another page from a missing write. On iWARP it is answered after the write. */
	memset(far.in, 0, length);
	if (remote &&
	    !status_is_good(pair_read(pair, far.mr, far.in, length, there, mr->rkey), "it reads back"))
		return 0;
	if (memcmp(memory, far.out, length)) {
		printf("# STALE: the device's data is not in the program's page%s\n",
		       remote && !memcmp(far.in, far.out, length) ? ", but in another" : "");
		return 0;
	}
	fill(memory, length);
	if (!is_read_by_device(pair, mr, memory, length, remote ? IBV_ACCESS_REMOTE_READ : 0)) {
		printf("# STALE: the device reads other data than the program wrote\n");
		return 0;
	}
	return 1;
}

int all_lands(struct pair *pair, const struct ibv_mr *mr, char *memory, size_t length, bool remote)
{
	size_t piece = length <= 4 * WINDOW ? WINDOW : PAGE;
	size_t step = length <= 4 * WINDOW ? WINDOW : length / 16;

	for (size_t at = 0; at < length; at += step) {
		if (!piece_lands(pair, mr, memory + at, piece < length - at ? piece : length - at, remote))
			return 0;
	}
	return length <= 4 * WINDOW || piece_lands(pair, mr, memory + length - piece, piece, remote);
}

static int lands_once(struct pair *pair, void *memory, size_t length, int access)
{
	struct ibv_mr *mr = register_region(pair->pd, memory, length, access);
	int good, err;

	if (!mr) {
		printf("# registration: %s\n", strerror(errno));
		return 0;
	}
	good = mr->addr == memory && mr->length == length && mr->pd == pair->pd;
	if (!good)
		printf("# the region does not describe the request\n");
	good = all_lands(pair, mr, memory, length, access & IBV_ACCESS_REMOTE_WRITE) && good;
	err = deregister_region(mr);
	if (err)
		printf("# deregistration: %s\n", strerror(err));
	return good && !err;
}

/* By a registration that the cache serves; `before` and `after` are the statistics around it. */
static int lands_by_cache(struct pair *pair, void *memory, size_t length, int access, struct rdmamr_stats *before,
			  struct rdmamr_stats *after)
{
	struct rdmamr_stats first = stats();

	for (int n = 0; n < PAST_THE_CACHE; n++) {
		int good;

		*before = stats();
		good = lands_once(pair, memory, length, access);
		*after = stats();
		if (!good || after->bypassed_first == before->bypassed_first)
			return good;
	}
	show(first, *after);
	must(!"the cache never looked at the range");
	return 0;
}

int lands_with(struct pair *pair, void *memory, size_t length, int access)
{
	struct rdmamr_stats before, after;

	return lands_by_cache(pair, memory, length, access, &before, &after);
}

uint64_t bypassed(const struct rdmamr_stats *now)
{
	return now->bypassed_access + now->bypassed_device + now->bypassed_memory + now->bypassed_watch +
	       now->bypassed_fork + now->bypassed_limit + now->bypassed_busy + now->bypassed_address +
	       now->bypassed_first;
}

bool reused(struct rdmamr_stats before, struct rdmamr_stats after)
{
	return after.hits == before.hits + 1 && after.reg_kernel == before.reg_kernel &&
	       after.misses == before.misses && bypassed(&after) == bypassed(&before);
}

bool made_anew(struct rdmamr_stats before, struct rdmamr_stats after)
{
	return after.hits == before.hits && after.reg_kernel == before.reg_kernel + 1;
}

void show(struct rdmamr_stats before, struct rdmamr_stats after)
{
#define SHOW(field)                                                            \
	if (after.field != before.field)                                       \
		printf(", %s %+lld", #field, (long long)(after.field - before.field));
	printf("# statistics");
	SHOW(hits) SHOW(misses) SHOW(shared) SHOW(idle) SHOW(reg_kernel) SHOW(reg_failed) SHOW(dereg_kernel)
	SHOW(flushed_watermark) SHOW(flushed_linger) SHOW(flushed_pressure) SHOW(flushed_hook) SHOW(flushed_event)
	SHOW(flushed_fence) SHOW(stale_avoided_hook) SHOW(stale_avoided_event) SHOW(stale_avoided_fence)
	SHOW(bypassed_access) SHOW(bypassed_device) SHOW(bypassed_memory) SHOW(bypassed_watch) SHOW(bypassed_fork)
	SHOW(bypassed_limit) SHOW(bypassed_busy) SHOW(bypassed_address) SHOW(bypassed_first)
	printf("\n");
#undef SHOW
}

/* Before Linux 6.11 the library reads all mappings to find one, and then none for ten times as long. */
enum { TRIES = 30, NAP_AT_MOST = 1000000 /* us */ };

int control_with(struct pair *pair, const char *name, void *memory, size_t length, int access)
{
	struct rdmamr_stats before, after;
	int good = 1, tries;

	for (tries = 0; tries < TRIES; tries++) {
		good = lands_by_cache(pair, memory, length, access, &before, &after) && good;
		if (tries && (!good || reused(before, after)))
			break;
		if (tries)
			usleep(tries * 50000 < NAP_AT_MOST ? tries * 50000 : NAP_AT_MOST);
	}
	if (tries == TRIES)
		show(before, after);
	return ok(good && tries < TRIES, "%s: unchanged, the region is reused", name);
}

int not_kept_with(struct pair *pair, const char *name, void *memory, size_t length, int access)
{
	struct rdmamr_stats before, after;
	int good = 1, idle = (int)stats().idle, made = 1;

	for (int round = 0; round < 2 || (round < 200 && good && made && (int)stats().idle > idle); round++) {
		good = lands_by_cache(pair, memory, length, access, &before, &after) && good;
		made = made_anew(before, after) && made;
		for (int tries = 0; tries < 10 && round && (int)stats().idle > idle; tries++)
			usleep(10000);
	}
	if (!made)
		show(before, after);
	return ok(good && made && (int)stats().idle <= idle, "%s: such memory is not cached", name);
}

/*
 * Checks that data lands by one registration: a hit, if that is right, or one that has made a
 * region. If it bypassed the cache, the cache then serves the next one: so it has a region that a
 * later change must invalidate.
 */
static int judged(struct pair *pair, const char *name, void *memory, size_t length, int access,
		  bool hit_is_right, bool new_is_right)
{
	struct rdmamr_stats before, after;
	bool good, hit, made;
	int tries = 100;

	/* A call that meets the cache at work is plain: the next one tells. */
	do {
		before = stats();
		good = lands_once(pair, memory, length, access);
		after = stats();
		hit = hit_is_right && reused(before, after);
		made = new_is_right && made_anew(before, after);
	} while (good && !hit && !made && after.bypassed_busy > before.bypassed_busy && tries-- > 0);
	if (!hit && !made)
		show(before, after);
	if (good && after.bypassed_first != before.bypassed_first)
		good = lands_with(pair, memory, length, access);
	return ok(good && (hit || made), "%s: %s, and data lands in the current page", name,
		  made ? "registered anew" : "the region is reused");
}

int anew_with(struct pair *pair, const char *name, void *memory, size_t length, int access)
{
	return judged(pair, name, memory, length, access, false, true);
}

int either_with(struct pair *pair, const char *name, void *memory, size_t length, int access)
{
	return judged(pair, name, memory, length, access, true, true);
}

int still_with(struct pair *pair, const char *name, void *memory, size_t length, int access)
{
	return judged(pair, name, memory, length, access, true, false);
}

int write_refused(struct pair *pair, char *memory, uint32_t rkey)
{
	char old = *memory;
	int status, good;

	memset(far.out, ~old, 8);
	status = pair_write(pair, far.mr, far.out, 8, (uintptr_t)memory, rkey);
	/* An iWARP write completes when it is sent, and a refusal ends the connection. */
	if (pair->iwarp && status == IBV_WC_SUCCESS)
		status = pair_read(pair, far.mr, far.in, 8, (uintptr_t)far.out, far.mr->rkey);
	good = (pair->iwarp ? status != IBV_WC_SUCCESS : status == IBV_WC_REM_ACCESS_ERR) && *memory == old;
	if (!good)
		printf("# %s, and the byte was %s\n", status < 0 ? "no answer" : ibv_wc_status_str(status),
		       *memory == old ? "left alone" : "changed");
	pair_reconnect(pair);
	return good;
}
