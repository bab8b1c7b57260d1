/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Another library that interposes a function of libibverbs, preloaded behind ours. Its lookup of
 * the next function must find libibverbs' own.
 */
#include <dlfcn.h>

int ibv_fork_init(void);
void *shim_next(void);

void *shim_next(void)
{
	return dlsym(RTLD_NEXT, "ibv_fork_init");
}

int ibv_fork_init(void)
{
	static int depth;
	int (*next)(void);

	*(void **)&next = shim_next();
	return depth++ ? -1 : next();
}
