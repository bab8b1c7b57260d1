/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The progress of a registration that takes longer than a second, where a setting wants it. */
#include "../../lib/device.h"
#include "../../lib/rows.h"
#include "../../lib/stub_device.h"

enum { SIZE = 32 << 20 };

/* A registration, which takes row->value milliseconds more. Returns the seconds that it took. */
static double registers(void)
{
	const char *why = stub_open(STUB_UMEM);
	struct ibv_mr *mr;
	double began;

	if (why)
		skip_all(why);
	stub_slow = (int)row->value;
	hear_errors();
	began = seconds_now();
	mr = ibv_reg_mr(stub_pd(), untouched(SIZE), SIZE, LOCAL_AND_REMOTE);
	must(mr && ibv_dereg_mr(mr) == 0);
	hear_no_more();
	return seconds_now() - began;
}

static void reports(void)
{
	registers();
	ok(times_said("registering 0.03 GiB: 100 % of it populated, ") && times_said(" GiB/s, the rest in about 0.0 s\n"), "a line a second");
	ok(times_said("registering 0.03 GiB took ") && times_said(" % in huge pages\n"), "and one at the end");
}

static void says_nothing(void)
{
	/* On a busy machine a short one may be long. */
	if (registers() > 1 && !row->value)
		row_again();
	is(times_said("\n"), 0, "not a line");
}

static const struct row rows[] = {
	{ "RDMAMR_PROGRESS=1", reports, 3000, .settings = "RDMAMR_PROGRESS=1" },
	{ "RDMAMR_LOG=info", reports, 3000, .settings = "RDMAMR_LOG=info" },
	{ "a short registration", says_nothing, 0, .settings = "RDMAMR_PROGRESS=1" },
	{ "without the setting", says_nothing, 1300, .settings = "RDMAMR_PROGRESS=0" },
};

RUN_ROWS(NULL, NULL)
