/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Children, new programs, signal handlers and a debugger, beside a cache with idle regions; with
 * data that moves. After a fork the device must use the parent's pages. The child has a copy of the
 * cache, of the watch and of the regions' objects, and may touch none of them.
 */
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include "../../lib/pair_rows.h"

enum { COUNT = 8, SIZE = COUNT * PAGE };

extern char **environ;

/* fork. */

/* Where the parent and its children wait for each other. */
static pthread_barrier_t *both;

static void meet(void) { pthread_barrier_wait(both); }

static int others_than(char c)
{
	int wrong = 0;

	for (int n = 0; n < SIZE; n++)
		wrong += memory[n] != c;
	return wrong;
}

enum { CHILD_FIRST = 1, IN_USE = 2 };

/* One side writes first, into every page: the region is idle at the fork, or in use. */
static void writes_first(void)
{
	bool in_use = row->value & IN_USE;
	struct ibv_mr *mr;
	pid_t pid;

	both = shared_barrier(2);
	control(&pair, "before", memory, SIZE);
	mr = in_use ? reg_with(memory, SIZE, LOCAL_AND_REMOTE) : NULL;
	memset(memory, 'a', SIZE);
	pid = must_fork();
	if (!pid) {
		int wrong = 0;

		if (row->value & CHILD_FIRST)
			memset(memory, 'a', SIZE);
		meet();
		meet();
		wrong = others_than('a');
		memset(memory, 'c', SIZE);
		meet();
		meet();
		_exit(wrong || others_than('c'));
	}
	for (int time = 0; time < 2; time++) {
		meet();
		if (!time && !(row->value & CHILD_FIRST))
			memset(memory, 'p', SIZE);
		if (in_use)
			ok(lands_in(&pair, mr, memory, SIZE), "data lands in the parent's page");
		else
			still(&pair, "beside the child", memory, SIZE);
		meet();
	}
	is(child_status(pid), 0, "the child sees its own memory only");
	if (in_use) {
		ok(lands_in(&pair, mr, memory, SIZE), "after the child, too");
		let_go(mr);
	}
	still(&pair, "after the child", memory, SIZE);
}

/* What a child does. Each returns 0 if it succeeded in the child. */

static struct ibv_mr *live;

static int unmaps(void) { return munmap(memory, SIZE) != 0; }
static int discards(void) { return syscall(SYS_madvise, memory, SIZE, MADV_DONTNEED) != 0; }

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

/* On a device of its own: the calls work, and the cache keeps no region. */
static int registers(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);

	must(pd);
	for (int round = 0; round < 3; round++) {
		struct ibv_mr *mr = register_region(pd, memory + 100, PAGE, LOCAL_AND_REMOTE);

		must(mr && mr->addr == memory + 100 && mr->length == PAGE);
		must(kernel_regions(context) == 1);
		must(deregister_region(mr) == 0);
		must(kernel_regions(context) == 0);
	}
	must(stats().hits == 0 && stats().idle == 0);
	must(ibv_flush_relaxed_mr(pd) == 0);
	must(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}

static int acts(void) { return ((int (*)(void))(uintptr_t)row->of)(); }

/* With all destructors. */
static int acts_and_exits(void) { exit(acts()); }

/* The cache ends regions of changed memory at its own pace. */
static void settle(void)
{
	uint64_t ended;

	do {
		ended = stats().dereg_kernel;
		usleep(500000);
	} while (stats().dereg_kernel != ended);
}

static void child_acts(void)
{
	char *other = pages(COUNT);
	int (*const ends[])(void) = { acts, acts_and_exits };
	struct rdmamr_stats before;
	int registered;

	for (int way = 0; way < 2; way++) {
		control(&pair, "before the child", memory, SIZE);
		live = by_cache(pair.pd, other, SIZE, LOCAL_AND_REMOTE);
		settle();
		registered = kernel_regions(pair.context);
		before = stats();
		is(in_forked(ends[way]), 0, "the child ends");
		is(kernel_regions(pair.context), registered, "the parent has all its regions");
		ok(stats().idle == before.idle && stats().live == before.live, "and its counts");
		still(&pair, "after the child", memory, SIZE);
		ok(lands_in(&pair, live, other, SIZE), "data lands by the region in use");
		let_go(live);
	}
	is(userfaultfds(NULL), 1, "the parent has its watch");
}

