/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The regions that a registration cache hands out after each change of an address space
 * (changes.h). For each change: registers, deregisters, changes, registers again, writes to the
 * memory, and has the device read it by the region's rkey. Asserts nothing: prints a line for each
 * change, "NAME|RESULT|AGAIN|EXPECTED". RESULT is
 *
 *   fresh   another rkey, and the device reads the written data
 *   hit     the previous rkey, and the device reads the written data
 *   STALE   the device reads other data: the region has pages that the process no longer maps
 *
 * AGAIN is the same for one more registration without a change. EXPECTED is "hit" for a change that
 * leaves the pages, "fresh" for one that does not, "any" for one that may do either. For a change
 * that the kernel refuses, or that README lists as a limit, the line is "NAME|-|REASON|". The last
 * line is "done|done||".
 */
#ifndef CTESTS_STALE_H
#define CTESTS_STALE_H

#include "pair.h"

/* A registration cache. */
struct cache {
	void *(*get)(void *at, size_t length); /* registers with all rights; never NULL */
	uint32_t (*rkey)(void *registration);
	void (*put)(void *registration);
	/* Registers the memory in another domain, and deregisters it. */
	void (*in_other_domain)(void *at, size_t length);
};

/*
 * Tries the changes. The pair is on the cache's protection domain. Arguments: [--shown] [FROM].
 * With --shown: only the changes that stale.sh and bench/peers show. A change may stop the
 * process for good: then SIGALRM ends it, and FROM begins with the change of that number.
 */
void try_changes(const struct cache *cache, struct pair *pair, char **arguments);

#endif
