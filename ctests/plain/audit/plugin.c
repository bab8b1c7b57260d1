/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A plug-in that is linked to libibverbs, for bindings.c to load with RTLD_DEEPBIND. */
#include <infiniband/verbs.h>
#include <sys/mman.h>

struct ibv_mr *plugin_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

int plugin_dereg_mr(struct ibv_mr *mr) { return ibv_dereg_mr(mr); }

int plugin_mprotect(void *addr, size_t length, int protection) { return mprotect(addr, length, protection); }
