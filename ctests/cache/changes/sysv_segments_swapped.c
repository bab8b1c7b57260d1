/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * shmdt and shmat swap System V segments at an address, which userfaultfd does not report. So the
 * cache keeps no region of them. The library's hook sees segments that replace other memory
 * (SHM_REMAP); it does not see a raw system call, which is a limit.
 */
#include "../../lib/reuse.h"
#include <sys/shm.h>

enum { COUNT = 8, SIZE = COUNT * PAGE };

static struct pair pair;
static int segments[2];

static void *attach_by_libc(int segment, void *at, int flags)
{
	return shmat(segment, at, flags);
}

static void *attach_by_system_call(int segment, void *at, int flags)
{
	return (void *)syscall(SYS_shmat, segment, at, flags);
}

static int detach_by_libc(const void *at)
{
	return shmdt(at);
}

static int detach_by_system_call(const void *at)
{
	return (int)syscall(SYS_shmdt, at);
}

static const struct way {
	const char *name;
	void *(*attach)(int segment, void *at, int flags);
	int (*detach)(const void *at);
} ways[] = {
	{ "shmat", attach_by_libc, detach_by_libc },
	{ "its system call", attach_by_system_call, detach_by_system_call },
};

static const char *named(const char *what, const struct way *way)
{
	static char name[120];

	snprintf(name, sizeof(name), "%s by %s", what, way->name);
	return name;
}

/* Another segment at the same address. */
static void swapped(const struct way *way)
{
	char *memory = way->attach(segments[0], new_place(SIZE), 0);

	must(memory != (void *)-1);
	not_kept(&pair, named("a segment", way), memory, SIZE);
	must(way->detach(memory) == 0);
	must(way->attach(segments[1], memory, 0) == memory);
	anew(&pair, named("another segment at its address", way), memory, SIZE);
	not_kept(&pair, named("that one, unchanged", way), memory, SIZE);
	must(way->attach(segments[0], memory, SHM_REMAP) == memory);
	anew(&pair, named("swapped by SHM_REMAP", way), memory, SIZE);
	must(way->detach(memory) == 0);
	fresh_at(memory, SIZE);
	anew(&pair, named("memory of another kind at its address", way), memory, SIZE);
	must(munmap(memory, SIZE) == 0);
}

/* A segment over memory that the cache keeps a region of. */
static void onto_private(const struct way *way)
{
	char *memory = pages(COUNT);

	control(&pair, named("private memory", way), memory, SIZE);
	must(way->attach(segments[0], memory, SHM_REMAP) == memory);
	anew(&pair, named("private memory replaced", way), memory, SIZE);
	must(shmdt(memory) == 0);
}

static void in_use(const struct way *way)
{
	char *memory = shmat(segments[0], NULL, 0);
	struct rdmamr_stats since;
	struct ibv_mr *old;

	must(memory != (void *)-1);
	old = register_by_cache(pair.pd, memory, SIZE, LOCAL_AND_REMOTE, &since);
	must(old);
	must(way->attach(segments[1], memory, SHM_REMAP) == memory);
	anew(&pair, named("swapped below a region in use", way), memory, SIZE);
	is(deregister_region(old), 0, "%s: deregistered", named("swapped below a region in use", way));
	must(shmdt(memory) == 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	for (int n = 0; n < 2; n++) {
		segments[n] = shmget(IPC_PRIVATE, SIZE, 0600);
		must(segments[n] >= 0);
	}
	for (size_t n = 0; n < 2; n++) {
		swapped(&ways[n]);
		if (n == 0)
			onto_private(&ways[n]);
		in_use(&ways[n]);
	}
	for (int n = 0; n < 2; n++)
		must(shmctl(segments[n], IPC_RMID, NULL) == 0);
	ok(stats().bypassed_memory > 0, "it bypassed the cache because of its kind of memory");
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	return relaxed_close(&pair);
}
