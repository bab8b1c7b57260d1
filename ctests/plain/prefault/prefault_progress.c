/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The progress of a registration that takes longer than a second: lines with RDMAMR_LOG=info or
 * RDMAMR_PROGRESS=1, and nothing otherwise. The device is the stand-in, made slow.
 */
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"
#include <fcntl.h>
#include <sys/wait.h>

enum { SIZE = 32 << 20 };

static int take(const char *slow)
{
	const char *why = stub_open(STUB_UMEM);
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	must(memory != MAP_FAILED);
	if (why)
		return 77;
	stub_slow = atoi(slow);
	mr = ibv_reg_mr(stub_pd(), memory, SIZE, LOCAL_AND_REMOTE);
	return !mr || ibv_dereg_mr(mr) != 0;
}

/* What a program with that setting says. Ends the test without the stand-in. */
static const char *said(const char *setting, const char *slow)
{
	static char text[65536];
	size_t used = 0;
	ssize_t got;
	int ends[2], exited;
	pid_t child;

	must(pipe(ends) == 0);
	fflush(stdout);
	child = fork();
	if (!child) {
		must(dup2(ends[1], 2) == 2);
		close(ends[0]);
		close(ends[1]);
		putenv((char *)setting);
		execl("/proc/self/exe", "prefault_progress", "take", slow, NULL);
		_exit(127);
	}
	close(ends[1]);
	while (used < sizeof(text) - 1 && (got = read(ends[0], text + used, sizeof(text) - 1 - used)) > 0)
		used += (size_t)got;
	text[used] = 0;
	close(ends[0]);
	must(child > 0 && waitpid(child, &exited, 0) == child && WIFEXITED(exited));
	if (WEXITSTATUS(exited) == 77)
		skip_all("io_uring is refused to this process");
	must(WEXITSTATUS(exited) == 0);
	return text;
}

int main(int argc, char **argv)
{
	const char *text, slow[] = "3000", just_long[] = "1300";

	if (argc > 2)
		return take(argv[2]);
	for (int n = 0; n < 2; n++) {
		const char *setting = n ? "RDMAMR_LOG=info" : "RDMAMR_PROGRESS=1";

		text = said(setting, slow);
		ok(strstr(text, "registering 0.03 GiB: 100 % of it populated, ") &&
		   strstr(text, " GiB/s, the rest in about 0.0 s\n"), "a line a second with %s", setting);
		ok(strstr(text, "registering 0.03 GiB took ") && strstr(text, " % in huge pages\n"), "and one at the end");
	}
	is((long long)strlen(said("RDMAMR_PROGRESS=1", "0")), 0, "a short registration: nothing");
	is((long long)strlen(said("RDMAMR_PROGRESS=0", just_long)), 0, "without the setting: nothing");
	return done_testing();
}
