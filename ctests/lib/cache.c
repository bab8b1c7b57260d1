/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "cache.h"

const char *const cache_names[] = { "off", "local", "all" };

enum cache cache(void)
{
	const char *value = getenv("RDMAMR_CACHE");

	for (enum cache mode = LOCAL; value && mode <= ALL; mode++)
		if (!strcmp(value, cache_names[mode]))
			return mode;
	return OFF;
}

bool is_cached(int access)
{
	return cache() == ALL || (cache() == LOCAL && !(access & ~IBV_ACCESS_LOCAL_WRITE));
}

void cache_open(char **argv, struct pair *pair)
{
	/* A slow machine must not end by age a region that the test means to find. */
	must(setenv("CHECK_CALLS", "plain", 1) == 0);
	must(setenv("RDMAMR_CACHE_LINGER", FOREVER, 1) == 0);
	if (!getenv("RDMAMR_CACHE"))
		with_setting(argv, "RDMAMR_CACHE", cache_names[OFF]);
	as_root();
	relaxed_open(pair);
	printf("# RDMAMR_CACHE=%s\n", cache_names[cache()]);
}

int cache_close(char **argv, struct pair *pair)
{
	relaxed_end(pair);
	if (!getenv("ONLY") && cache() != ALL)
		go_on_with(argv, "RDMAMR_CACHE", cache_names[cache() + 1]);
	return done_testing();
}
