/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Beside a cache: tasks that share the memory and are processes of their own (clone with CLONE_VM,
 * without CLONE_THREAD), threads that a garbage collector stops inside the library, children of
 * fork.
 */
#include <dlfcn.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/stub_rows.h"

enum { COUNT = 8, LENGTH = COUNT * PAGE, TIMES = 3, RIGHT = 42 };
enum made { BY_CLONE, PAST_THE_LIBRARY };

static pid_t start_task(enum made how, int (*function)(void *), void *argument, int flags)
{
	enum { STACK = 256 << 10 };
	int (*make)(int (*)(void *), void *, int, void *, ...) = clone;
	char *stack = pages(STACK / PAGE);
	int task;

	if (how == PAST_THE_LIBRARY)
		*(void **)&make = dlsym(dlopen("libc.so.6", RTLD_NOW), "clone");
	task = make(function, stack + STACK, CLONE_VM | SIGCHLD | flags, argument, NULL, NULL, NULL);
	must(task > 0);
	return task;
}

static int returns(void *unused)
{
	(void)unused;
	return 0;
}

static void makes_task(void)
{
	is(child_status(start_task(BY_CLONE, returns, NULL, 0)), 0, "a task ends");
	none_is_left();
}

static void makes_task_first(void)
{
	makes_task();
	served(pages(1), PLAIN, "after it");
	none_is_left();
}

/* A forked child shares its memory with no other process, whatever tasks its parent has made. */
static int reuses(void) { return hits(pages(1), 6) ? RIGHT : 0; }

static void child_reuses(void)
{
	makes_task();
	is(in_forked(reuses), RIGHT, "a child reuses regions");
}

/*
 * A task that is killed in a raw system call, which waits for the library's reader: the kernel
 * drops the event that nobody has read.
 */

enum change { UNMAPS, REPLACES };

static char *memory;

__attribute__((noreturn)) static int changes(void *unused)
{
	(void)unused;
	if (row->value == UNMAPS)
		syscall(SYS_munmap, memory, PAGE);
	else
		syscall(SYS_mmap, memory, PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	for (;;)
		syscall(SYS_pause);
}

static bool is_changed(void)
{
	unsigned char there;

	return syscall(SYS_mincore, memory, PAGE, &there) != 0 ||
		(row->value == REPLACES && memory[0] == 0);
}

static void killed_in_its_call(void)
{
	pid_t task;

	memory = idle();
	memory[0] = 1;
	hold_reader();
	task = start_task(BY_CLONE, changes, NULL, CLONE_FILES);
	must(comes(is_changed()) && kill(task, SIGKILL) == 0 &&
	     child_status(task) == 128 + SIGKILL);
	release_reader();
	must(row->value == REPLACES || raw_map_at(memory, PAGE));
	served(memory, PLAIN, "after it was killed");
}

/* A task that outlives the process that registered, and so the library's threads. */

enum { BUFFERS = 8, BUFFER = 4 << 20 };

static struct {
	atomic_int task, goes;
} *shared;
static char *buffers[BUFFERS], *taken;

static int goes_on(void *in_use)
{
	struct ibv_mr *mr = in_use;
	char *used = mr->addr;

	while (!shared->goes)
		syscall(SYS_sched_yield);
	must(munmap(buffers[0], BUFFER) == 0);
	must(raw_munmap(buffers[1], BUFFER) == 0);
	must(madvise(buffers[2], BUFFER, MADV_DONTNEED) == 0);
	must(mremap(buffers[3], BUFFER, 2 * BUFFER, MREMAP_MAYMOVE) != MAP_FAILED);
	for (int n = 4; n < BUFFERS; n++)
		must(munmap(buffers[n], BUFFER) == 0);
	free(taken);
	dereg(mr);
	must(raw_munmap(used, BUFFER) == 0);
	used = pages(BUFFER / PAGE);
	mr = reg(used, BUFFER);
	must(stub_lands(mr));
	dereg(mr);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0 && munmap(used, BUFFER) == 0);
	syscall(SYS_exit_group, RIGHT);
	return 0;
}

