/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the tests of RDMAMR_CACHE share. Each runs its checks with the cache off, on "local" and on "all": what a
 * program may see is the same in all three, and only the statistics differ.
 */
#ifndef CACHE_H
#define CACHE_H

#define PLAIN_CALLS
#include "../relaxed/observe.h"

enum cache { OFF, LOCAL, ALL };

__attribute__((unused))
static const char *const cache_names[] = { "off", "local", "all" };

/* What RDMAMR_CACHE is now. */
__attribute__((unused))
static enum cache cache(void)
{
	const char *value = getenv("RDMAMR_CACHE");

	for (enum cache mode = LOCAL; value && mode <= ALL; mode++)
		if (!strcmp(value, cache_names[mode]))
			return mode;
	return OFF;
}

/* Whether a registration with this access may be served by a region that is there. */
__attribute__((unused))
static bool is_cached(int access)
{
	return cache() == ALL || (cache() == LOCAL && !(access & ~IBV_ACCESS_LOCAL_WRITE));
}

/* Begins with the cache off, and connects a pair. */
__attribute__((unused))
static void cache_open(char **argv, struct pair *pair)
{
	/* A slow machine must not end a region that the test means to find. */
	must(setenv("RDMAMR_RELAXED_LINGER", "600", 1) == 0);
	if (!getenv("RDMAMR_CACHE"))
		with_setting(argv, "RDMAMR_CACHE", cache_names[OFF]);
	as_root();
	relaxed_open(pair);
	printf("# RDMAMR_CACHE=%s\n", cache_names[cache()]);
}

/* Ends the checks of one setting: on to the next, or to the end of the report. */
__attribute__((unused))
static int cache_close(char **argv, struct pair *pair)
{
	relaxed_end(pair);
	/* With a setting of its own, for who wants to see that one alone. */
	if (!getenv("ONLY") && cache() != ALL)
		go_on_with(argv, "RDMAMR_CACHE", cache_names[cache() + 1]);
	return done_testing();
}

#endif
