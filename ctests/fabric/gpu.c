/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory of a GPU by fi_mr_reg and fi_mr_regattr: in a domain of libfabric's provider verbs, and in every
 * kind of domain of this library. Data goes through the region by its keys. Without the library the
 * provider says -FI_EFAULT.
 *
 * The device is one of vm/hca. The GPU's runtime is a stand-in (plain/gpu_runtime.c), named by CHECK_GPU.
 */
#include "common.h"
#include "../lib/gpu.h"
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

enum { SIZE = 2 << 20, SKEW = PAGE + 100 };

static int make(enum reg_call call, struct fid_domain *domain, uint64_t at, size_t length, uint64_t key, struct fid_mr **mr)
{
	struct iovec iov = { (void *)at, length };
	struct fi_mr_attr attr = {
		.mr_iov = &iov,
		.iov_count = 1,
		.access = FI_ALL,
		.requested_key = key,
		.iface = gpu.is_cuda ? FI_HMEM_CUDA : FI_HMEM_ROCR,
		.device.cuda = gpu.is_cuda ? 3 : 0,
	};

	return call == REGATTR ? fi_mr_regattr(domain, &attr, 0, mr) :
				 make_region(call, domain, &iov, 1, FI_ALL, 0, key, 0, mr, NULL);
}

/* Whether data lands at both ends of a region. */
static bool lands(uint32_t key, uint64_t iova, uint64_t at, size_t length, bool remote)
{
	return gpu_lands(key, iova, at, remote) && gpu_lands(key, iova + length - GPU_SHOWN, at + length - GPU_SHOWN, remote);
}

/* With FI_HMEM in `caps` the kind of memory that the attributes name counts, and else it does not. */
static void of_verbs(const char *device, uint64_t caps, uint64_t at)
{
	const char *name = caps ? "verbs with FI_HMEM" : "verbs";
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	struct fid_fabric *fabric = NULL;
	struct fid_domain *domain = NULL;
	struct fid_mr *mr = NULL;

	must(hints);
	hints->fabric_attr->prov_name = strdup("verbs");
	hints->domain_attr->name = strdup(device);
	hints->caps = FI_MSG | FI_RMA | caps;
	hints->mode = ~0ULL;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_HMEM;
	must(!fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	about("%s", name);
	ok(!strcmp(info->domain_attr->name, device) && (info->caps & caps) == caps, "libfabric has a domain of the device");
	must(!fi_fabric(info->fabric_attr, &fabric, NULL) && !fi_domain(fabric, info, &domain, NULL));
	for (enum reg_call call = REG; call < CALLS; call++) {
		int ret = make(call, domain, at, SIZE, 0, &mr);

		about("%s, %s", name, calls[call]);
		/* Then the provider exports the memory itself. It makes no call of libibverbs. */
		if (caps && ret == -FI_ENOSYS) {
			printf("# %s, %s: -FI_ENOSYS, since this libfabric is built without the GPU's runtime\n", name, calls[call]);
			continue;
		}
		if (!rdmamr_domain_open) {
			is(ret, -FI_EFAULT, "without the library -FI_EFAULT");
			continue;
		}
		if (!is(ret, 0, "registered"))
			continue;
		/* The desc is the provider's secret. With mlx5 a region's two keys are the same number. */
		ok(lands((uint32_t)fi_mr_key(mr), at, at, SIZE, false), "data by its lkey");
		ok(lands((uint32_t)fi_mr_key(mr), at, at, SIZE, true), "data by its key");
		is(fi_close(&mr->fid), 0, "closed");
	}
	fi_close(&domain->fid);
	fi_close(&fabric->fid);
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

static void of_ours(struct ibv_pd *pd, const struct kind *kind, uint64_t at)
{
	struct fid_domain *domain = open_kind(pd, kind);
	struct rdmamr_segment segment;
	struct fid_mr *mr = NULL;

	for (enum reg_call call = REG; call < CALLS; call++) {
		about("%s, %s", kind->name, calls[call]);
		if (!is(make(call, domain, at + SKEW, SIZE / 2, 0x77, &mr), 0, "registered"))
			continue;
		ok(lands((uint32_t)(uintptr_t)fi_mr_desc(mr), at + SKEW, at + SKEW, SIZE / 2, false), "data by its desc");
		segment = resolved(domain, fi_mr_key(mr), kind->virtual_addresses ? at + SKEW : 0, SIZE / 2);
		ok(lands(segment.rkey, segment.addr, at + SKEW, SIZE / 2, true), "data by its key");
		is(fi_close(&mr->fid), 0, "closed");
	}
	about("%s", kind->name);
	is(fi_close(&domain->fid), 0, "the domain is closed");
}

int main(void)
{
	const char *device = gpu_begin(), *setting = getenv("RDMAMR_GPU");
	uint64_t at = gpu.allocate(GPU_PLAIN, SIZE);
	struct fid_domain *domain;
	struct fid_mr *mr = NULL;
	struct ibv_pd *pd;

	must(at);
	if (!rdmamr_domain_open) {
		of_verbs(device, 0, at);
		of_verbs(device, FI_HMEM, at);
		return done_testing();
	}
	pd = domain_of_device();
	if (setting && !strcmp(setting, "off")) {
		domain = open_kind(pd, &kinds[PROVIDER_KEYS]);
		for (enum reg_call call = REG; call < CALLS; call++) {
			is(make(call, domain, at, SIZE, 0, &mr), -FI_EFAULT, "switched off, %s: -FI_EFAULT", calls[call]);
			ok(strstr(rdmamr_last_reason(), "RDMAMR_GPU=off") != NULL, "%s", rdmamr_last_reason());
		}
		return done_testing();
	}
	of_verbs(device, 0, at);
	of_verbs(device, FI_HMEM, at);
	for (int kind = 0; kind < KINDS; kind++)
		of_ours(pd, &kinds[kind], at);
	about("%s", "");
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
