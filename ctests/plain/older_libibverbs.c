/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A libibverbs before rdma-core 28; for one before 25 the linker hides ibv_reg_mr_iova (older.sh).
 * A region's handle names the function that made it.
 */
#include <infiniband/verbs.h>
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static struct ibv_mr made;

static struct ibv_mr *make(struct ibv_pd *pd, void *addr, size_t length, unsigned int handle)
{
	made = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = handle };
	return &made;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return make(pd, addr, length, 1000 + (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return make(pd, addr, length, 2000 + (unsigned int)access + (iova == 0x7000 ? 0 : 500));
}

int ibv_dereg_mr(struct ibv_mr *mr) { return mr == &made ? 0 : 22; }
