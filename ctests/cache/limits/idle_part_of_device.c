/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A device has a number of regions for all processes. Idle regions of the cache are at most an
 * eighth of the remaining ones, so that another program finds most of them free.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { REGIONS = 800, COUNT = 400 };

static char *memory;

static void in_turn(void)
{
	int most = 0;

	for (int n = 0; n < COUNT; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + 2L * n * PAGE, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
		most = (int)stats().idle > most ? (int)stats().idle : most;
	}
	ok(most <= REGIONS / 8, "of %d regions at most an eighth is idle: %d", REGIONS, most);
	ok(most >= REGIONS / 16, "and not much less: %d", most);
}

/* Regions in use leave fewer. */
static void at_once(void)
{
	struct ibv_mr *regions[COUNT], *mr;

	for (int n = 0; n < COUNT; n++) {
		regions[n] = ibv_reg_mr_relaxed(stub_pd(), memory + 2L * n * PAGE, PAGE, LOCAL_AND_REMOTE);
		must(regions[n]);
	}
	for (int n = 0; n < COUNT; n++) {
		mr = ibv_reg_mr_relaxed(stub_pd(), memory + (2L * n + 1) * PAGE, PAGE, LOCAL_AND_REMOTE);
		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
	/* The library reads the limit when the regions have doubled, and each second. */
	ok(comes(stats().idle <= (REGIONS - COUNT) / 8),
	   "while %d are in use, at most an eighth of the others is idle: %d", COUNT, (int)stats().idle);
	for (int n = 0; n < COUNT; n++)
		must(ibv_dereg_mr_relaxed(regions[n]) == 0);
	ok(comes(stats().idle <= REGIONS / 8), "and all at once leave no more than an eighth: %d",
	   (int)stats().idle);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	stub_have(REGIONS);
	memory = pages(2 * COUNT);
	in_turn();
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "flushed");
	at_once();
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "flushed");
	is(stub_registered() - stub_deregistered(), 0, "the device has no region left");
	return done_testing();
}
