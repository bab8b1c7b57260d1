/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * After a fork both sides see the same pages until one of them writes, and the device must use
 * those of the parent. The child has a copy of the cache, of the watch and of the regions' objects,
 * and may touch none of them: not by registering, deregistering or flushing, not by unmapping, not
 * by its exit.
 */
#include "../../lib/observe.h"
#include <sys/wait.h>

enum { COUNT = 8, SIZE = COUNT * PAGE };

static struct pair pair;
static char *memory;
static int to_child[2], to_parent[2];

static void tell(const int *pipe)
{
	must(write(pipe[1], "", 1) == 1);
}

static void wait_for(const int *pipe)
{
	char byte;

	must(read(pipe[0], &byte, 1) == 1);
}

/* A child that ends by itself if anything hangs. */
static pid_t start_child(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	if (!pid)
		alarm(DEADLOCK);
	return pid;
}

static int status_of(pid_t pid)
{
	int status;

	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The number of bytes that differ from c. */
static int others_than(char c)
{
	int wrong = 0;

	for (int n = 0; n < SIZE; n++)
		wrong += memory[n] != c;
	return wrong;
}

/*
 * One side writes first, into every page. The child must go on seeing the memory of the moment of
 * the fork, and the parent the device's writes; by a region that is idle at the fork, or in use.
 */
static void writes_first(bool child_first, bool in_use)
{
	struct ibv_mr *mr;
	char name[80];
	pid_t pid;

	snprintf(name, sizeof(name), "the %s writes first, the region is %s",
		 child_first ? "child" : "parent",
		 in_use ? "in use" : "idle");
	control(&pair, name, memory, SIZE);
	mr = in_use ? register_region(pair.pd, memory, SIZE, LOCAL_AND_REMOTE) : NULL;
	must(mr || !in_use);
	memset(memory, 'a', SIZE);
	pid = start_child();
	if (!pid) {
		int wrong = 0;

		if (child_first)
			memset(memory, 'a', SIZE);
		tell(to_parent);
		wait_for(to_child);
		wrong = others_than('a');
		memset(memory, 'c', SIZE);
		tell(to_parent);
		wait_for(to_child);
		_exit(wrong || others_than('c'));
	}
	wait_for(to_parent);
	if (!child_first)
		memset(memory, 'p', SIZE);
	if (in_use)
		ok(lands_in(&pair, mr, memory, SIZE), "%s: data lands in the parent's page", name);
	else
		still(&pair, name, memory, SIZE);
	tell(to_child);
	wait_for(to_parent);
	if (in_use)
		ok(lands_in(&pair, mr, memory, SIZE), "%s: after both have written, too", name);
	else
		still(&pair, name, memory, SIZE);
	tell(to_child);
	is(status_of(pid), 0, "%s: the child sees its own memory only", name);
	if (in_use) {
		ok(lands_in(&pair, mr, memory, SIZE), "%s: after the child, too", name);
		is(deregister_region(mr), 0, "%s: deregistered", name);
	}
	still(&pair, name, memory, SIZE);
}

static struct ibv_mr *live;

/* Actions of a child that must not harm its parent. Each returns 0 if it succeeded in the child. */
static int does_nothing(void)
{
	return 0;
}

static int holds_no_watch(void)
{
	return userfaultfds(NULL);
}

static int flushes(void)
{
	ibv_flush_relaxed_mr(pair.pd);
	return 0;
}

static int deregisters(void)
{
	struct rdmamr_stats before = stats();

	deregister_region(live);
	return stats().dereg_kernel != before.dereg_kernel;
}

static int unmaps(void)
{
	return munmap(memory, SIZE) != 0;
}

static int discards_by_system_call(void)
{
	return syscall(SYS_madvise, memory, SIZE, MADV_DONTNEED) != 0;
}

/*
 * On a device of its own: the calls work, and the cache keeps no region. Returns a bit for each
 * failure.
 */
static int registers(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	int wrong = 0;

	must(pd);
	for (int round = 0; round < 3; round++) {
		struct ibv_mr *mr = register_region(pd, memory + 100, PAGE, LOCAL_AND_REMOTE);

		wrong |= (!mr || mr->addr != memory + 100 || mr->length != PAGE) << 0;
		wrong |= (kernel_regions(context) != 1) << 1;
		wrong |= (!mr || deregister_region(mr) != 0) << 2;
		wrong |= (kernel_regions(context) != 0) << 3;
	}
	wrong |= (stats().hits != 0 || stats().idle != 0) << 4;
	wrong |= (ibv_flush_relaxed_mr(pd) != 0) << 5;
	wrong |= (ibv_dealloc_pd(pd) != 0 || ibv_close_device(context) != 0) << 6;
	return wrong;
}

static const struct {
	const char *name;
	int (*act)(void);
} acts[] = {
	{ "does nothing", does_nothing },
	{ "looks for userfaultfds", holds_no_watch },
	{ "flushes its parent's domain", flushes },
	{ "deregisters its parent's region", deregisters },
	{ "unmaps the memory", unmaps },
	{ "discards the memory by a system call", discards_by_system_call },
	{ "registers on a device of its own", registers },
};

/* Ends by exit, with all destructors, or by _exit, without. */
static void child_acts(size_t act, bool destructors)
{
	char name[100], *other = pages(COUNT);
	struct rdmamr_stats before;
	int regions, status;
	pid_t pid;

	snprintf(name, sizeof(name), "a child that %s%s", acts[act].name,
		 destructors ? " and calls exit" : "");
	control(&pair, name, memory, SIZE);
	live = register_by_cache(pair.pd, other, SIZE, LOCAL_AND_REMOTE, &before);
	must(live);
	settle();
	regions = kernel_regions(pair.context);
	before = stats();
	pid = start_child();
	if (!pid) {
		status = acts[act].act();
		if (destructors)
			exit(status);
		_exit(status);
	}
	is(status_of(pid), 0, "%s: ends well", name);
	is(kernel_regions(pair.context), regions, "%s: leaves the parent all its regions", name);
	ok(stats().idle == before.idle && stats().live == before.live, "%s: and its counts", name);
	still(&pair, name, memory, SIZE);
	ok(lands_in(&pair, live, other, SIZE), "%s: data lands by the region in use", name);
	is(deregister_region(live), 0, "%s: which the parent deregisters", name);
	must(munmap(other, SIZE) == 0);
}

/* The library sees the parent's changes while a child lives. */
static void parent_changes(void)
{
	pid_t pid;

	control(&pair, "beside a child", memory, SIZE);
	pid = start_child();
	if (!pid) {
		wait_for(to_child);
		_exit(0);
	}
	must(syscall(SYS_munmap, memory, SIZE) == 0);
	fresh_at(memory, SIZE);
	anew(&pair, "beside a child: unmapped by the parent", memory, SIZE);
	control(&pair, "beside a child, again", memory, SIZE);
	must(madvise(memory, SIZE, MADV_DONTNEED) == 0);
	anew(&pair, "beside a child: discarded by the parent", memory, SIZE);
	tell(to_child);
	is(status_of(pid), 0, "the child ends well");
}

static volatile int stop;

/*
 * A thread that registers all the time, misses as well as hits. Its pages are far from those of the
 * tests.
 */
static void *busy(void *own)
{
	for (int n = 0; !stop; n++) {
		struct ibv_mr *mr = register_region(pair.pd, own, PAGE, IBV_ACCESS_LOCAL_WRITE);

		must(mr && deregister_region(mr) == 0);
		if (n % 4 == 0)
			must(ibv_flush_relaxed_mr(pair.pd) == 0);
	}
	return NULL;
}

/* The child must not wait for locks that another thread holds at the fork. */
static void busy_parent(void)
{
	char *own = pages(1);
	pthread_t thread;
	int wrong = 0;

	must(pthread_create(&thread, NULL, busy, own) == 0);
	for (int n = 0; n < 20; n++) {
		pid_t pid = start_child();

		if (!pid) {
			int status = n % 5 == 0 ? registers() : unmaps();

			if (n % 2)
				exit(status);
			_exit(status);
		}
		wrong += status_of(pid) != 0;
	}
	stop = 1;
	must(pthread_join(thread, NULL) == 0 && munmap(own, PAGE) == 0);
	is(wrong, 0, "children of a parent that registers in another thread");
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	must(pipe(to_child) == 0 && pipe(to_parent) == 0);
	memory = pages(COUNT);
	for (int n = 0; n < 4; n++)
		writes_first(n & 1, n & 2);
	is(userfaultfds(NULL), 1, "the parent has its watch");
	for (size_t act = 0; act < sizeof(acts) / sizeof(acts[0]); act++) {
		child_acts(act, false);
		child_acts(act, true);
	}
	parent_changes();
	busy_parent();
	is((long long)stats().flushed_linger, 0, "no region ended by age");
	must(munmap(memory, SIZE) == 0);
	return relaxed_close(&pair);
}
