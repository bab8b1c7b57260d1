/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "stale.h"
#include "changes.h"
#include "program.h"

enum { SEEN = 64 * PAGE };

static const struct cache *cache;
static struct pair *pair;
static struct ibv_mr *seen_mr;
static char *seen;

/* The device reads the data that was just written. */
static bool device_sees(const struct range *range, void *registration)
{
	/* In a long range, a page at each end. */
	size_t piece = range->length <= 64 * PAGE ? range->length : PAGE, at[] = { 0, range->length - piece };
	static unsigned char mark;
	bool same = true;

	mark++;
	memset(range->at, mark, range->length);
	for (int n = 0; n < 2; n++) {
		memset(seen, 0, piece);
		must(pair_read(pair, seen_mr, seen, piece, (uintptr_t)range->at + at[n], cache->rkey(registration)) ==
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
	void *registration = cache->get(range->at, range->length);
	uint32_t rkey = cache->rkey(registration);
	enum result result = rkey == *key ? HIT : NEW;

	if (!device_sees(range, registration))
		result = STALE;
	*key = rkey;
	cache->put(registration);
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
	case ANEW: return "fresh";
	default: return "any";
	}
}

static void try_change(const struct change *change, int way)
{
	struct place place = { .fd = -1 };
	enum result result = HIT, after;
	uint64_t keys[3] = { 0 };
	size_t n;

	change->place(&place);
	for (int k = 0; k < place.count; k++)
		must(!place.ranges[k].before || look(&place.ranges[k], &keys[k]) != STALE);
	for (n = 0; n < 2 && change->steps[n].make; n++) {
		if (change->steps[n].make(&place, &ways[way])) {
			printf("-|this kernel refuses it: %s|\n", strerrorname_np(errno));
			release(&place);
			return;
		}
		after = look_at_all(change, &change->steps[n], way, &place, keys);
		result = after > result ? after : result;
	}
	printf("%s|", results[result]);
	printf("%s|%s\n", results[look_at_all(change, &change->steps[n - 1], way, &place, keys)],
	       expected_result(change));
	release(&place);
}

void try_changes(const struct cache *of, struct pair *connected, char **arguments)
{
	bool shown = arguments[0] && !strcmp(arguments[0], "--shown");
	size_t from = arguments[shown] ? strtoul(arguments[shown], NULL, 10) : 0, number = 0;

	cache = of;
	pair = connected;
	another_domain_registers = cache->in_other_domain;
	seen = pages(SEEN / PAGE);
	seen_mr = ibv_reg_mr(pair->pd, seen, SEEN, IBV_ACCESS_LOCAL_WRITE);
	must(seen_mr);
	for (size_t n = 0; n < change_count; n++) {
		for (int way = 0; way < WAYS; way++) {
			if (!((shown ? changes[n].shown : changes[n].by) & BY(way)) || number++ < from)
				continue;
			/* A reader must see the name of a change that does not end. */
			printf("%s|", change_name(&changes[n], way));
			fflush(stdout);
			alarm(shown ? 10 : 100);
			if (changes[n].limits & BY(way))
				printf("-|a limit that README lists|\n");
			else
				try_change(changes + n, way);
		}
	}
	must(ibv_dereg_mr(seen_mr) == 0);
	puts("done|done||");
}
