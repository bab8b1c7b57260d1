/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A child that a raw clone made has the parent's userfaultfd still open when the parent closes it:
 * memory registered with it would then stop every thread of the parent that unmaps it, until the
 * child ends. Here the children end on request, so a parent that waits for one never finishes. The
 * parent closes its device; and in another row, without LD_PRELOAD, loads the library, uses it, and
 * unloads it: the program's memory calls then bypass the library, and the cache keeps no region.
 */
#include <dlfcn.h>
#include <sched.h>
#include "../../lib/pair_rows.h"

enum { COUNT = 8, SIZE = COUNT * PAGE };

static struct {
	void *handle;
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int);
	int (*dereg)(struct ibv_mr *);
	int (*flush)(struct ibv_pd *);
	int (*get_stats)(struct rdmamr_stats *, size_t);
} library;

static void load(const char *path)
{
	library.handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : RTLD_DEFAULT;
	must(library.handle || !path);
	*(void **)&library.reg = dlsym(library.handle, "ibv_reg_mr_relaxed");
	*(void **)&library.dereg = dlsym(library.handle, "ibv_dereg_mr_relaxed");
	*(void **)&library.flush = dlsym(library.handle, "ibv_flush_relaxed_mr");
	*(void **)&library.get_stats = dlsym(library.handle, "rdmamr_get_stats");
	must(library.reg && library.dereg && library.flush && library.get_stats);
}

/* One child by fork and one by the raw system call, which runs no handlers. */
static int gate[2];
static pid_t children[2];

static void start_children(void)
{
	must(pipe(gate) == 0);
	fflush(stdout);
	for (int n = 0; n < 2; n++) {
		char byte;

		children[n] = n ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
		must(children[n] >= 0);
		if (children[n])
			continue;
		close(gate[1]);
		_exit(read(gate[0], &byte, 1) != 0);
	}
}

static void end_children(void)
{
	for (int n = 0; n < 2; n++)
		is(waitpid(children[n], NULL, WNOHANG), 0, "child %d was there all the time", n);
	must(close(gate[1]) == 0);
	for (int n = 0; n < 2; n++)
		is(child_status(children[n]), 0, "child %d ends", n);
	must(close(gate[0]) == 0);
}

/* All calls that would wait if the memory were still watched, and no thread read the events. */
static void change(char *at)
{
	must(syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) == 0);
	must(mmap(at + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + PAGE);
	must(mremap(at, SIZE, PAGE, 0) == at);
	must(munmap(at, SIZE) == 0);
}

/* Whether a region is reused within so many rounds. */
static bool is_reused(struct ibv_pd *pd, char *at, int rounds)
{
	bool hit = false;

	/* The cache keeps no region for a second where pages were just dropped. */
	for (int round = 0; round < rounds && !hit; round++) {
		struct rdmamr_stats before, after;
		struct ibv_mr *mr;

		must(library.get_stats(&before, sizeof(before)) == 0);
		mr = library.reg(pd, at, SIZE, LOCAL_AND_REMOTE);
		must(mr && library.dereg(mr) == 0 && library.get_stats(&after, sizeof(after)) == 0);
		hit = reused(before, after);
		usleep(round * 50000);
	}
	return hit;
}

/* The parent closes its only device while the children live, and the next device is used as the first. */
static void device_closed(void)
{
	load(NULL);
	if (!uffd_features())
		skip_all("userfaultfd is refused here: no memory is watched");
	for (int again = 0; again < 2; again++) {
		struct ibv_context *context = open_device();
		struct ibv_pd *pd = ibv_alloc_pd(context);
		char *at[3] = { pages(COUNT), pages(COUNT), pages(COUNT) };

		must(pd);
		for (int n = 0; n < 3; n++)
			ok(is_reused(pd, at[n], 10), "device %d: a region is reused, so memory is watched", again);
		start_children();
		change(at[0]);
		is(library.flush(pd), 0, "flushed beside children");
		change(at[1]);
		is(ibv_dealloc_pd(pd) | ibv_close_device(context), 0, "the device is closed beside children");
		change(at[2]);
		end_children();
	}
}

/* Loaded, used and unloaded, if it can be; twice, the second time with the state that the first has left. */
static void unloaded(void)
{
	const char *path = getenv("CHECK_UNLOADED");
	char *at[2] = { pages(COUNT), pages(COUNT) };
	struct ibv_mr *mr;

	must(path && !ibv_reg_mr_relaxed);
	pair_open(&pair);
	far_open(&pair);
	for (int again = 0; again < 2; again++) {
		load(path);
		ok(!is_reused(pair.pd, at[1], 3), "loaded: no region is reused");
		if (!again) {
			ok(!is_reused(pair.pd, at[0], 3), "of other memory, too");
			start_children();
		}
		is(library.flush(pair.pd), 0, "flushed");
		ok(!is_reused(pair.pd, at[1], 3), "after a flush, too");
		must(dlclose(library.handle) == 0);
		if (!again)
			change(at[0]);
		must(raw_munmap(at[1], SIZE) == 0);
		fresh_at(at[1], SIZE);
	}
	load(path);
	mr = library.reg(pair.pd, at[1], SIZE, LOCAL_AND_REMOTE);
	must(mr);
	ok(lands_in(&pair, mr, at[1], SIZE), "memory replaced after dlclose: data lands in the current page");
	is(library.dereg(mr) | library.flush(pair.pd), 0, "deregistered and flushed");
	end_children();
	change(at[1]);
	must(ibv_dereg_mr(far.mr) == 0);
	pair_close(&pair);
}

static const struct row rows[] = {
	{ "the device is closed", device_closed, .flags = NO_PAIR },
	{ "the library is unloaded", unloaded, .flags = NO_PAIR, .settings = "LD_PRELOAD" },
};

int main(int argc, char **argv)
{
	Dl_info about;

	(void)argc;
	if (!getenv("CHECK_UNLOADED")) {
		must(dladdr(dlsym(RTLD_DEFAULT, "ibv_reg_mr_relaxed"), &about));
		must(setenv("CHECK_UNLOADED", about.dli_fname, 1) == 0);
	}
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_pair);
}
