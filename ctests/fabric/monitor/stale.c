/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * stale [--shown] [FROM]: the regions that libfabric's registration cache hands out after each
 * change of an address space (changes.h). For each change: registers, closes, changes, registers
 * again, writes to the memory, and has the device read it by the region's key. Asserts nothing:
 * prints a line for each change, "NAME|RESULT|AGAIN|EXPECTED". RESULT is
 *
 *   fresh   another key, and the device reads the written data
 *   hit     the previous key, and the device reads the written data
 *   STALE   the device reads other data: the region has pages that the process no longer maps
 *
 * AGAIN is the same for one more registration without a change. EXPECTED is "hit" for a change that
 * leaves the pages, "fresh" for one that does not, "any" for one that may do either. For a change
 * that the kernel refuses, or that README lists as a limit, the line is "NAME|-|REASON|". The last
 * line is "done|done||". With --shown: only the changes of the table that stale.sh prints. With
 * other monitors a change may stop the process for good: then SIGALRM ends it, and "stale FROM"
 * begins with the change of that number.
 */
#include "../../lib/changes.h"
#include "../../lib/program.h"
#include "cached.h"

static struct fid_domain *domain, *other_domain;
static struct pair pair;
static struct ibv_mr *seen_mr;
static char *seen;

enum { SEEN = 64 * PAGE };

static void in_other_domain(void *at, size_t length)
{
	must(fi_close(&reg(other_domain, at, length)->fid) == 0);
}

/* The device reads the data that was just written. */
static bool device_sees(const struct range *range, struct fid_mr *mr)
{
	/* In a long range, a page at each end. */
	size_t piece = range->length <= 64 * PAGE ? range->length : PAGE, at[] = { 0, range->length - piece };
	static unsigned char mark;
	bool same = true;

	mark++;
	memset(range->at, mark, range->length);
	for (int n = 0; n < 2; n++) {
		memset(seen, 0, piece);
		must(pair_read(&pair, seen_mr, seen, piece, (uintptr_t)range->at + at[n], (uint32_t)fi_mr_key(mr)) ==
		     IBV_WC_SUCCESS);
		for (size_t k = 0; k < piece; k++)
			same &= (unsigned char)seen[k] == mark;
	}
	return same;
}

enum result { HIT, NEW, STALE };
static const char *const results[] = { "hit", "fresh", "STALE" };

static enum result look(const struct range *range, uint64_t *key)
{
	struct fid_mr *mr = reg(domain, range->at, range->length);
	enum result result = fi_mr_key(mr) == *key ? HIT : NEW;

	if (!device_sees(range, mr))
		result = STALE;
	*key = fi_mr_key(mr);
	must(fi_close(&mr->fid) == 0);
	return result;
}

/* Checks each range that a step leaves writable. Returns the worst of the results; NEW before HIT. */
static enum result look_at_all(const struct change *change, const struct step *step, int way, struct place *place,
			       uint64_t *keys)
{
	enum result worst = HIT;

	for (int n = 0; n < place->count; n++) {
		enum expected expected = expected_of(change, step, &place->ranges[n], way);
		enum result result;

		if (expected == READABLE || expected == OUT_OF_REACH || expected == UNSEEN)
			continue;
		result = look(&place->ranges[n], &keys[n]);
		if (expected == KEPT && result == NEW)
			printf("(%s: not served)", place->ranges[n].what ? place->ranges[n].what : "it");
		worst = result > worst ? result : worst;
	}
	return worst;
}

static const char *expected_result(const struct change *change)
{
	switch (change->steps[0].expected) {
	case KEPT: return "hit";
	case FRESH: return "fresh";
	default: return "any";
	}
}

struct run {
	const struct change *change;
	int way;
};

static void *try_change(void *argument)
{
	const struct run *run = argument;
	const struct change *change = run->change;
	struct place place = { .fd = -1 };
	enum result result = HIT, after;
	uint64_t keys[3] = { 0 };
	size_t n;

	change->place(&place);
	for (int k = 0; k < place.count; k++)
		must(!place.ranges[k].before || look(&place.ranges[k], &keys[k]) != STALE);
	for (n = 0; n < 2 && change->steps[n].make; n++) {
		if (change->steps[n].make(&place, &ways[run->way])) {
			printf("-|this kernel refuses it: %s|\n", strerrorname_np(errno));
			release(&place);
			return NULL;
		}
		after = look_at_all(change, &change->steps[n], run->way, &place, keys);
		result = after > result ? after : result;
	}
	printf("%s|", results[result]);
	printf("%s|%s\n", results[look_at_all(change, &change->steps[n - 1], run->way, &place, keys)],
	       expected_result(change));
	release(&place);
	return NULL;
}

int main(int argc, char **argv)
{
	bool shown = argc > 1 && !strcmp(argv[1], "--shown");
	size_t from = argc > 1 + shown ? strtoul(argv[1 + shown], NULL, 10) : 0, number = 0;

	open_fabric();
	other_domain = open_domain();
	domain = open_domain();
	another_domain_registers = in_other_domain;
	pair_open_in(&pair, last_pd);
	seen = pages(SEEN / PAGE);
	seen_mr = ibv_reg_mr(pair.pd, seen, SEEN, IBV_ACCESS_LOCAL_WRITE);
	must(seen_mr);
	for (size_t n = 0; n < change_count; n++) {
		for (int way = 0; way < WAYS; way++) {
			struct run run = { &changes[n], way };

			if (!((shown ? changes[n].shown : changes[n].by) & BY(way)) || number++ < from)
				continue;
			/* A reader must see the name of a change that does not end. */
			printf("%s|", change_name(&changes[n], way));
			fflush(stdout);
			alarm(shown ? 10 : 100);
			if (changes[n].limits & BY(way))
				printf("-|a limit that README lists|\n");
			else if (changes[n].flags & IN_A_THREAD)
				in_thread(try_change, &run);
			else
				try_change(&run);
		}
	}
	must(ibv_dereg_mr(seen_mr) == 0);
	pair_close(&pair);
	must(fi_close(&domain->fid) == 0 && fi_close(&other_domain->fid) == 0);
	must(fi_close(&fabric->fid) == 0);
	fi_freeinfo(info);
	puts("done|done||");
	return 0;
}