static volatile bool done;

/* Registers all the time, misses as well as hits. */
static void *is_busy(void *own)
{
	for (int n = 0; !done; n++) {
		let_go(reg_with(own, PAGE, IBV_ACCESS_LOCAL_WRITE));
		if (n % 4 == 0)
			must(ibv_flush_relaxed_mr(pair.pd) == 0);
	}
	return NULL;
}

static int unmaps_and_exits(void) { exit(unmaps()); }
static int registers_and_exits(void) { exit(registers()); }

/* The child must not wait for locks that another thread holds at the fork. */
static void busy_parent(void)
{
	int (*const children[])(void) = { unmaps, unmaps_and_exits, registers, registers_and_exits };
	pthread_t thread;
	int wrong = 0;

	control(&pair, "before", memory, PAGE);
	thread = must_start(is_busy, pages(1));
	for (int n = 0; n < 20; n++)
		wrong += in_forked(children[n % 4]) != 0;
	done = true;
	must_join(thread);
	is(wrong, 0, "20 children end");
}

/*
 * A child that a raw clone made has the parent's userfaultfd still open when the parent closes it:
 * memory registered with it would then stop every thread of the parent that unmaps it, until the
 * child ends. The children end on request, so a parent that waits for one never finishes.
 */

/* All calls that would wait if the memory were still watched, and no thread read the events. */
static void changes(char *at)
{
	must(syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) == 0);
	must(mmap(at + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + PAGE);
	must(mremap(at, SIZE, PAGE, 0) == at);
	must(munmap(at, SIZE) == 0);
}

static bool is_reused(struct ibv_pd *pd, char *at)
{
	let_go(by_cache(pd, at, SIZE, LOCAL_AND_REMOTE));
	return was_hit();
}

/* The parent closes its only device while the children live, and the next device is used as the first. */
static void device_closed(void)
{
	if (!uffd_features())
		skip_all("userfaultfd is refused here: no memory is watched");
	for (int again = 0; again < 2; again++) {
		struct ibv_context *context = open_device();
		struct ibv_pd *pd = ibv_alloc_pd(context);
		char *at[3] = { pages(COUNT), pages(COUNT), pages(COUNT) };
		pid_t children[2];

		must(pd);
		both = shared_barrier(3);
		for (int n = 0; n < 3; n++)
			ok(comes(is_reused(pd, at[n])), "device %d: a region is reused, so memory is watched", again);
		for (int n = 0; n < 2; n++) {
			/* The raw system call runs no handlers. */
			children[n] = n ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : must_fork();
			must(children[n] >= 0);
			if (!children[n]) {
				meet();
				_exit(0);
			}
		}
		changes(at[0]);
		is(ibv_flush_relaxed_mr(pd), 0, "flushed beside children");
		changes(at[1]);
		is(ibv_dealloc_pd(pd) | ibv_close_device(context), 0, "the device is closed beside children");
		changes(at[2]);
		meet();
		for (int n = 0; n < 2; n++)
			is(child_status(children[n]), 0, "child %d ends", n);
	}
}

/* exec. */

static char inherited[32];
static char *arguments[] = { (char *)(uintptr_t)"started", (char *)(uintptr_t)"started", inherited, NULL };

static int regions(struct ibv_context *context)
{
	static struct kernel_region list[MOST_REGIONS];
	int count = device_regions(context, list, MOST_REGIONS), own = 0;

	for (int n = 0; n < count; n++)
		own += list[n].pid == (uint32_t)getpid();
	return own;
}

/* A started program's view: 0 if it has inherited nothing. */
static int started(const char *expected)
{
	return (entries("/proc/self/fd") > atoi(expected)) << 0 | (regions(open_device()) != 0) << 1;
}

static int executes(void)
{
	execv("/proc/self/exe", arguments);
	return 127;
}

/* Becomes another program, with a region idle and one in use. */
static int is_replaced(void)
{
	relaxed_open(&pair);
	must(lands(&pair, memory, PAGE) && reg_with(memory + 2 * PAGE, PAGE, LOCAL_AND_REMOTE));
	must(stats().idle == 1 && regions(pair.context) > 2);
	return executes();
}

