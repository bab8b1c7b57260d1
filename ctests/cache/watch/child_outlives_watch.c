/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A child that a raw clone made has the parent's userfaultfd still open when the parent closes it:
 * memory registered with it would then stop every thread of the parent that unmaps it, until the
 * child ends. Here the child ends on request, so a parent that waits for it never finishes, and its
 * alarm ends it. The parent closes its device; and in a second run, without LD_PRELOAD, loads the
 * library, uses it, and unloads it.
 */
#include "../../lib/reuse.h"
#include <dlfcn.h>
#include <sched.h>
#include <sys/wait.h>

enum { COUNT = 8, SIZE = COUNT * PAGE };

static struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int);
static int (*dereg)(struct ibv_mr *);
static int (*flush)(struct ibv_pd *);
static int (*get_stats)(struct rdmamr_stats *, size_t);

static int gate[2];
static pid_t children[2];

/*
 * One child by fork and one by the raw system call, which runs no handlers. They wait for the gate
 * to close.
 */
static void start_children(void)
{
	for (int n = 0; n < 2; n++) {
		char byte;

		fflush(stdout);
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
	int running = 0, good = 0, status;

	for (int n = 0; n < 2; n++)
		running += waitpid(children[n], &status, WNOHANG) == 0;
	is(running, 2, "all the time, the children were there");
	must(close(gate[1]) == 0);
	for (int n = 0; n < 2; n++)
		good += waitpid(children[n], &status, 0) == children[n] && status == 0;
	is(good, 2, "and end well");
	must(close(gate[0]) == 0);
}

/* All calls that would wait if the memory were still watched, and no thread read the events. */
static void change(char *memory, const char *when)
{
	alarm(DEADLOCK);
	must(syscall(SYS_madvise, memory, PAGE, MADV_DONTNEED) == 0);
	must(mmap(memory + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		  0) ==
	     memory + PAGE);
	must(mremap(memory, SIZE, PAGE, 0) == memory);
	must(munmap(memory, SIZE) == 0);
	alarm(0);
	ok(1, "%s: memory that was watched is unmapped without a wait", when);
}

static struct rdmamr_stats now(void)
{
	struct rdmamr_stats taken;

	must(get_stats(&taken, sizeof(taken)) == 0);
	return taken;
}

/* Leaves idle regions, and watched memory. */
static void use(struct ibv_pd *pd, char *memory, const char *when)
{
	bool hit = false;

	/* The cache keeps no region for a second where pages were just dropped. */
	for (int round = 0; round < 10 && !hit; round++) {
		struct rdmamr_stats before = now();
		struct ibv_mr *mr = reg(pd, memory, SIZE, LOCAL_AND_REMOTE);

		must(mr && dereg(mr) == 0);
		hit = reused(before, now());
		if (round)
			usleep(round * 50000);
	}
	ok(hit, "%s: a region is reused, so memory is watched", when);
}

/* The program's memory calls bypass a library that dlopen loaded: the cache keeps no region. */
static void use_once(struct ibv_pd *pd, char *memory, const char *when)
{
	bool hit = false;

	for (int round = 0; round < 3; round++) {
		struct rdmamr_stats before = now();
		struct ibv_mr *mr = reg(pd, memory, SIZE, LOCAL_AND_REMOTE);

		must(mr && dereg(mr) == 0);
		hit |= reused(before, now());
	}
	ok(!hit, "%s: no region is reused", when);
}

/* The parent closes its only device while the children live. */
static void device_closed(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory[3] = { pages(COUNT), pages(COUNT), pages(COUNT) };

	must(pd && pipe(gate) == 0);
	for (int n = 0; n < 3; n++)
		use(pd, memory[n], "before the device is closed");
	start_children();
	change(memory[0], "beside children");
	is(flush(pd), 0, "flushed");
	change(memory[1], "after a flush");
	is(ibv_dealloc_pd(pd), 0, "the domain is deallocated");
	is(ibv_close_device(context), 0, "and the device");
	change(memory[2], "after the device was closed");
	end_children();
}

/* A child outlives the device, and the next device is used as the first. */
static void device_again(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = pages(COUNT);

	must(pd && pipe(gate) == 0);
	start_children();
	use(pd, memory, "a device after that");
	change(memory, "a device after that");
	end_children();
	is(ibv_dealloc_pd(pd), 0, "its domain is deallocated");
	is(ibv_close_device(context), 0, "and it, too");
}

static void *load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		printf("# %s\n", dlerror());
	must(library);
	reg = (struct ibv_mr *(*)(struct ibv_pd *, void *, size_t, int))dlsym(library, "ibv_reg_mr_relaxed");
	dereg = (int (*)(struct ibv_mr *))dlsym(library, "ibv_dereg_mr_relaxed");
	flush = (int (*)(struct ibv_pd *))dlsym(library, "ibv_flush_relaxed_mr");
	get_stats = (int (*)(struct rdmamr_stats *, size_t))dlsym(library, "rdmamr_get_stats");
	must(reg && dereg && flush && get_stats);
	return library;
}

/*
 * Loaded, used and unloaded, if it can be; twice, the second time with the state that the first has
 * left.
 */
static void unloaded(const char *path)
{
	struct pair pair;
	struct ibv_mr *mr;
	char *memory[2] = { pages(COUNT), pages(COUNT) };

	must(pipe(gate) == 0);
	pair_open(&pair);
	far_open(&pair);
	for (int round = 0; round < 2; round++) {
		void *library = load(path);

		use_once(pair.pd, memory[1], round ? "loaded again" : "loaded");
		if (!round) {
			use_once(pair.pd, memory[0], "loaded");
			start_children();
		}
		is(flush(pair.pd), 0, "flushed");
		use_once(pair.pd, memory[1], "after a flush");
		must(dlclose(library) == 0);
		library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
		printf("# after dlclose the library is %s\n", library ? "still loaded" : "gone");
		if (library)
			dlclose(library);
		if (!round)
			change(memory[0], "after dlclose");
		must(syscall(SYS_munmap, memory[1], SIZE) == 0);
		fresh_at(memory[1], SIZE);
	}
	load(path);
	mr = reg(pair.pd, memory[1], SIZE, LOCAL_AND_REMOTE);
	must(mr);
	ok(lands_in(&pair, mr, memory[1], SIZE),
	   "memory replaced after dlclose: data lands in the current page");
	is(dereg(mr), 0, "deregistered");
	is(flush(pair.pd), 0, "flushed");
	end_children();
	change(memory[1], "in the end");
	must(ibv_dereg_mr(far.mr) == 0 && munmap(far.out, 2 * WINDOW) == 0);
	pair_close(&pair);
}

int main(int argc, char **argv)
{
	const char *path = getenv("UNLOADED");
	Dl_info library;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (getenv("TAP_COUNT"))
		tap_count = atoi(getenv("TAP_COUNT"));
	if (!uffd_features())
		skip_all("userfaultfd is refused here: no memory is watched");
	if (path) {
		must(!ibv_reg_mr_relaxed);
		unloaded(path);
		return done_testing();
	}
	must(ibv_reg_mr_relaxed && getenv("LD_PRELOAD"));
	reg = ibv_reg_mr_relaxed;
	dereg = ibv_dereg_mr_relaxed;
	flush = ibv_flush_relaxed_mr;
	get_stats = rdmamr_get_stats;
	device_closed();
	device_again();
	must(dladdr(dlsym(RTLD_DEFAULT, "ibv_reg_mr_relaxed"), &library));
	must(unsetenv("LD_PRELOAD") == 0);
	go_on_with(argv, "UNLOADED", library.dli_fname);
}
