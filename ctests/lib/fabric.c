/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "fabric.h"

const struct kind kinds[KINDS] = {
	{ "provider keys", FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, 0, true, true, false },
	{ "own keys and offsets", 0, 0, false, false, false },
	{ "own keys and virtual addresses", FI_MR_VIRT_ADDR, 0, false, true, false },
	{ "relaxed, provider keys", FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, RDMAMR_DOMAIN_CACHE, true, true, true },
	{ "relaxed, own keys and offsets", 0, RDMAMR_DOMAIN_CACHE, false, false, true },
	{ "relaxed, own keys and virtual addresses", FI_MR_VIRT_ADDR, RDMAMR_DOMAIN_CACHE, false, true, true },
};

struct fid_domain *open_kind(struct ibv_pd *pd, const struct kind *kind)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof(attr), .api_version = FI_VERSION(1, 17), .mr_mode = kind->mr_mode, .flags = kind->flags,
	};
	struct fid_domain *domain = NULL;

	must(rdmamr_domain_open(pd, &attr, &domain, NULL) == 0 && domain);
	return domain;
}

uint64_t base_of(const struct kind *kind, const void *buf)
{
	return kind->virtual_addresses ? (uintptr_t)buf : 0;
}

const struct ibv_mr *with_lkey(uint32_t lkey)
{
	static struct ibv_mr mrs[8];
	static unsigned int next;
	struct ibv_mr *mr = &mrs[next++ % 8];

	mr->lkey = lkey;
	return mr;
}

struct rdmamr_segment resolved(struct fid_domain *domain, uint64_t key, uint64_t at, size_t length)
{
	struct rdmamr_segment segment = { 0 };
	size_t count = 1;
	int ret = rdmamr_resolve(domain, key, at, length, &segment, &count);

	if (ret || count != 1)
		printf("# rdmamr_resolve: %d, %zu segments\n", ret, count);
	must(!ret && count == 1 && segment.length == length);
	return segment;
}
