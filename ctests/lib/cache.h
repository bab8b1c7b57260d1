/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_CACHE. Each test runs its checks with the cache off, on "local" and on "all": the program
 * must see the same in all three, and only the statistics differ.
 */
#ifndef CTESTS_CACHE_H
#define CTESTS_CACHE_H

#include "observe.h"

enum cache { OFF, LOCAL, ALL };
extern const char *const cache_names[];

/* The present value of RDMAMR_CACHE. */
enum cache cache(void);

/* Whether a registration with this access may be a hit. */
bool is_cached(int access);

/* Begins with the cache off, and connects a pair. */
void cache_open(char **argv, struct pair *pair);

/*
 * Ends the checks of one setting, and goes on to the next, or to the end of the report. ONLY=1 in
 * the environment runs one setting alone.
 */
int cache_close(char **argv, struct pair *pair);

#endif
