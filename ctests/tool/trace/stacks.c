/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * stacks WAY: registers with the stub of a device through functions whose names the report must
 * give, for ctests/tool/trace/stacks.sh. Compiled without frame pointers.
 *
 * As a shared library, with -DLIBRARY, a program in Python calls it.
 */
#include "../../lib/program.h"
#include "../../lib/memory.h"
#include "../../lib/stub_device.h"
#include "../../lib/tap.h"
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

/* Each function keeps its frame: it has work left after its call. */
#define FRAME __attribute__((noinline, noclone, used))
#define AFTER __asm__ volatile("" ::: "memory")

static char memory[PAGE];

FRAME int register_wrapper(void)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

	must(mr != NULL);
	AFTER;
	return ibv_dereg_mr(mr);
}

#ifdef LIBRARY
int library_call(void)
{
	int result;

	must(!stub_open(STUB_NOTHING));
	result = register_wrapper();
	AFTER;
	return result;
}
#else

FRAME void send_message(int bytes)
{
	volatile char frame[bytes];

	/* Its size is known only at run time, so another register finds the end of the frame. */
	memset((char *)frame, 1, bytes);
	must(!register_wrapper());
	AFTER;
}

FRAME void first_phase(void) { send_message(40); AFTER; }
FRAME void second_phase(void) { send_message(400); AFTER; }

/* A frame with a greater alignment than its caller's. */
FRAME void aligned_phase(int bytes)
{
	_Alignas(64) volatile char frame[128];
	volatile char more[bytes];

	memset((char *)frame, 1, sizeof(frame));
	memset((char *)more, 1, bytes);
	must((uintptr_t)frame % 64 == 0);
	send_message(8);
	AFTER;
}

/*
 * No unwind information describes the frame of this function, but it keeps the chain of frame
 * pointers.
 */
void without_description(void (*next)(void));
#ifdef __x86_64__
__asm__(".pushsection .text\n"
	".type without_description, @function\n"
	"without_description:\n"
	"push %rbp\n"
	"mov %rsp, %rbp\n"
	"call *%rdi\n"
	"nop\n"
	"pop %rbp\n"
	"ret\n"
	".size without_description, . - without_description\n"
	".popsection\n");
#else
void without_description(void (*next)(void)) { next(); AFTER; }
#endif
FRAME void around_the_undescribed(void) { without_description(first_phase); AFTER; }

static ucontext_t outside, inside;

FRAME void coroutine(void)
{
	first_phase();
	AFTER;
	swapcontext(&inside, &outside);
}

/* A stack of its own, with nothing readable around it. */
static void in_coroutine(void)
{
	enum { SIZE = 16 * PAGE };
	char *stack = mmap(NULL, SIZE + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(stack != MAP_FAILED && !mprotect(stack + PAGE, SIZE, PROT_READ | PROT_WRITE));
	getcontext(&inside);
	inside.uc_stack.ss_sp = stack + PAGE;
	inside.uc_stack.ss_size = SIZE;
	makecontext(&inside, coroutine, 0);
	swapcontext(&outside, &inside);
}

FRAME void *thread_body(void *nothing)
{
	register_wrapper();
	AFTER;
	return nothing;
}

static void in_small_thread(void)
{
	pthread_attr_t small;
	pthread_t thread;

	/* The first call of a process needs a larger stack (the cache's limits). */
	first_phase();
	pthread_attr_init(&small);
	must(!pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN));
	must(!pthread_create(&thread, &small, thread_body, NULL));
	pthread_join(thread, NULL);
}

FRAME void handler(int number)
{
	(void)number;
	register_wrapper();
	/* The trace is written at the exit. */
	exit(0);
}

static volatile char *volatile nowhere;

FRAME void interrupted(void)
{
	*nowhere = 1;
	AFTER;
}

static void in_handler(void)
{
	signal(SIGSEGV, handler);
	interrupted();
}

/* Two ways at each step: 2^left stacks. */
FRAME void turns(int left)
{
	if (left == 0) {
		must(!register_wrapper());
		return;
	}
	turns(left - 1);
	AFTER;
	turns(left - 1);
	AFTER;
}

FRAME void deep(int left)
{
	if (left > 0)
		deep(left - 1);
	else
		register_wrapper();
	AFTER;
}

FRAME void chain(void)
{
	for (int n = 0; n < 100; n++) {
		first_phase();
		second_phase();
		aligned_phase(n);
	}
	AFTER;
}

static void many(void) { turns(13); }
static void very_deep(void) { deep(1000); }

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } ways[] = {
		{ "chain", chain }, { "pointers", around_the_undescribed }, { "coroutine", in_coroutine }, { "thread", in_small_thread },
		{ "handler", in_handler }, { "many", many }, { "deep", very_deep },
	};
	must(!stub_open(STUB_NOTHING));
	for (size_t n = 0; argc > 1 && n < sizeof(ways) / sizeof(*ways); n++)
		if (!strcmp(argv[1], ways[n].name))
			return ways[n].run(), 0;
	return 2;
}
#endif
