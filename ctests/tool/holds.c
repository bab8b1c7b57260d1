/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * holds: obeys the lines of its standard input, and answers each with a line: "register N", N
 * regions of 64 KiB; "again N", one relaxed region N times; "release", all regions; "flush", the
 * cached relaxed regions; "undumpable", prctl(PR_SET_DUMPABLE, 0); "fork", a child obeys, up to
 * "end". Without an answer: "exec", it starts itself anew; "end". The device is the stand-in.
 * top.sh, live_page.sh and others examine it from outside.
 */
#include <sys/prctl.h>
#include "../lib/device.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"
#include "../lib/tap.h"

enum { MOST = 4096, LENGTH = 65536 };

int main(void)
{
	static struct ibv_mr *held[MOST];
	static char memory[LENGTH] __attribute__((aligned(4096)));
	char line[64];
	int count = 0;

	must(!stub_open(STUB_NOTHING));
	/* A line that was read ahead would not reach the next image. */
	setvbuf(stdin, NULL, _IONBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		int n = 0;

		if (sscanf(line, "register %d", &n) == 1) {
			for (; n > 0 && count < MOST; n--)
				must(held[count++] = ibv_reg_mr(stub_pd(), memory, LENGTH, IBV_ACCESS_LOCAL_WRITE));
		} else if (sscanf(line, "again %d", &n) == 1) {
			for (; n > 0; n--)
				must(!ibv_dereg_mr_relaxed(ibv_reg_mr_relaxed(stub_pd(), memory, LENGTH,
								      IBV_ACCESS_LOCAL_WRITE)));
		} else if (!strcmp(line, "release\n")) {
			while (count > 0)
				must(!ibv_dereg_mr(held[--count]));
		} else if (!strcmp(line, "flush\n")) {
			must(!ibv_flush_relaxed_mr(stub_pd()));
		} else if (!strcmp(line, "undumpable\n")) {
			must(!prctl(PR_SET_DUMPABLE, 0));
		} else if (!strcmp(line, "fork\n")) {
			pid_t child = fork();

			must(!child || child_status(child) == 0);
		} else if (!strcmp(line, "exec\n")) {
			return execl("/proc/self/exe", "holds", NULL);
		} else if (!strcmp(line, "end\n")) {
			return 0;
		} else {
			must(!"a line");
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
