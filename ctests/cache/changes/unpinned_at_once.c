/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The program unmaps memory of an idle region by a raw system call. Its pages are free as soon as
 * the library has read the event, and not only at the next tick of the cache's thread, which ticks
 * eight times a second.
 *
 * A round begins when the region of the round before has ended. If regions ended at ticks alone,
 * the next tick would then be nearly 125 ms away. Half of the rounds may be slow, on a busy
 * machine.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { ROUNDS = 20, COUNT = 64, SIZE = COUNT * PAGE };
static const double HALF_A_TICK = 0.0625;

static bool none_is_pinned(void)
{
	return stub_registered() == stub_deregistered();
}

/* The number of rounds that took less than half a tick. */
static int quick_rounds(void)
{
	char *memory = pages(COUNT);
	int quick = 0;

	for (int n = 0; n <= ROUNDS; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, SIZE, LOCAL_AND_REMOTE);
		double begin = seconds_now();

		must(mr && ibv_dereg_mr_relaxed(mr) == 0 && raw_munmap(memory, SIZE) == 0);
		while (!none_is_pinned() && seconds_now() < begin + 10)
			usleep(500);
		must(none_is_pinned() && raw_map_at(memory, SIZE));
		/* The first round begins at any time. */
		quick += n > 0 && seconds_now() < begin + HALF_A_TICK;
	}
	must(munmap(memory, SIZE) == 0);
	return quick;
}

int main(int argc, char **argv)
{
	const char *why;
	int quick = 0;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	/*
	 * A busy machine gives the library's threads no processor in time: some fast rounds are
	 * enough.
	 */
	for (int tries = 0; tries < 50 && quick <= ROUNDS / 2; tries++)
		quick = quick_rounds();
	ok(quick > ROUNDS / 2, "the pages are free before the next tick, in %d of %d rounds", quick, ROUNDS);
	return done_testing();
}