static int registers_and_ends(void)
{
	must(mallopt(M_MMAP_THRESHOLD, 1 << 20));
	for (int n = 0; n < TIMES * BUFFERS; n++) {
		if (n < BUFFERS)
			buffers[n] = pages(BUFFER / PAGE);
		dereg(reg(buffers[n % BUFFERS], BUFFER));
	}
	taken = malloc(BUFFER);
	must(taken);
	memset(taken, 1, BUFFER);
	dereg(reg(taken, BUFFER));
	shared->task = start_task(BY_CLONE, goes_on, reg(pages(BUFFER / PAGE), BUFFER), CLONE_PARENT | (int)row->value);
	return 0;
}

static void outlives(void)
{
	pid_t ended = 0;
	int status = -1;

	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(shared != MAP_FAILED && in_forked(registers_and_ends) == 0);
	shared->goes = true;
	ok(comes(ended || (ended = waitpid(shared->task, &status, WNOHANG)) != 0), "the task ends");
	ok(ended == shared->task && WIFEXITED(status) && WEXITSTATUS(status) == RIGHT, "its calls have succeeded");
}

/*
 * A task that is killed inside an interposed munmap, while it holds the cache's lock. A task of the C library's
 * clone never takes the lock: the cache has given up before. One of a clone that bypasses the library does.
 */

static _Atomic pid_t task;

static void dies(long number, const long *argument)
{
	if (stub_syscall(SYS_gettid) == task && number == SYS_ioctl && argument[1] == (long)UFFDIO_UNREGISTER)
		stub_syscall(SYS_tkill, task, SIGKILL);
}

static int unmaps(void *unused)
{
	(void)unused;
	task = (pid_t)syscall(SYS_gettid);
	munmap(memory, LENGTH);
	/* On a busy machine another thread may have had the lock, and the event tells of the change. */
	if (row->value != BY_CLONE)
		stub_syscall(SYS_tkill, task, SIGKILL);
	for (;;)
		syscall(SYS_pause);
	return 0;
}

static char *idle_range(void)
{
	char *range = pages(COUNT);

	for (int time = 0; time < TIMES; time++)
		dereg(reg(range, LENGTH));
	return range;
}

static int ends_well(void) { return RIGHT; }

static void *uses_everything(void *in_use)
{
	char *range = idle_range();
	struct ibv_mr *mr;

	for (int time = 0; time < 100; time++) {
		range[0] = 1;
		mr = reg(range, LENGTH);
		ok(stub_lands(mr), "data lands in the current page");
		dereg(mr);
		must(munmap(range, LENGTH) == 0);
		fresh_at(range, LENGTH);
	}
	mr = ibv_reg_mr(stub_pd(), pages(COUNT), LENGTH, LOCAL_AND_REMOTE);
	must(mr && stub_lands(mr) && ibv_dereg_mr(mr) == 0);
	dereg(in_use);
	ok(ibv_dereg_mr_relaxed(in_use) != 0, "a second deregistration is refused");
	is(in_forked(ends_well), RIGHT, "a child ends");
	ibv_flush_relaxed_mr(stub_pd());
	return NULL;
}

static void killed_with_the_lock(void)
{
	struct ibv_mr *mr;
	pid_t made;

	memory = idle_range();
	idle_range();
	mr = reg(pages(COUNT), LENGTH);
	stub_before = dies;
	made = start_task((enum made)row->value, unmaps, NULL, CLONE_FILES);
	if (row->value == BY_CLONE) {
		/* It does not die by itself: no memory is watched. */
		must(comes(task != 0));
		usleep(100000);
		must(kill(made, SIGKILL) == 0);
	}
	must(child_status(made) == 128 + SIGKILL);
	stub_before = NULL;
	/* Another thread: the task had the thread-local storage of this one. */
	in_thread(uses_everything, mr);
	/* A lock that is never free keeps what is idle (docs/limits.md). */
	if (row->value == BY_CLONE)
		none_is_left();
}

/* A garbage collector stops a thread. */

enum place { IN_THE_START, WITH_THE_LOCK, IN_A_REGISTRATION, IN_A_DEREGISTRATION };

static _Atomic pid_t mutator;
static atomic_bool armed, done;
static sem_t stopped, go;

static void stop(int number)
{
	int before = errno;

	(void)number;
	if (stub_syscall(SYS_gettid) != mutator)
		return;
	armed = false;
	stub_signals[STUB_REGISTER] = stub_signals[STUB_DEREGISTER] = 0;
	sem_post(&stopped);
	while (sem_wait(&go) != 0)
		;
	errno = before;
}

