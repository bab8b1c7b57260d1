/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The library forwards regions of others to libibverbs. A second deregistration of its own region
 * is EINVAL; NULL is EINVAL.
 */
#include "../lib/device.h"
#include <dlfcn.h>

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);
	struct ibv_mr *(*foreign_reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	char *memory = pages(1);
	struct ibv_mr *mr, *null_mr;
	struct rdmamr_stats now;

	must(pd && handle);
	*(void **)&foreign_reg = dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	must(foreign_reg);

	mr = foreign_reg(pd, memory, PAGE, (uintptr_t)memory, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	is((long long)stats().reg_kernel, 0, "a region that libibverbs made is not the library's");
	is(ibv_dereg_mr(mr), 0, "and is deregistered");
	is((long long)stats().dereg_next, 1, "by libibverbs");

	/* The provider may lack these; if it has them, they go the same way. */
	null_mr = ibv_alloc_null_mr(pd);
	if (null_mr)
		is(ibv_dereg_mr(null_mr), 0, "a null region");
	else
		skip("a null region", "the device has none");
	mr = ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, IBV_ACCESS_LOCAL_WRITE);
	ok(!mr && (errno == EOPNOTSUPP || errno == EBADF), "a dma-buf is libibverbs' to refuse (%s)",
	   strerrorname_np(errno));

	mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	is(ibv_dealloc_pd(pd), EBUSY, "a domain with a region of ours is not deallocated");
	ok(strstr(rdmamr_last_reason(), "still has regions") != NULL, "the reason: %s", rdmamr_last_reason());
	is(ibv_dereg_mr(mr), 0, "a region of ours is deregistered");

	is(ibv_dereg_mr(NULL), EINVAL, "deregistering NULL");
	errno = 0;
	ok(!ibv_reg_mr_iova2(NULL, memory, PAGE, 0, 0) && errno == EINVAL, "registering for NULL");
	ok(strstr(rdmamr_last_reason(), "NULL") != NULL, "the reason: %s", rdmamr_last_reason());
	is(ibv_dealloc_pd(NULL), EINVAL, "deallocating NULL");
	is(ibv_close_device(NULL), EINVAL, "closing NULL");
	is(ibv_rereg_mr(NULL, 0, NULL, NULL, 0, 0), -1, "changing NULL");

	now = stats();
	is((long long)now.live, 0, "no region is left");
	is(kernel_regions(context), 0, "nor in the kernel");
	is(ibv_dealloc_pd(pd), 0, "the domain");
	is(ibv_close_device(context), 0, "the device");
	return done_testing();
}
