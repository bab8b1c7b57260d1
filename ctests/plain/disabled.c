/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* With RDMAMR_DISABLE=1 libibverbs serves every call. */
#include "../lib/pair.h"

int main(void)
{
	struct pair pair;
	char *local = pages(1), *remote = pages(1);
	struct ibv_mr *source, *target;

	must(getenv("RDMAMR_DISABLE"));
	pair_open(&pair);
	source = ibv_reg_mr(pair.pd, local, PAGE, IBV_ACCESS_LOCAL_WRITE);
	target = ibv_reg_mr_iova2(pair.pd, remote, PAGE, (uintptr_t)remote, LOCAL_AND_REMOTE | IBV_ACCESS_RELAXED_ORDERING);
	must(source && target);
	strcpy(local, "forwarded");
	is(pair_write(&pair, source, local, PAGE, (uintptr_t)remote, target->rkey), IBV_WC_SUCCESS, "data moves");
	ok(!strcmp(remote, "forwarded"), "and is there");
	ok(!ibv_reg_mr(pair.pd, NULL, PAGE, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT, "errno is the kernel's");
	ok(strstr(rdmamr_last_reason(), "EFAULT from libibverbs: nothing is mapped") != NULL, "the reason: %s",
	   rdmamr_last_reason());
	is(ibv_dereg_mr(source), 0, "deregistered");
	is(ibv_dereg_mr(target), 0, "deregistered");
	is((long long)(stats().reg_kernel + stats().dereg_kernel + stats().live), 0, "the library registered nothing");
	is((long long)stats().reg_next, 2, "all registrations were forwarded");
	is((long long)stats().dereg_next, 2, "all deregistrations were forwarded");
	pair_close(&pair);
	return done_testing();
}
