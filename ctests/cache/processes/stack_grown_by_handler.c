/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program makes the pages of a coroutine's stack accessible when a handler of SIGSEGV hears of
 * their first use. An interposed memory call blocks all signals while it works on the cache. Its
 * first use of a page must come before: a blocked SIGSEGV ends the process.
 *
 * The device is the stand-in (stub_device.h). Each process has another depth of its stack when it
 * unmaps memory with idle regions.
 */
#include <alloca.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"
#include "../../lib/stub_device.h"

enum { STACK = 1 << 20, FIRST = 64, LAST = 4096, STEP = 48, RIGHT = 42 };

static char *stack, *memory;
static int left;
static volatile int grown;
static ucontext_t outside, inside;

static void grow(int signal, siginfo_t *about, void *context)
{
	uintptr_t page = (uintptr_t)about->si_addr & ~(uintptr_t)(PAGE - 1);

	(void)signal;
	(void)context;
	if (page < (uintptr_t)stack || page >= (uintptr_t)stack + STACK)
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

static int unmap(void)
{
	static char signal_stack[64 << 10];
	stack_t on = { .ss_sp = signal_stack, .ss_size = sizeof(signal_stack) };
	struct sigaction action = { .sa_sigaction = grow, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	memory = pages(2);
	for (int page = 0; page < 2; page++)
		for (int round = 0; round < 2; round++) {
			struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + page * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);

			must(mr && ibv_dereg_mr_relaxed(mr) == 0);
		}
	stack = mmap(NULL, STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must(stack != MAP_FAILED && sigaltstack(&on, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
	must(getcontext(&inside) == 0);
	inside.uc_stack.ss_sp = stack;
	inside.uc_stack.ss_size = STACK;
	inside.uc_link = &outside;
	makecontext(&inside, unmap_with_little_left, 0);
	must(swapcontext(&outside, &inside) == 0);
	return stub_deregistered() == 2 && grown > 0 ? RIGHT : 2;
}

int main(int argc, char **argv)
{
	const char *const settings[] = { "RDMAMR_LOG=warn", "LD_BIND_NOW=1", NULL };
	const char *why = stub_open(STUB_NOTHING);
	char depth[16];

	if (why)
		skip_all(why);
	if (argc > 1) {
		left = atoi(argv[1]);
		return unmap();
	}
	for (left = FIRST; left <= LAST; left += STEP) {
		snprintf(depth, sizeof(depth), "%d", left);
		is(once_more(depth, settings), RIGHT, "memory with idle regions is unmapped with %d bytes left in the stack's page", left);
	}
	return done_testing();
}
