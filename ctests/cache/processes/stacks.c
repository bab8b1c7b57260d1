/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The library's calls need little of a stack (callers.c has the smallest stack of a thread), and
 * leave room for a signal handler. Most rows have LD_BIND_NOW: the linker binds a function at the
 * first call, on the caller's stack.
 */
#include <alloca.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include "../../lib/stub_rows.h"

static char *memory;
static ucontext_t outside, inside;

/*
 * A signal handler's stack: its size, and the bytes of it that are left for the first calls, and
 * for later ones.
 */

enum { SIGNAL_STACK = 256 << 10, FIRST_CALLS = 4096, LATER_CALLS = 1792, ROUNDS = 300 };

static char *low; /* its end */

static void make_calls(int rounds)
{
	for (int round = 0; round < rounds; round++) {
		memory = new_place(PAGE);
		must(raw_map_at(memory, PAGE));
		for (int time = 0; time < 4; time++)
			dereg(reg(memory, PAGE));
		switch (round % 4) {
		case 0: must(madvise(memory, PAGE, MADV_DONTNEED) == 0); break;
		case 1: must(mprotect(memory, PAGE, PROT_READ) == 0); break;
		case 2: renew(BY_FIXED, memory, PAGE); break;
		default: must(munmap(memory, PAGE) == 0);
		}
	}
}

static __attribute__((noinline)) void with_left(long size, int rounds)
{
	volatile char *room = alloca((size_t)((char *)__builtin_frame_address(0) - low - size));

	room[0] = 1;
	make_calls(rounds);
}

static void handles(int number)
{
	(void)number;
	if (row->value == LATER_CALLS)
		make_calls(ROUNDS);
	with_left(row->value, row->value == LATER_CALLS ? ROUNDS : 4);
}

/* Memory whose begin is the end of a page without access. */
static char *guarded(size_t size)
{
	char *guard = pages(1 + (size + PAGE - 1) / PAGE);

	must(mprotect(guard, PAGE, PROT_NONE) == 0);
	return guard + PAGE;
}

static void on_signal_stack(void)
{
	struct sigaction action = { .sa_handler = handles, .sa_flags = SA_ONSTACK };
	stack_t stack = { .ss_sp = low = guarded(SIGNAL_STACK), .ss_size = SIGNAL_STACK };

	by_plain_calls();
	row_rights = IBV_ACCESS_LOCAL_WRITE;
	must(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0 &&
	     raise(SIGUSR1) == 0);
	ok(stub_registered() > 0, "the calls fit on %ld bytes", row->value);
}

/* A coroutine is on no signal stack, so the calls must find out that its stack is small. */

enum { STACK = 8192, OWN = 2560 };

static void coroutine(void)
{
	volatile char own[OWN];

	own[0] = own[OWN - 1] = 1;
	for (int round = 0; round < 4; round++)
		dereg(reg(memory, PAGE));
	must(munmap(memory, PAGE) == 0 && own[0] + own[OWN - 1] == 2);
	swapcontext(&inside, &outside);
}

static void run_on(char *stack, size_t size, void (*function)(void))
{
	must(getcontext(&inside) == 0);
	inside.uc_stack.ss_sp = stack;
	inside.uc_stack.ss_size = size;
	inside.uc_link = &outside;
	makecontext(&inside, function, 0);
	must(swapcontext(&outside, &inside) == 0);
}

static void in_coroutine(void)
{
	memory = pages(1);
	by_plain_calls();
	run_on(guarded(STACK), STACK, coroutine);
	ok(stats().hits >= 2, "regions are reused");
}

/*
 * An interposed memory call blocks signals while it works on the cache, but not those of faults: it may
 * be the first to use a page of a stack that grows by a handler of SIGSEGV.
 */

enum { GROWING = 1 << 20, FIRST = 64, LAST = 4096, STEP = 48 };

static char *growing;
static int left;
static volatile int grown;

static void grow(int signal, siginfo_t *about, void *context)
{
	uintptr_t page = (uintptr_t)about->si_addr & ~(uintptr_t)(PAGE - 1);

	(void)signal;
	(void)context;
	if (page < (uintptr_t)growing || page >= (uintptr_t)growing + GROWING)
		_exit(1);
	grown++;
	must(mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE) == 0);
}

/* So many bytes of the page are left. */
static __attribute__((noinline)) void unmap_with_little_left(void)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	volatile char *room = alloca((here & (PAGE - 1)) + PAGE - left);

	room[0] = 1;
	must(munmap(memory, 2 * PAGE) == 0);
	must(swapcontext(&inside, &outside) == 0);
}

