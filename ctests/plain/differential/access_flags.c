/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every combination of the first ten access flags, and each bit above, by each of the calls. */
#include "../../lib/verdict.h"

static struct ibv_pd *pd;
static char *memory;

static void try(unsigned int access)
{
	char name[64];
	struct ibv_mr *mr;

	snprintf(name, sizeof(name), "ibv_reg_mr access %#x", access);
	errno = 0;
	mr = (ibv_reg_mr)(pd, memory, PAGE, (int)access);
	verdict_region(name, pd, memory, PAGE, mr);

	snprintf(name, sizeof(name), "ibv_reg_mr_iova2 access %#x", access);
	errno = 0;
	mr = ibv_reg_mr_iova2(pd, memory, PAGE, 0, access);
	verdict_region(name, pd, memory, PAGE, mr);
}

int main(void)
{
	pd = domain_of_device();
	memory = pages(1);
	for (unsigned int access = 0; access < 1 << 10; access++)
		try(access);
	for (int bit = 10; bit < 32; bit++)
		try(1u << bit | IBV_ACCESS_LOCAL_WRITE);
	try(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_LOCAL_WRITE);
	try(~0u);
	return 0;
}
