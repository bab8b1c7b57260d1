/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Deregistering on a device that has gone (golden/device_gone.c): an error, or success if the user
 * has told libibverbs so.
 */
#include "../../lib/verdict.h"
#include <sys/wait.h>

static void deregister(const char *name, const char *value)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int err;

	if (name)
		must(setenv(name, value, 1) == 0);
	pd = ibv_alloc_pd(open_device());
	mr = ibv_reg_mr(pd, pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	err = ibv_dereg_mr(mr);
	verdict("deregistering with %s=%s\t%s", name ? name : "nothing", value, err ? strerrorname_np(err) : "0");
}

int main(void)
{
	static const char *const cases[][2] = {
		{ NULL, "" },
		{ "RDMAV_ALLOW_DISASSOC_DESTROY", "1" },
		{ "RDMAV_ALLOW_DISASSOC_DESTROY", "0" },
		{ "RDMAV_ALLOW_DISASSOC_DESTROY", "" },
		{ "MLX4_DEVICE_FATAL_CLEANUP", "1" },
	};

	/* libibverbs reads its environment once: each case in a process of its own. */
	for (size_t n = 0; n < sizeof(cases) / sizeof(*cases); n++) {
		pid_t pid = fork();
		int status;

		must(pid >= 0);
		if (!pid) {
			deregister(cases[n][0], cases[n][1]);
			exit(0);
		}
		must(waitpid(pid, &status, 0) == pid && status == 0);
	}
	return 0;
}