/* Before each system call of the library: raises the signal at the right one. */
static void interrupts(long number, const long *argument)
{
	bool there = row->value == IN_THE_START ? number == SYS_userfaultfd :
		     row->value == WITH_THE_LOCK && number == SYS_ioctl && argument[1] == (long)UFFDIO_UNREGISTER;

	if (armed && there && stub_syscall(SYS_gettid) == mutator)
		stub_syscall(SYS_tkill, mutator, SIGUSR1);
}

static void *mutates(void *unused)
{
	char *range = pages(COUNT);

	mutator = (pid_t)syscall(SYS_gettid);
	armed = true;
	if (row->value == IN_A_REGISTRATION)
		stub_signals[STUB_REGISTER] = SIGUSR1;
	if (row->value == IN_A_DEREGISTRATION)
		stub_signals[STUB_DEREGISTER] = SIGUSR1;
	do {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), range, LENGTH, LOCAL_AND_REMOTE);

		must(mr && stub_lands(mr) && ibv_dereg_mr_relaxed(mr) == 0);
		must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	} while (!done);
	return unused;
}

static void collects(char *range, char *other)
{
	for (int time = 0; time < TIMES; time++) {
		for (int plain = 0; plain < 2; plain++) {
			struct ibv_mr *mr = plain ? ibv_reg_mr(stub_pd(), range, LENGTH, LOCAL_AND_REMOTE) :
						    reg(range, LENGTH);

			ok(mr && stub_lands(mr), "data lands while the thread is stopped");
			must((plain ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr)) == 0);
		}
		must(munmap(range, LENGTH) == 0);
		fresh_at(range, LENGTH);
	}
	dereg(reg(other, LENGTH));
	is(in_forked(ends_well), RIGHT, "a child ends");
	ibv_flush_relaxed_mr(stub_pd());
}

static void stops_threads(int signal)
{
	struct sigaction action = { .sa_handler = stop, .sa_flags = SA_RESTART };

	must(sem_init(&stopped, 0, 0) == 0 && sem_init(&go, 0, 0) == 0 && sigaction(signal, &action, NULL) == 0);
}

static void collector(void)
{
	char *range = pages(COUNT), *other = pages(COUNT);
	pthread_t thread;

	stops_threads(SIGUSR1);
	for (int time = 0; row->value != IN_THE_START && time < TIMES; time++) {
		dereg(reg(range, LENGTH));
		dereg(reg(other, LENGTH));
	}
	stub_before = interrupts;
	thread = must_start(mutates, NULL);
	must(sem_wait(&stopped) == 0);
	collects(range, other);
	done = true;
	must(sem_post(&go) == 0);
	must_join(thread);
	stub_before = NULL;
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	none_is_left();
}

/*
 * fork(2) copies pinned pages for the child. Idle regions end first, so a fork shares the memory as
 * without the cache. The stand-in's counts in the child are those of the moment of the fork.
 */

enum { REGIONS = 16, BYTES = 2 << 20 }; /* of few bytes they may stay */

static int left(void) { return (int)in_device(); }

/* More than once, since a registration is plain while another thread has the cache's lock. */
static void leave_all_idle(void)
{
	for (int round = 0; round < 10 && left() < REGIONS; round++)
		for (long n = 0; n < REGIONS; n++)
			dereg(reg(memory + n * BYTES, BYTES));
}

static void fork_beside_idle(void)
{
	struct ibv_mr *mr;

	memory = pages(REGIONS * BYTES / PAGE);
	leave_all_idle();
	mr = reg(memory, BYTES);
	is(left(), REGIONS, "one is in use, and the others are idle");
	is(in_forked(left), 1, "the one in use is still registered when the child begins");
	ok(stub_lands(mr), "its data lands in the parent");
	dereg(mr);
	leave_all_idle();
	is(left(), REGIONS, "all are idle");
	is(in_forked(left), 0, "until the next fork");
	served(memory, FRESH, "after it");
}

/*
 * Another thread is in mprotect, which userfaultfd does not report: a cache that starts meanwhile
 * keeps no region. In a forked child that call never ends, since its thread does not exist there. A
 * filter of system calls stops the thread in the kernel's call.
 */

