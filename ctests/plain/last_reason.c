/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdmamr_last_reason() tells of the last failed call, and a change that libibverbs refuses is one.
 * The string stays as it is until the program asks again, while the trace records other failures as
 * well.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <rdmamr.h>
#include "../lib/memory.h"
#include "../lib/program.h"
#include "../lib/tap.h"
#include "../lib/stub_device.h"

#pragma weak rdmamr_last_reason

static const char *const settings[][2] = { { "RDMAMR_LOG=error" }, { "RDMAMR_LOG=warn" }, { "RDMAMR_TRACE=/dev/null" } };
enum { SETTINGS = sizeof(settings) / sizeof(*settings) };
enum { STALE = 1, CODE = 2, ERRNO = 4, REWRITTEN = 8, LATER_STALE = 16 };

static int reasons(void)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE);
	const char *reason;
	char first[1024];
	int wrong = 0;

	must(mr && !ibv_reg_mr(NULL, mr, 1, 0));
	must(strstr(rdmamr_last_reason(), "ibv_reg_mr of 1 bytes"));
	errno = 0;
	if (ibv_rereg_mr(mr, 1 << 20, NULL, NULL, 0, 0) != IBV_REREG_MR_ERR_INPUT)
		wrong |= CODE;
	if (errno != EINVAL)
		wrong |= ERRNO;
	reason = rdmamr_last_reason();
	if (!strstr(reason, "ibv_rereg_mr: EINVAL from libibverbs: the flags do not fit"))
		wrong |= STALE;
	snprintf(first, sizeof(first), "%s", reason);
	must(ibv_dereg_mr(NULL) == EINVAL && !ibv_reg_mr(NULL, mr, 2, 0));
	if (strcmp(first, reason))
		wrong |= REWRITTEN;
	if (!strstr(rdmamr_last_reason(), "ibv_reg_mr of 2 bytes"))
		wrong |= LATER_STALE;
	must(ibv_dereg_mr(mr) == 0);
	return wrong;
}

int main(int argc, char **argv)
{
	const char *why = stub_open(STUB_NOTHING);

	(void)argv;
	if (why)
		skip_all(why);
	if (argc > 1)
		return reasons();
	for (int n = 0; n < SETTINGS; n++)
		is(once_more("reasons", settings[n]), 0, "the reasons with %s", settings[n][0]);
	return done_testing();
}
