/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Registrations whose bytes are recorded, at the same addresses in every run. */
#include "../../lib/device.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = mmap((void *)0x200000000000, 16 * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	static const int access[] = {
		0, IBV_ACCESS_LOCAL_WRITE, LOCAL_AND_REMOTE, LOCAL_AND_REMOTE | IBV_ACCESS_REMOTE_ATOMIC,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING,
		IBV_ACCESS_ON_DEMAND, IBV_ACCESS_REMOTE_WRITE /* refused */,
	};
	enum { CASES = sizeof(access) / sizeof(*access) };
	struct ibv_mr *regions[3 * CASES] = { 0 };

	must(memory != MAP_FAILED && pd);
	for (int n = 0; n < CASES; n++) {
		regions[3 * n] = ibv_reg_mr(pd, memory + n, 100 + (size_t)n, access[n]);
		regions[3 * n + 1] = ibv_reg_mr_iova(pd, memory + n, 5 * PAGE, 0x7000 + (uint64_t)n, access[n]);
		regions[3 * n + 2] = ibv_reg_mr_iova2(pd, memory, PAGE, 0, (unsigned int)access[n]);
	}
	(void)!ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND);
	/* This one never reaches the kernel. */
	(void)!ibv_reg_mr(pd, memory, SIZE_MAX, IBV_ACCESS_ON_DEMAND);
	for (int n = 3 * CASES - 1; n >= 0; n--)
		if (regions[n])
			must(ibv_dereg_mr(regions[n]) == 0);
	must(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