enum { STAYS = 7 * PAGE };

static void *protects(void *at)
{
	mutator = (pid_t)syscall(SYS_gettid);
	/* The result is the handler's, since the filter's signal takes the place of the call. */
	mprotect(at, STAYS, PROT_READ);
	return NULL;
}

static void forked_during_call(void)
{
	pthread_t thread;

	if (in_forked(reuses) != RIGHT)
		skip_all("userfaultfd is refused here");
	stops_threads(SIGSYS);
	if (filter_calls(SYS_mprotect, 1, STAYS, SECCOMP_RET_TRAP, 0))
		skip_all("this process can have no filter of system calls");
	thread = must_start(protects, pages(STAYS / PAGE));
	while (sem_wait(&stopped))
		;
	is(in_forked(reuses), RIGHT, "a child reuses regions");
	is(hits(pages(1), 2), 0, "its parent reuses none during the call");
	sem_post(&go);
	must_join(thread);
	is(hits(pages(1), 2), 1, "it reuses regions after the call");
}

/*
 * A fork handler of the program makes the first registrations. Before glibc 2.36 a thread that calls
 * pthread_atfork in a fork handler waits for itself, so the library must not.
 */

static bool forking;
static int handlers, handlers_in_fork, hits_in_fork;

typedef int registering(void (*)(void), void (*)(void), void (*)(void), void *);
registering __register_atfork;

/* glibc's pthread_atfork calls this function. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library)
{
	registering *glibcs = (registering *)dlsym(RTLD_NEXT, "__register_atfork");

	handlers++;
	handlers_in_fork += forking;
	return glibcs(prepare, parent, child, library);
}

static void before_fork(void)
{
	forking = true;
	hits_in_fork += hits(memory, 2);
}

static void after_fork(void) { forking = false; }
static int has_watch(void) { return userfaultfds(NULL); }

static void started_in_fork_handler(void)
{
	memory = pages(1);
	ok(handlers > 0, "the library registers its fork handlers when it is loaded");
	must(pthread_atfork(before_fork, after_fork, after_fork) == 0);
	is(in_forked(has_watch), 0, "the child has no userfaultfd of its parent's cache");
	is(hits_in_fork, 1, "the second registration in the handler is a hit");
	is(handlers_in_fork, 0, "no fork handler is registered in it");
}

#define COLLECTED .settings = "RDMAMR_CACHE=all", .times = 3

static const struct row rows[] = {
	{ "a task is made after the cache started: nothing is reused", makes_task, .then = PLAIN, .flags = PLAIN_CALLS },
	{ "a task is made before the cache started: nothing is reused", makes_task_first, .flags = PLAIN_CALLS },
	{ "a child of fork reuses regions, though its parent has made a task", child_reuses, .flags = PLAIN_CALLS | NO_PINS },
	{ "a task is killed while it unmaps registered memory", killed_in_its_call, UNMAPS, .flags = PLAIN_CALLS },
	{ "a task is killed while it replaces registered memory", killed_in_its_call, REPLACES, .flags = PLAIN_CALLS },
	{ "a task outlives the registering process, with its descriptors", outlives, CLONE_FILES },
	{ "a task outlives the registering process, with descriptors of its own", outlives, 0 },
	{ "a task outlives the registering process, with its signal handlers", outlives, CLONE_FILES | CLONE_SIGHAND },
	{ "a task of the C library's clone is killed in the library", killed_with_the_lock, BY_CLONE },
	{ "a task of a clone that bypasses the library is killed with the cache's lock", killed_with_the_lock, PAST_THE_LIBRARY },
	{ "a collector has stopped a thread while it starts the cache", collector, IN_THE_START, COLLECTED },
	{ "a collector has stopped a thread while it holds the cache's lock", collector, WITH_THE_LOCK, COLLECTED },
	{ "a collector has stopped a thread in a registration", collector, IN_A_REGISTRATION, COLLECTED },
	{ "a collector has stopped a thread in a deregistration", collector, IN_A_DEREGISTRATION, COLLECTED },
	{ "fork beside idle regions", fork_beside_idle },
	{ "fork during a memory call of another thread", forked_during_call },
	{ "a fork handler makes the first registrations", started_in_fork_handler, .flags = NO_PINS, .settings = "RDMAMR_CACHE_LINGER" },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
