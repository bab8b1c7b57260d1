/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program closes its standard input and opens another file, which gets the lowest free number:
 * that one. A thread of the library that opened files in the program's table of descriptors, if
 * only for a moment, would get the number first. Regions are idle here, for eight seconds.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <fcntl.h>
#include <signal.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { SECONDS = 8, REGIONS = 8 };

int main(int argc, char **argv)
{
	const char *why;
	double until;
	long looked = 0, taken = 0;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	for (int n = 0; n < REGIONS; n++) {
		char *memory = pages(1);

		for (int round = 0; round < 2; round++) {
			struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

			must(mr && ibv_dereg_mr_relaxed(mr) == 0);
		}
	}
	if (userfaultfds(NULL) != 1)
		skip_all("userfaultfd is refused to this process");
	close(STDIN_FILENO);
	until = seconds_now() + SECONDS;
	while (seconds_now() < until)
		for (int times = 0; times < 1000; times++, looked++)
			taken += fcntl(STDIN_FILENO, F_GETFD) >= 0;
	is(taken, 0, "the number of a closed standard input stays free, in %ld looks", looked);
	is(open("/dev/null", O_RDONLY), STDIN_FILENO, "and the program's next file gets it");
	return done_testing();
}
