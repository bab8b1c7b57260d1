/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Interposes a function of libibverbs behind our library. Its lookup must find libibverbs' own. */
#include <dlfcn.h>

int ibv_fork_init(void);
void *shim_next(void);

void *shim_next(void) { return dlsym(RTLD_NEXT, "ibv_fork_init"); }

int ibv_fork_init(void)
{
	static int depth;
	int (*next)(void);

	*(void **)&next = shim_next();
	return depth++ ? -1 : next();
}
