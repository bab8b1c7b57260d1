/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The trace becomes unwritable while a thread of the cache writes to it: the library reports that,
 * and the program goes on.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

static const char TRACE[] = "/proc/self/fd/90";

/* After that, as many regions are idle as the cache keeps: the cleaner ends the others. */
static void registers(char *memory)
{
	for (int n = 0; n < 4; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + n * PAGE, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
}

int main(int argc, char **argv)
{
	struct rlimit full = { 0, RLIM_INFINITY };
	struct stat about;
	char *memory;
	const char *why;

	(void)argc;
	if (fcntl(90, F_GETFD) < 0)
		must(dup2(memfd_create("trace", 0), 90) == 90);
	with_setting(argv, "RDMAMR_CACHE_LINGER", "0.05");
	with_setting(argv, "RDMAMR_TRACE", TRACE);
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	memory = pages(4);
	registers(memory);
	ok(comes(stub_registered() == stub_deregistered()) && fstat(90, &about) == 0 && about.st_size > 0,
	   "a thread of the library ends idle regions, and there is a trace");
	/* Standard error goes to a file that fits the limit, which is the trace's length. */
	full.rlim_cur = (rlim_t)about.st_size;
	hear_errors();
	must(setrlimit(RLIMIT_FSIZE, &full) == 0);
	registers(memory);
	ok(comes(stub_registered() == stub_deregistered()), "it ends them also if the file cannot grow");
	usleep(50000);
	registers(memory);
	ok(comes(times_said("\n") > 0), "the library prints a message");
	hear_no_more();
	is(times_said("RDMAMR_TRACE: cannot be written, tracing stops: File too large"), 1, "which gives the reason");
	registers(memory);
	ok(comes(stub_registered() == stub_deregistered()), "and the program goes on");
	return done_testing();
}
