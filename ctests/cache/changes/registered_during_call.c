/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread is in mprotect, which userfaultfd does not report, and another thread registers the
 * memory for the first time: after the call has reached the library, and before the kernel has
 * protected the memory. The region then has more rights than the memory. So no registration reuses
 * it, before mprotect has returned or after; even if that first registration is the first of the
 * process.
 *
 * The device is the stand-in, whose pins are real (stub_device.h): it registers no read-only memory
 * for writing. slow_calls.so lies behind the library.
 */
#include <pthread.h>
#include <stdatomic.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "slow_calls.h"
#include "../../lib/stub_device.h"

#pragma weak slow_address
#pragma weak slow_state

enum { SOME = 4 * PAGE, TIMES = 4 };

static void *protect(void *memory)
{
	must(mprotect(memory, SOME, PROT_READ) == 0);
	return NULL;
}

/* The number of registrations that the device refuses, as it refuses read-only memory. */
static int refused(void *memory)
{
	int refusals = 0;

	for (int n = 0; n < TIMES; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, SOME, LOCAL_AND_REMOTE);

		refusals += !mr && errno == EFAULT;
		if (mr)
			must(ibv_dereg_mr_relaxed(mr) == 0);
	}
	return refusals;
}

static void wait_for(int state)
{
	while (slow_state != state)
		usleep(100);
}

static void during(const char *name)
{
	/*
	 * No other region is near, so the filter does not count the call as one about registered
	 * memory.
	 */
	char *memory = new_place(8 << 20);
	pthread_t thread;

	fresh_at(memory, 8 << 20);
	memset(memory, 1, SOME);
	slow_address = memory;
	must(pthread_create(&thread, NULL, protect, memory) == 0);
	wait_for(SLOW_INSIDE);
	is(refused(memory), 0, "%s: the memory is registered before mprotect takes effect", name);
	slow_state = SLOW_IDLE;
	wait_for(SLOW_MADE);
	is(refused(memory), TIMES, "and is refused once it has taken effect");
	slow_state = SLOW_IDLE;
	must(pthread_join(thread, NULL) == 0);
	slow_address = NULL;
	is(refused(memory), TIMES, "and when it has returned");
	must(mprotect(memory, SOME, PROT_READ | PROT_WRITE) == 0);
	is(refused(memory), 0, "writable again, it is registered");
	must(munmap(memory, 8 << 20) == 0);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	must(&slow_address && ibv_reg_mr_relaxed);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	during("the first registration of the process");
	during("a later one");
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	is(stub_registered() - stub_deregistered(), 0, "the device has no region left");
	return done_testing();
}