static void by_exec(void)
{
	snprintf(inherited, sizeof(inherited), "%d", entries("/proc/self/fd"));
	is(in_forked(is_replaced), 0, "nothing is inherited or registered");
}

enum { FORK, SPAWN, VFORK };

static void by_program(void)
{
	pid_t pid = 0;

	snprintf(inherited, sizeof(inherited), "%d", entries("/proc/self/fd"));
	relaxed_open(&pair);
	control(&pair, "before", memory, PAGE);
	if (row->value == SPAWN)
		must(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
	else
		pid = row->value == FORK ? must_fork() : vfork();
	if (!pid)
		_exit(executes());
	is(child_status(pid), 0, "no descriptor is inherited");
	still(&pair, "after it", memory, PAGE);
	relaxed_end(&pair);
}

/*
 * Where madvise may just have discarded pages, the cache keeps no region for a second: the event
 * comes before they go.
 */
static void control_later(const char *name, void *at)
{
	usleep(1200000);
	control(&pair, name, at, PAGE);
}

/* A process with another number changes its parent's memory. */
static void vfork_child_changes(void)
{
	pid_t pid;

	control(&pair, "before", memory, PAGE);
	pid = vfork();
	if (!pid) {
		bool good = row->value ? syscall(SYS_madvise, memory, PAGE, MADV_DONTNEED) == 0 :
			    munmap(memory, PAGE) == 0 && mmap(memory, PAGE, PROT_READ | PROT_WRITE,
							      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory;

		_exit(!good);
	}
	is(child_status(pid), 0, "the child changes the memory");
	anew(&pair, "after it", memory, PAGE);
	control_later("later", memory);
}

/*
 * Signal handlers. A handler enters no function that a handler may not enter, and where it registers,
 * the interrupted thread only hits, which allocates nothing.
 */

enum { SLOTS = 8, RUN = 3, AT_LEAST = 50 };
static volatile int handled, wrong;

/* SLOTS pages that both use, each between pages that neither uses; and one of the handler's own. */
static char *slot(int n) { return memory + n * 2 * PAGE; }

#define OWN slot(SLOTS)

static void register_at(char *at)
{
	struct ibv_mr *mr = register_region(pair.pd, at, PAGE, LOCAL_AND_REMOTE);

	wrong += !mr || mr->addr != at || deregister_region(mr) != 0;
}

enum { CHANGES, REGISTERS, BOTH };

static void handler(int number)
{
	int err = errno, n = handled++;

	(void)number;
	if (row->value == CHANGES)
		renew((enum renewal)(n % BY_MREMAP), slot(n / BY_MREMAP % SLOTS), PAGE);
	else if (row->value == REGISTERS)
		register_at(n % 2 ? slot(0) : OWN); /* in turn one that the interrupted thread uses too */
	else {
		renew((enum renewal)(n % 2), OWN, PAGE);
		register_at(OWN);
	}
	errno = err;
}

static void interrupted(void)
{
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { 0 };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	int slots = row->value == CHANGES ? SLOTS : 4, failed = 0, stale = 0;
	double until = seconds_now() + RUN;
	sigset_t timer;

	sigemptyset(&timer);
	sigaddset(&timer, SIGPROF);
	for (int n = 0; n <= SLOTS; n++)
		must(lands(&pair, slot(n), PAGE));
	must(sigaction(SIGPROF, &action, NULL) == 0 && setitimer(ITIMER_PROF, &often, NULL) == 0);
	for (int rounds = 0; seconds_now() < until || handled <= AT_LEAST; rounds++) {
		char *at = slot(rounds % slots);
		struct ibv_mr *mr = register_region(pair.pd, at, PAGE, LOCAL_AND_REMOTE), *again;

		again = register_region(pair.pd, at, PAGE, LOCAL_AND_REMOTE);
		failed += !mr || !again || mr == again;
		failed += mr && deregister_region(mr) != 0;
		failed += again && deregister_region(again) != 0;
		if (rounds % 100)
			continue;
		/* If the handler changed memory while data moves, that would be the program's own mistake. */
		must(sigprocmask(SIG_BLOCK, &timer, NULL) == 0);
		stale += !lands(&pair, at, PAGE);
		must(sigprocmask(SIG_UNBLOCK, &timer, NULL) == 0);
	}
	must(setitimer(ITIMER_PROF, &never, NULL) == 0 && signal(SIGPROF, SIG_IGN) != SIG_ERR);
	ok(handled > AT_LEAST, "the handler ran %d times", handled);
	is(wrong, 0, "all its registrations succeeded");
	is(failed, 0, "all calls of the interrupted thread did");
	for (int n = 0; n <= SLOTS; n++)
		stale += !lands(&pair, slot(n), PAGE);
	is(stale, 0, "data always landed");
	control_later("after it", slot(0));
}

/*
 * A debugger holds the library's threads for a while. Until they run, an unmap may take its time, but
 * no registration meanwhile or afterwards is stale.
 */

enum { MOST = 64 };

static pid_t library[MOST]; /* its threads */
static int count;

static pid_t hold(void)
{
	pid_t debugger;

	both = shared_barrier(2);
	debugger = must_fork();
	if (!debugger) {
		bool good = true;

		meet();
		for (int n = 0; good && n < count; n++)
			good = ptrace(PTRACE_SEIZE, library[n], NULL, NULL) == 0 &&
			       ptrace(PTRACE_INTERRUPT, library[n], NULL, NULL) == 0 &&
			       waitpid(library[n], NULL, __WALL) == library[n];
		meet();
		usleep(300000);
		_exit(good ? 0 : 1); /* its end lets them go */
	}
	prctl(PR_SET_PTRACER, debugger);
	meet();
	meet();
	return debugger;
}

/* Each change waits for the reader. race.c has a registration before the reader has read. */
static void starved(void)
{
	char *spot = memory + PAGE, *elsewhere = pages(1);

	relaxed_open(&pair);
	control(&pair, "before", spot, PAGE);
	must(lands(&pair, elsewhere, PAGE));
	for (int round = 0; round < 3; round++) {
		pid_t debugger;

		/* A reader may just have its successor. */
		ok(comes((count = threads_named("rdmamr-", library, MOST)) == 2), "the library has two threads");
		debugger = hold();

		switch (round) {
		case 0: raw_remap(spot, PAGE); break;
		case 1: must(syscall(SYS_madvise, spot, PAGE, MADV_DONTNEED) == 0); break;
		default: remap(spot, PAGE);
		}
		ok(lands(&pair, spot, PAGE) && lands(&pair, elsewhere, PAGE), "data lands in the current page");
		must(child_status(debugger) == 0);
		ok(lands(&pair, spot, PAGE), "and afterwards");
		control_later("running again", spot);
	}
	control(&pair, "at the end", elsewhere, PAGE);
	relaxed_end(&pair);
}

#define OPENS ROOT | NO_PAIR

static const struct row rows[] = {
	{ "the parent writes first after a fork, the region is idle", writes_first, 0 },
	{ "the child writes first, the region is idle", writes_first, CHILD_FIRST },
	{ "the parent writes first, the region is in use", writes_first, IN_USE },
	{ "the child writes first, the region is in use", writes_first, CHILD_FIRST | IN_USE },
	{ "a child flushes its parent's domain", child_acts, .of = flushes },
	{ "a child deregisters its parent's region", child_acts, .of = deregisters },
	{ "a child unmaps the memory", child_acts, .of = unmaps },
	{ "a child discards the memory by a system call", child_acts, .of = discards },
	{ "a child registers on a device of its own", child_acts, .of = registers },
	{ "children of a parent that registers in another thread", busy_parent },
	{ "the device is closed beside children", device_closed, .flags = NO_PAIR },
	{ "fork and exec", by_program, FORK, .flags = OPENS },
	{ "posix_spawn", by_program, SPAWN, .flags = OPENS },
	{ "vfork and exec", by_program, VFORK, .flags = OPENS },
	{ "exec with regions idle and in use", by_exec, .flags = OPENS },
	{ "a child of vfork unmaps and maps", vfork_child_changes, false },
	{ "a child of vfork discards by a raw system call", vfork_child_changes, true },
	{ "a handler changes the address space", interrupted, CHANGES },
	{ "a handler registers", interrupted, REGISTERS },
	{ "a handler changes the address space and registers", interrupted, BOTH },
	{ "a debugger holds the library's threads", starved, .flags = NO_PAIR },
};

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "started"))
		return started(argv[2]);
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_pair);
}
