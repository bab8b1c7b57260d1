/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process that may have few descriptors (RLIMIT_NOFILE) closes standard input, registers memory,
 * and opens a file: that gets the lowest number. The library's file has none of the lowest numbers,
 * and its regions are reused.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <fcntl.h>
#include <sys/resource.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { TIMES = 8, NUMBER = 1, REUSE = 2 };

static int part(int most)
{
	struct rlimit limit = { (rlim_t)most, (rlim_t)most };
	char *memory = pages(1);
	int file, answer = 0;

	must(setrlimit(RLIMIT_NOFILE, &limit) == 0 && close(STDIN_FILENO) == 0);
	for (int n = 0; n < TIMES; n++) {
		struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
	file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (file != STDIN_FILENO)
		answer |= NUMBER;
	if (stats().hits < 1)
		answer |= REUSE;
	return answer;
}

int main(int argc, char **argv)
{
	static const char *const settings[] = { "RDMAMR_CACHE=all", NULL };
	static const char *const limits[] = { "24", "48", "60", "63", "64", "65", "1024" };
	const char *why = stub_open(STUB_NOTHING);

	if (why)
		skip_all(why);
	if (argc > 1)
		return part(atoi(argv[1]));
	for (size_t n = 0; n < sizeof(limits) / sizeof(*limits); n++) {
		int answer = once_more(limits[n], settings);

		is(answer & ~REUSE, 0, "RLIMIT_NOFILE %s: the lowest number is the program's", limits[n]);
		is(answer & REUSE, 0, "RLIMIT_NOFILE %s: regions are reused", limits[n]);
	}
	return done_testing();
}
