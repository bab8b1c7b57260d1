/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Deregistering on a device that has gone (device_gone.c): an error, or success if libibverbs is told so. */
#include "../../lib/verdict.h"
#include "../../lib/program.h"

static const char *name, *value;

static void deregister(void)
{
	struct ibv_mr *mr;

	if (name)
		must(setenv(name, value, 1) == 0);
	mr = ibv_reg_mr(domain_of_device(), pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	verdict("deregistering with %s=%s\t%s", name ? name : "nothing", value, name_of(ibv_dereg_mr(mr)));
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
		name = cases[n][0], value = cases[n][1];
		in_part(deregister);
	}
	return 0;
}
