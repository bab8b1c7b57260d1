/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A signal handler that needs 100 KiB of the stack comes before each system call that the library
 * makes in a thread with much stack. It finds room, and the stack is the thread's own: a garbage
 * collector would scan from there to the stack's end.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { NEEDED = 100 << 10, TIMES = 6, ELSEWHERE = 1, NEVER = 2 };

static char *start, *end;
static volatile int came, elsewhere;
static _Atomic pid_t me;

static void handler(int number)
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

static void *registers(void *relaxed)
{
	char *memory = pages(1);
	pthread_attr_t attributes;
	size_t size;
	void *low;

	must(pthread_getattr_np(pthread_self(), &attributes) == 0);
	must(pthread_attr_getstack(&attributes, &low, &size) == 0);
	must(pthread_attr_destroy(&attributes) == 0);
	start = low;
	end = start + size;
	me = (pid_t)syscall(SYS_gettid);
	stub_before = interrupts;
	for (int n = 0; n < TIMES; n++) {
		struct ibv_mr *mr = relaxed ? ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) :
					      ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && stub_lands(mr) && (relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)) == 0);
	}
	stub_before = NULL;
	return NULL;
}

static int part(const char *how)
{
	bool in_thread = how[0] == 't';
	void *relaxed = how[1] == 'r' ? &start : NULL;
	pthread_t thread;

	must(signal(SIGUSR1, handler) != SIG_ERR);
	if (!in_thread)
		registers(relaxed);
	else
		must(pthread_create(&thread, NULL, registers, relaxed) == 0 && pthread_join(thread, NULL) == 0);
	return (elsewhere ? ELSEWHERE : 0) | (came < TIMES ? NEVER : 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *how, *name;
	} parts[] = {
		{ "mp", "the first thread, plain registrations" },
		{ "mr", "the first thread, relaxed ones" },
		{ "tp", "another thread, plain registrations" },
		{ "tr", "another thread, relaxed ones" },
	};
	static const char *const settings[] = { "RDMAMR_CACHE=all", "RDMAMR_CACHE_LINGER=" FOREVER, NULL };
	const char *why = stub_open(STUB_PIN);

	if (why)
		skip_all(why);
	if (argc > 1)
		return part(argv[1]);
	for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++)
		is(once_more(parts[n].how, settings), 0, "%s", parts[n].name);
	return done_testing();
}
