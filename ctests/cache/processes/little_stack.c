/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The library's calls need little of a stack: a signal handler with a stack of 8 KiB, of which the
 * kernel's frame takes a part, makes the first registration of a process. Each later call of a
 * signal handler needs at most 1.5 KiB: a hit, a miss, a deregistration, and a memory call that
 * ends regions.
 *
 * The device is the stand-in (stub_device.h). The test paints the stack to see how much a call
 * needs.
 */
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"
#include "../../lib/stub_device.h"

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

enum { SIGNAL_STACK = 8192, PAINTED = 256 << 10, MOST = 1536, ROUNDS = 300, RIGHT = 0 };
enum { PAINT = 0x5a };

/* The linker binds a function at the first call, on the caller's stack. */
static const char *const settings[][4] = {
	{ "RDMAMR_LOG=warn", "LD_BIND_NOW=1" },
	{ "RDMAMR_CACHE=all", "LD_BIND_NOW=1" },
};
enum { SETTINGS = sizeof(settings) / sizeof(*settings) };

static bool relaxed;
static char *low;

static char *memory;
static struct ibv_mr *mr;

static void registers(void)
{
	mr = relaxed ? ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE) :
		       ibv_reg_mr(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
}

static void deregisters(void)
{
	must((relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)) == 0);
}

static void drops(void)
{
	must(madvise(memory, PAGE, MADV_DONTNEED) == 0);
}

static void protects(void)
{
	must(mprotect(memory, PAGE, PROT_READ) == 0);
}

static void unmaps(void)
{
	must(munmap(memory, PAGE) == 0);
}

static void maps_over(void)
{
	must(mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
}

static char *stack_pointer(void) __attribute__((always_inline));
static inline char *stack_pointer(void)
{
	char *here;

#if defined(__x86_64__)
	__asm__ volatile("mov %%rsp, %0" : "=r"(here));
#elif defined(__aarch64__)
	__asm__ volatile("mov %0, sp" : "=r"(here));
#else
	here = __builtin_frame_address(0);
#endif
	return here;
}

/* The number of bytes of the stack that the call writes to. */
static __attribute__((noinline)) long used_by(void (*call)(void))
{
	char *here = stack_pointer(), *end = here - 128;

	for (volatile char *byte = low; byte < end; byte++)
		*byte = PAINT;
	call();
	for (char *byte = low; byte < end; byte++)
		if (*(volatile char *)byte != PAINT)
			return here - byte;
	return 128;
}

static struct kind {
	const char *name;
	long most;
} kinds[] = { { "a miss", 0 }, { "a hit", 0 }, { "a deregistration", 0 }, { "madvise", 0 },
	      { "mprotect", 0 }, { "mmap", 0 }, { "munmap", 0 } };
enum { MISS, HIT, RELEASE, MADVISE, MPROTECT, MMAP, MUNMAP, KINDS };

static void use(int n, void (*call)(void))
{
	long used = used_by(call);

	if (used > kinds[n].most)
		kinds[n].most = used;
}

static void measures(void)
{
	void (*const changes[])(void) = { drops, protects, maps_over, unmaps };

	/* The first calls start the cache. */
	for (int round = 0; round < 2; round++) {
		memory = pages(1);
		for (int time = 0; time < 3; time++) {
			registers();
			must(mr);
			deregisters();
		}
		drops(), protects(), maps_over(), unmaps();
	}
	for (int round = 0; round < ROUNDS; round++) {
		memory = new_place(PAGE);
		fresh_at(memory, PAGE);
		for (int time = 0; time < 4; time++) {
			use(time ? HIT : MISS, registers);
			must(mr);
			use(RELEASE, deregisters);
		}
		if (round % 8 < 4)
			use(MADVISE + round % 8, changes[round % 8]);
	}
}

/* Runs in a signal handler. */
static void measures_here(int number)
{
	(void)number;
	measures();
}

static void on_signal_stack(size_t size, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	char *guarded = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t stack = { .ss_sp = guarded + PAGE, .ss_size = size };

	must(guarded != MAP_FAILED && mprotect(guarded, PAGE, PROT_NONE) == 0);
	low = guarded + PAGE;
	must(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	must(raise(SIGUSR1) == 0);
}

static int on_painted_stack(void)
{
	int wrong = 0;

	on_signal_stack(PAINTED, measures_here);
	for (int n = 0; n < KINDS; n++) {
		printf("# %s needs %ld bytes of the stack\n", kinds[n].name, kinds[n].most);
		wrong += kinds[n].most > MOST;
	}
	return wrong;
}

static void handles(int number)
{
	(void)number;
	for (int time = 0; time < 4; time++) {
		registers();
		if (!mr)
			_exit(50);
		deregisters();
	}
	drops();
	registers();
	deregisters();
	unmaps();
}

static int in_signal_handler(void)
{
	memory = pages(1);
	on_signal_stack(SIGNAL_STACK, handles);
	return RIGHT;
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "plain", "relaxed" };
	const char *why = stub_open(STUB_NOTHING);

	if (why)
		skip_all(why);
	if (argc > 1) {
		relaxed = strstr(argv[1], "relaxed");
		return strstr(argv[1], "handler") ? in_signal_handler() : on_painted_stack();
	}
	for (int n = 0; n < SETTINGS; n++)
		for (int way = 0; way < 2; way++) {
			char argument[64];

			snprintf(argument, sizeof(argument), "%s handler", names[way]);
			if (getauxval(AT_MINSIGSTKSZ) > SIGNAL_STACK / 2)
				skip("a handler's calls", "the kernel's frame takes more than half of the stack");
			else
				is(once_more(argument, settings[n]), RIGHT, "the first %s calls are a signal handler's with %d bytes, %s",
				   names[way], SIGNAL_STACK, settings[n][0]);
			is(once_more(names[way], settings[n]), 0, "later %s calls need at most %d bytes, %s", names[way], MOST,
			   settings[n][0]);
		}
	return done_testing();
}
