/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a fork does with registered memory: the kernel copies the pinned pages for the child, unless
 * MADV_DONTFORK keeps them from it. The notes have the time of each way to start a program, with
 * CHECK_MIB of registered memory.
 */
#include "../lib/observe.h"
#include "../lib/program.h"
#include <spawn.h>

extern char **environ;
static char *memory;
static size_t bytes;

enum { ABSENT = 101 };

/* How many percent of the memory this process shares with no other one; ABSENT if it has no such mapping. */
static int own_pages(void)
{
	long own = smaps_kib(memory, bytes, "Private_Clean") + smaps_kib(memory, bytes, "Private_Dirty");

	return smaps_kib(memory, bytes, "Size") ? (int)((size_t)own * 1024 * 100 / bytes) : ABSENT;
}

static int nothing(void)
{
	return 0;
}

static int by_fork(void)
{
	return in_forked(nothing);
}

static int by_posix_spawn(void)
{
	char *const command[] = { "/bin/true", NULL };
	pid_t pid;

	must(posix_spawn(&pid, *command, NULL, NULL, command, environ) == 0);
	return child_status(pid);
}

static int by_vfork(void)
{
	pid_t pid = vfork();

	if (!pid) {
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	return child_status(pid);
}

static int by_system(void)
{
	return system("/bin/true");
}

static int by_popen(void)
{
	return pclose(popen("/bin/true", "r"));
}

static const struct { const char *name; int (*start)(void); } ways[] = {
	{ "fork", by_fork }, { "system", by_system }, { "popen", by_popen }, { "posix_spawn", by_posix_spawn }, { "vfork", by_vfork },
};

/* The quickest of three. */
static void times(const char *when)
{
	for (size_t n = 0; n < sizeof(ways) / sizeof(*ways); n++) {
		double least = DEADLOCK;

		for (int round = 0; round < 3; round++) {
			double began = seconds_now();

			must(ways[n].start() == 0);
			least = seconds_now() - began < least ? seconds_now() - began : least;
		}
		printf("# %zu MiB, %s: %s takes %.1f ms\n", bytes >> 20, when, ways[n].name, 1000 * least);
	}
}

int main(void)
{
	const char *mib = getenv("CHECK_MIB");
	struct ibv_pd *pd = domain_of_device();
	struct ibv_mr *mr;

	must(pd);
	bytes = (mib ? strtoul(mib, NULL, 0) : 16) << 20;
	/* Mappings around it have other rights, so that it stays one of its own. */
	memory = mmap(NULL, bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(memory != MAP_FAILED);
	memory += PAGE;
	must(mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0);
	memset(memory, 1, bytes);
	is(in_forked(own_pages), 0, "a child shares memory that is not registered");
	times("not registered");
	mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	is(in_forked(own_pages), 100, "a child has a copy of registered memory");
	times("registered");
	must(madvise(memory, bytes, MADV_DONTFORK) == 0);
	is(in_forked(own_pages), ABSENT, "but not after MADV_DONTFORK");
	times("registered, MADV_DONTFORK");
	must(madvise(memory, bytes, MADV_DOFORK) == 0 && ibv_dereg_mr(mr) == 0);
	is(in_forked(own_pages), 0, "nor after the deregistration");
	return done_testing();
}
