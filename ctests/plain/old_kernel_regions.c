/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * On a kernel before 5.0 (golden/old_kernel.c): regions by write(), and forwarded ones, with the
 * handles of the library's regions that ended elsewhere.
 */
#include "../lib/device.h"
#include <dlfcn.h>

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	int relaxed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	int (*handle_dereg_mr)(struct ibv_mr *);
	char *memory = pages(1);
	struct ibv_mr *mr;
	uint32_t handle;

	must(pd);
	*(void **)&handle_dereg_mr = dlvsym(dlopen("libibverbs.so.1", RTLD_NOW), "ibv_dereg_mr", "IBVERBS_1.1");
	must(handle_dereg_mr);

	mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(mr && stats().reg_kernel == 1, "registered by write()");
	is(ibv_dereg_mr(mr), 0, "deregistered by write()");

	mr = ibv_reg_mr(pd, memory, PAGE, relaxed);
	ok(mr && stats().reg_next == 1, "optional access flags are forwarded");
	is(ibv_dereg_mr(mr), 0, "and deregistered");
	is((long long)stats().dereg_next, 1, "by libibverbs");

	mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	handle = mr->handle;
	must(handle_dereg_mr(mr) == 0);
	ok(stats().live == 0 && stats().ended_elsewhere == 1, "one that was deregistered without the library counts as ended elsewhere");
	mr = ibv_reg_mr(pd, memory, PAGE, relaxed);
	must(mr);
	is(mr->handle, handle, "the next gets its handle, and is forwarded");
	ok(stats().live == 0 && stats().ended_elsewhere == 1, "it is not the library's");
	is(ibv_dereg_mr(mr), 0, "and that one is deregistered");
	is(kernel_regions(context), 0, "the kernel has none");
	is(ibv_dealloc_pd(pd), 0, "the domain");
	is(ibv_close_device(context), 0, "the device");
	return done_testing();
}
