/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A coroutine on a stack of 8 KiB, of which its own frames take 2.5 KiB, makes the registrations
 * that start the cache, and later ones. It is not on a signal stack, so the calls themselves must
 * find out that the stack is small.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <sys/mman.h>
#include <ucontext.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { STACK = 8192, OWN = 2560, RIGHT = 0 };

static ucontext_t outside, inside;
static char *memory;
static bool relaxed;

static void coroutine(void)
{
	volatile char own[OWN];

	own[0] = own[OWN - 1] = 1;
	for (int round = 0; round < 4; round++) {
		struct ibv_mr *mr = relaxed ? ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) :
					      ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && (relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)) == 0);
	}
	must(munmap(memory, PAGE) == 0 && own[0] + own[OWN - 1] == 2);
	swapcontext(&inside, &outside);
}

static int part(void)
{
	char *stack = pages(2 + STACK / PAGE);

	memory = pages(1);
	must(mprotect(stack, 2 * PAGE, PROT_NONE) == 0 && getcontext(&inside) == 0);
	inside.uc_stack.ss_sp = stack + 2 * PAGE;
	inside.uc_stack.ss_size = STACK;
	inside.uc_link = &outside;
	makecontext(&inside, coroutine, 0);
	must(swapcontext(&outside, &inside) == 0);
	return stats().hits >= 2 ? RIGHT : 1;
}

int main(int argc, char **argv)
{
	/* The linker binds a function at the first call, on the caller's stack. */
	static const char *const settings[] = { "RDMAMR_CACHE=all", "LD_BIND_NOW=1", NULL };
	const char *why = stub_open(STUB_NOTHING);

	if (why)
		skip_all(why);
	if (argc > 1) {
		relaxed = strcmp(argv[1], "plain");
		return part();
	}
	is(once_more("plain", settings), RIGHT, "plain registrations of a coroutine on %d bytes", STACK);
	is(once_more("relaxed", settings), RIGHT, "relaxed registrations of a coroutine on %d bytes", STACK);
	return done_testing();
}
