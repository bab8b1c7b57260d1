/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registers and deregisters after a warm-up, between two marks that a trace of system calls shows.
 */
#include "../lib/device.h"

int main(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(open_device());
	char *memory = pages(1);

	must(pd);
	for (int round = 0; round < 110; round++) {
		struct ibv_mr *mr;

		if (round == 10)
			(void)!write(-1, "start", 5);
		mr = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE);
		must(mr && ibv_dereg_mr(mr) == 0);
	}
	(void)!write(-1, "end", 3);
	return 0;
}
