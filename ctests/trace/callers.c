/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls whose arguments fill the registers, and those through the tables of libfabric's objects: each from a function
 * of its own, which the report must name. Compiled with libfabric's inline functions, and with the library's symbols.
 */
#include "../fabric/fabric.h"

#define FROM_HERE __attribute__((noinline, noclone)) static

static struct ibv_pd *pd;
static char *memory;

/* Some devices can do neither: a call that fails has a caller as well. */
FROM_HERE void changes(struct ibv_mr *mr)
{
	int code = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0);

	printf("# ibv_rereg_mr: %d\n", code);
}

FROM_HERE void shares(void)
{
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, PAGE, 0x5000, -1, IBV_ACCESS_LOCAL_WRITE);

	must(!mr);
}

FROM_HERE struct fid_mr *registers(struct fid_domain *domain, uint64_t access, uint64_t key)
{
	struct fid_mr *mr = NULL;
	int context, code = fi_mr_reg(domain, memory, 3 * PAGE, access, 0, key, 0, &mr, &context);

	must(!code == !!access);
	if (mr)
		must(mr->fid.context == &context && fi_mr_key(mr) == key && fi_mr_desc(mr));
	return mr;
}

FROM_HERE struct fid_mr *gathers(struct fid_domain *domain, uint64_t key)
{
	struct iovec iov[] = { { memory, PAGE }, { memory + 2 * PAGE, PAGE } };
	struct fid_mr *mr = NULL;
	int context;

	must(fi_mr_regv(domain, iov, 2, FI_ALL, 0, key, 0, &mr, &context) == 0 && mr);
	must(mr->fid.context == &context && fi_mr_key(mr) == key);
	return mr;
}

FROM_HERE struct fid_mr *describes(struct fid_domain *domain, uint64_t key)
{
	struct iovec iov = { memory, PAGE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = FI_LOCAL, .requested_key = key };
	struct fid_mr *mr = NULL;

	must(fi_mr_regattr(domain, &attr, 0, &mr) == 0 && mr);
	return mr;
}

FROM_HERE void closes(struct fid_mr *mr)
{
	int code = fi_close(&mr->fid);

	must(code == 0);
}

int main(void)
{
	struct fid_domain *domain;
	struct ibv_mr *mr;

	pd = ibv_alloc_pd(open_device());
	must(pd);
	memory = pages(4);
	mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	changes(mr);
	shares();
	for (int kind = 0; kind < KINDS; kind++) {
		if (kinds[kind].provider_keys)
			continue;
		domain = open_kind(pd, &kinds[kind]);
		must(!registers(domain, 0, 1));
		closes(registers(domain, FI_ALL, 7));
		closes(gathers(domain, 8));
		closes(describes(domain, 9));
		must(fi_close(&domain->fid) == 0);
	}
	must(ibv_dereg_mr(mr) == 0);
	return 0;
}
