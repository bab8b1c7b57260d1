/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The regions that a registration cache hands out after each change of an address space (changes.h). It asserts
 * nothing: it prints a line for each change, "NAME|RESULT|AGAIN|EXPECTED", and at the end "done|done||". RESULT,
 * and AGAIN for one more registration, is
 *
 *   fresh   another rkey, and the device reads the written data
 *   hit     the previous rkey, and the device reads the written data
 *   STALE   the device reads other data: the region has pages that the process no longer maps
 *
 * EXPECTED is "hit" for a change that leaves the pages, "fresh" for one that does not, "any" for one that may do
 * either. For a change that the kernel refuses, or that README lists as a limit, the line is "NAME|-|REASON|".
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
 * Tries the changes. The pair is on the cache's protection domain. Arguments: [--shown] [FROM]: only the changes that
 * stale.sh and bench/peers show; from that number on, behind a change that stopped the process and SIGALRM ended.
 */
void try_changes(const struct cache *cache, struct pair *pair, char **arguments);

#endif
