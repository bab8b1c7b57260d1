/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The progress of a registration that takes longer than a second: lines with RDMAMR_LOG=info or
 * RDMAMR_PROGRESS=1, and nothing otherwise. The device is the stand-in, made slow.
 */
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { SIZE = 32 << 20, LONG = 76, REFUSED };

static int take(const char *slow)
{
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;
	double began;

	must(memory != MAP_FAILED);
	if (stub_open(STUB_UMEM))
		return REFUSED;
	stub_slow = atoi(slow);
	began = seconds_now();
	mr = ibv_reg_mr(stub_pd(), memory, SIZE, LOCAL_AND_REMOTE);
	must(mr && ibv_dereg_mr(mr) == 0);
	return seconds_now() - began < 1 ? 0 : LONG;
}

/*
 * Runs a program with that setting, whose registration takes so many milliseconds more, and keeps what it says. Returns
 * whether it took a second.
 */
static bool run(const char *setting, const char *slow)
{
	int status;

	hear_errors();
	status = once_more(slow, (const char *[]){ setting, NULL });
	hear_no_more();
	if (status == REFUSED)
		skip_all("io_uring is refused to this process");
	must(status == 0 || status == LONG);
	return status == LONG;
}

int main(int argc, char **argv)
{
	static const char *const settings[] = { "RDMAMR_PROGRESS=1", "RDMAMR_LOG=info" };

	if (argc > 1)
		return take(argv[1]);
	for (int n = 0; n < 2; n++) {
		run(settings[n], "3000");
		ok(times_said("registering 0.03 GiB: 100 % of it populated, ") && times_said(" GiB/s, the rest in about 0.0 s\n"),
		   "a line a second with %s", settings[n]);
		ok(times_said("registering 0.03 GiB took ") && times_said(" % in huge pages\n"), "and one at the end");
	}
	/* On a busy machine it is not short. */
	while (run("RDMAMR_PROGRESS=1", "0"))
		;
	is(times_said("\n"), 0, "a short registration: nothing");
	run("RDMAMR_PROGRESS=0", "1300");
	is(times_said("\n"), 0, "without the setting: nothing");
	return done_testing();
}