static int grows(void)
{
	static char signal_stack[64 << 10];
	stack_t on = { .ss_sp = signal_stack, .ss_size = sizeof(signal_stack) };
	struct sigaction action = { .sa_sigaction = grow, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	memory = pages(2);
	must(hits(memory, 2) == 1 && hits(memory + PAGE, 2) == 1);
	growing = mmap(NULL, GROWING, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must(growing != MAP_FAILED && sigaltstack(&on, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
	run_on(growing, GROWING, unmap_with_little_left);
	return stub_deregistered() == 2 && grown > 0 ? 0 : 2;
}

static void grown_by_handler(void)
{
	for (left = FIRST; left <= LAST; left += STEP)
		is(in_forked(grows), 0, "memory with idle regions is unmapped with %d bytes left in the stack's page", left);
}

/* The stack is the thread's own: a garbage collector would scan from there to the stack's end. */

enum { NEEDED = 100 << 10 };

static char *start, *end;
static volatile int came, elsewhere;
static _Atomic pid_t me;

static void needs_much(int number)
{
	volatile char frame[NEEDED];

	(void)number;
	for (size_t n = 0; n < sizeof(frame); n += PAGE)
		frame[sizeof(frame) - 1 - n] = 1;
	came++;
	elsewhere += (char *)frame < start || (char *)frame >= end;
}

static void interrupts(long number, const long argument[6])
{
	(void)number;
	(void)argument;
	if (stub_syscall(SYS_gettid) == me)
		stub_syscall(SYS_tkill, me, SIGUSR1);
}

static void *is_interrupted(void *unused)
{
	char *page = pages(1);
	pthread_attr_t attributes;
	size_t size;
	void *lowest;

	must(pthread_getattr_np(pthread_self(), &attributes) == 0 && pthread_attr_getstack(&attributes, &lowest, &size) == 0);
	must(pthread_attr_destroy(&attributes) == 0);
	start = lowest;
	end = start + size;
	me = (pid_t)syscall(SYS_gettid);
	stub_before = interrupts;
	for (int time = 0; time < 6; time++)
		once(page);
	stub_before = NULL;
	return unused;
}

static void handler_needs_stack(void)
{
	must(signal(SIGUSR1, needs_much) != SIG_ERR);
	row->value ? in_thread(is_interrupted, NULL) : (void)is_interrupted(NULL);
	ok(came >= 6, "the handler came %d times", came);
	is(elsewhere, 0, "on the thread's own stack each time");
}

/* The size of this thread's stack, as the C library finds it from the process's mappings. */
static size_t size_of_stack(void)
{
	pthread_attr_t attributes;
	size_t size;
	void *lowest;

	must(pthread_getattr_np(pthread_self(), &attributes) == 0 && pthread_attr_getstack(&attributes, &lowest, &size) == 0);
	must(pthread_attr_destroy(&attributes) == 0);
	return size;
}

static void on_main_stack(void)
{
	char buffer[4 * PAGE], *page = buffer + PAGE - (uintptr_t)buffer % PAGE;
	const size_t before = size_of_stack();

	must(size_of_stack() == before);
	is(hits(page, 10), 0, "a buffer on it is registered each time");
	once(page);
	is((long long)size_of_stack(), (long long)before, "it stays as large as it was");
	is(hits(pages(1), 10) > 0, 1, "other memory is reused");
}

#define BIND "LD_BIND_NOW=1 "
#define UNCACHED .flags = UNPINNED, .settings = BIND NO_CACHE
#define CACHED .flags = UNPINNED, .settings = BIND "RDMAMR_CACHE=all"

static const struct row rows[] = {
	{ "the first calls are a signal handler's", on_signal_stack, FIRST_CALLS, UNCACHED },
	{ "the first calls are a signal handler's, with the cache", on_signal_stack, FIRST_CALLS, CACHED },
	{ "later calls", on_signal_stack, LATER_CALLS, UNCACHED },
	{ "later calls, with the cache", on_signal_stack, LATER_CALLS, CACHED },
	{ "a coroutine makes the first calls", in_coroutine, .flags = UNPINNED, .settings = BIND "RDMAMR_CACHE_LINGER" },
	{ "the stack's pages are made accessible at their first use", grown_by_handler, .flags = NO_PINS, .settings = BIND },
	{ "a handler needs much of the first thread's stack", handler_needs_stack, false, .flags = BOTH_CALLS },
	{ "a handler needs much of another thread's stack", handler_needs_stack, true, .flags = BOTH_CALLS },
	{ "the main thread's stack is not watched", on_main_stack, .flags = BOTH_CALLS },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
