/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * registers: registers memory with the stand-in of a device, again and again, and reallocates blocks
 * of every size meanwhile. With an argument it also prints whether regions were reused.
 */
#include "../../lib/device.h"
#include "../../lib/stub_device.h"
#include "../../lib/tap.h"

enum { LENGTH = 1 << 20, TIMES = 50 };

#pragma weak rdmamr_get_stats

int main(int count, char **arguments)
{
	static char memory[LENGTH] __attribute__((aligned(4096)));
	struct rdmamr_stats stats;
	char *block = NULL;

	(void)arguments;
	must(!stub_open(STUB_NOTHING));
	for (int n = 0; n < TIMES; n++) {
		must(!ibv_dereg_mr(ibv_reg_mr(stub_pd(), memory, LENGTH, IBV_ACCESS_LOCAL_WRITE)));
		block = realloc(block, (size_t)4096 << (n % 15));
		must(block);
		block[0] = 1;
	}
	free(block);
	puts("registered");
	if (count > 1 && rdmamr_get_stats && rdmamr_get_stats(&stats, sizeof(stats)) == 0)
		puts(stats.hits ? "reused" : "plain");
	return 0;
}
