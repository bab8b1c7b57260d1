/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The variables of a shared object go with it: dlclose unmaps them inside libc, and another object,
 * or the same one, is mapped there. They are a private mapping of its file, and the cache keeps no
 * region of those.
 */
#include "../../lib/reuse.h"
#include <dlfcn.h>

#define OBJECT "libresolv.so.2" /* of libc, unused here, and small */

static struct pair pair;

/* The last page of its writable mapping of the file; NULL if it is not loaded. */
static char *variables(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long start, end;
	char line[400], rights[5], *found = NULL;

	must(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && !strcmp(rights, "rw-p") &&
		    strstr(line, OBJECT))
			found = (char *)end - PAGE;
	}
	fclose(maps);
	return found;
}

/* Transfers change the memory; the object gets its variables back. */
static char saved[PAGE];

static char *load(void **object)
{
	char *memory;

	must(!variables());
	*object = dlopen(OBJECT, RTLD_NOW);
	must(*object);
	memory = variables();
	must(memory);
	memcpy(saved, memory, PAGE);
	return memory;
}

static void unload(void *object, char *memory)
{
	memcpy(memory, saved, PAGE);
	must(dlclose(object) == 0);
	must(!variables());
}

int main(int argc, char **argv)
{
	char *memory, *again;
	void *object;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);

	memory = load(&object);
	not_kept(&pair, "variables of a shared object", memory, PAGE);
	unload(object, memory);
	fresh_at(memory, PAGE);
	anew(&pair, "memory where they were", memory, PAGE);
	must(munmap(memory, PAGE) == 0);

	memory = load(&object);
	not_kept(&pair, "variables again", memory, PAGE);
	unload(object, memory);
	again = load(&object);
	if (again == memory)
		anew(&pair, "the object loaded again at the same place", again, PAGE);
	else
		skip("the object loaded again at the same place", "it came elsewhere");
	not_kept(&pair, "variables once more", again, PAGE);
	unload(object, again);

	/* A region is registered while the object is unloaded and loaded again. */
	memory = load(&object);
	{
		struct rdmamr_stats since;
		struct ibv_mr *old = register_by_cache(pair.pd, memory, PAGE, LOCAL_AND_REMOTE, &since);

		must(old);
		unload(object, memory);
		fresh_at(memory, PAGE);
		anew(&pair, "memory where variables in use were", memory, PAGE);
		is(deregister_region(old), 0, "which are deregistered");
		must(munmap(memory, PAGE) == 0);
	}
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	return relaxed_close(&pair);
}
