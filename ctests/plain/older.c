/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls forwarded to an older libibverbs: the device has no uverbs descriptor. Usage: older HAVE_IOVA */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdmamr.h>
#include "../lib/tap.h"

int main(int argc, char **argv)
{
	static struct ibv_context context;
	static struct ibv_pd pd;
	struct rdmamr_stats stats;
	int have_iova = argc > 1 && atoi(argv[1]);
	char memory[64];
	struct ibv_mr *mr;

	context.cmd_fd = -1;
	context.abi_compat = (void *)-1;
	pd.context = &context;

	mr = ibv_reg_mr_iova2(&pd, memory, 64, (uintptr_t)memory, 7);
	ok(mr && mr->handle == 1007, "ibv_reg_mr_iova2 at the address becomes ibv_reg_mr");
	is(ibv_dereg_mr(mr), 0, "and is deregistered");
	errno = 0;
	mr = ibv_reg_mr_iova2(&pd, memory, 64, 0x7000, 7);
	if (have_iova) {
		ok(mr && mr->handle == 2007, "ibv_reg_mr_iova2 at another iova becomes ibv_reg_mr_iova");
	} else {
		ok(!mr && errno == EOPNOTSUPP, "ibv_reg_mr_iova2 at another iova is EOPNOTSUPP");
		ok(strstr(rdmamr_last_reason(), "no loaded libibverbs") != NULL, "the reason: %s", rdmamr_last_reason());
	}
	errno = 0;
	mr = ibv_reg_dmabuf_mr(&pd, 0, 64, 0, -1, 1);
	ok(!mr && errno == EOPNOTSUPP, "ibv_reg_dmabuf_mr is EOPNOTSUPP");
	ok(ibv_rereg_mr((struct ibv_mr *)&(struct ibv_mr[2]){ { .context = &context } }, 0, NULL, NULL, 0, 0) == -1 &&
	   errno == EOPNOTSUPP, "ibv_rereg_mr is EOPNOTSUPP, and nothing was changed");
	must(rdmamr_get_stats(&stats, sizeof(stats)) == 0);
	is((long long)stats.reg_kernel, 0, "the library registered nothing");
	is((long long)stats.reg_next, 1 + have_iova, "the forwarded calls are counted");
	return done_testing();
}
