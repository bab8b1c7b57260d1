/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "cached.h"

struct fi_info *info;
struct fid_fabric *fabric;
struct ibv_pd *last_pd;

/* Found before libibverbs' function, to note the domain. */
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	static struct ibv_pd *(*next)(struct ibv_context *);

	if (!next)
		next = (struct ibv_pd * (*)(struct ibv_context *))dlvsym(RTLD_NEXT, "ibv_alloc_pd", "IBVERBS_1.1");
	must(next);
	last_pd = next(context);
	return last_pd;
}

void open_fabric(void)
{
	struct fi_info *hints = fi_allocinfo();

	must(hints && getenv("CHECK_ADDRESS"));
	hints->fabric_attr->prov_name = strdup("verbs");
	hints->mode = ~0ULL;
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	must(fi_getinfo(FI_VERSION(1, 17), getenv("CHECK_ADDRESS"), NULL, FI_SOURCE, hints, &info) == 0);
	fi_freeinfo(hints);
	must(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
}

struct fid_domain *open_domain(void)
{
	struct fid_domain *domain;

	must(fi_domain(fabric, info, &domain, NULL) == 0);
	return domain;
}

struct fid_mr *reg(struct fid_domain *domain, void *memory, size_t length)
{
	struct fid_mr *mr;

	must(fi_mr_reg(domain, memory, length, FI_SEND | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL) == 0);
	return mr;
}
