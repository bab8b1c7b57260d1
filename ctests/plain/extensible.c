/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ibv_reg_mr_ex: the library's over plain memory, on any libibverbs. The structure is that of
 * rdma-core 59, declared here since older headers lack it.
 */
#include "../lib/device.h"
#include <dlfcn.h>

struct init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};
enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_FD_OFFSET = 8, MASK_DMAH = 16 };

static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct init_attr *);

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = pages(1);
	struct init_attr attr = { .length = 100, .access = LOCAL_AND_REMOTE, .comp_mask = MASK_ADDR, .addr = memory + 8 };
	struct ibv_mr *mr;

	*(void **)&reg_mr_ex = dlvsym(RTLD_DEFAULT, "ibv_reg_mr_ex", "IBVERBS_1.15");
	must(pd && reg_mr_ex);

	mr = reg_mr_ex(pd, &attr);
	ok(mr && mr->addr == memory + 8 && mr->length == 100, "plain memory, by address");
	is(mr ? ibv_dereg_mr(mr) : -1, 0, "deregistered");
	attr.comp_mask |= MASK_IOVA;
	attr.iova = 0x123456789008;
	mr = reg_mr_ex(pd, &attr);
	ok(mr && mr->addr == memory + 8, "plain memory, by another iova");
	is(mr ? ibv_dereg_mr(mr) : -1, 0, "deregistered");
	is((long long)stats().reg_kernel, 2, "the library made both");

	attr.iova = 0x10;
	errno = 0;
	mr = reg_mr_ex(pd, &attr);
	ok(!mr && errno == EINVAL, "an iova of another page offset is the kernel's EINVAL");
	ok(strstr(rdmamr_last_reason(), "must have the same offset") != NULL, "the reason: %s", rdmamr_last_reason());

	/* libibverbs decides about memory that is not plain. It may lack the call. */
	attr = (struct init_attr){ .length = PAGE, .access = 1, .comp_mask = MASK_FD | MASK_FD_OFFSET | MASK_IOVA, .fd = -1 };
	errno = 0;
	mr = reg_mr_ex(pd, &attr);
	ok(!mr && errno, "a file: %s", strerrorname_np(errno));
	attr = (struct init_attr){ .length = PAGE, .access = 1, .comp_mask = MASK_ADDR | MASK_DMAH, .addr = memory };
	errno = 0;
	mr = reg_mr_ex(pd, &attr);
	ok(!mr && errno, "an invalid DMA handle: %s", strerrorname_np(errno));
	errno = 0;
	ok(!reg_mr_ex(pd, NULL) && errno == EINVAL, "no attributes");
	attr.comp_mask = 1ull << 40;
	errno = 0;
	ok(!reg_mr_ex(pd, &attr) && errno, "unknown attributes: %s", strerrorname_np(errno));

	is((long long)stats().reg_kernel, 2, "the library made none of these");
	is((long long)stats().live, 0, "no region is left");
	is(ibv_dealloc_pd(pd), 0, "the domain");
	is(ibv_close_device(context), 0, "the device");
	return done_testing();
}
