/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A device is unplugged. Within a moment the cache hands out none of its regions any more: a
 * registration and a change of a region fail as they do without the cache.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { COUNT = 40 };

static bool is_refused(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	if (!mr)
		return errno == EIO;
	/* A hit, before the cache knows. Its deregistration may meet the end. */
	ibv_dereg_mr(mr);
	return false;
}

int main(int argc, char **argv)
{
	char *memory = pages(2 * COUNT);
	struct ibv_mr *held;
	const char *why;
	int refused = 0;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE", "all");
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	for (int n = 0; n < COUNT; n++)
		for (int time = 0; time < 3; time++)
			must((held = ibv_reg_mr(stub_pd(), memory + 2L * n * PAGE, PAGE, LOCAL_AND_REMOTE)) && ibv_dereg_mr(held) == 0);
	is(stats().idle, COUNT, "%d regions are idle", COUNT);
	held = ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	must(held);
	ok(stats().hits > 0 && stub_lands(held), "a hit is in use");
	stub_unplug();
	ok(comes(is_refused(memory + 2 * PAGE)), "soon after the device has gone, a registration fails with EIO");
	for (int n = 0; n < COUNT; n++)
		refused += is_refused(memory + 2L * n * PAGE);
	is(refused, COUNT, "so does that of all other ranges");
	ok(comes(stats().idle == 0), "no region of the device is idle");
	is(ibv_dereg_mr(held), 0, "its deregistration succeeds, as the kernel's does");
	return done_testing();
}
