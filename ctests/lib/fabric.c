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

void *exported(const char *name)
{
	void *function = dlsym(RTLD_DEFAULT, name);

	if (!function)
		printf("# no function %s\n", name);
	must(function);
	return function;
}

int open_with(struct ibv_pd *pd, uint32_t api_version, int32_t mr_mode, uint64_t flags,
	      struct fid_domain **domain)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof(attr),
		.api_version = api_version,
		.mr_mode = mr_mode,
		.flags = flags,
	};

	return rdmamr_domain_open(pd, &attr, domain, NULL);
}

struct fid_domain *open_kind(struct ibv_pd *pd, const struct kind *kind)
{
	struct fid_domain *domain = NULL;

	must(open_with(pd, FI_VERSION(1, 17), kind->mr_mode, kind->flags, &domain) == 0 && domain);
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

int peer_moves(struct pair *pair, enum ibv_wr_opcode opcode, struct fid_domain *domain, uint64_t key,
	       uint64_t at, const struct ibv_mr *local, char *memory, size_t length)
{
	struct rdmamr_segment segments[RDMAMR_MR_IOV_LIMIT];
	size_t count = RDMAMR_MR_IOV_LIMIT, sum = 0;
	int status = -1, ret = rdmamr_resolve(domain, key, at, length, segments, &count);

	if (ret) {
		printf("# rdmamr_resolve: %d, %s\n", ret, rdmamr_last_reason());
		return -1;
	}
	for (size_t n = 0; n < count; n++) {
		struct rdmamr_segment *to = &segments[n];

		if (sum + to->length > length)
			return -1;
		status = opcode == IBV_WR_RDMA_READ ?
			pair_read(pair, local, memory + sum, to->length, to->addr, to->rkey) :
			pair_write(pair, local, memory + sum, to->length, to->addr, to->rkey);
		if (status != IBV_WC_SUCCESS) {
			/* The kernel flushes each request behind a failed one. */
			if (status != IBV_WC_WR_FLUSH_ERR)
				printf("# segment %zu of %zu: %s\n", n, count,
				       status < 0 ? "no answer" : ibv_wc_status_str((enum ibv_wc_status)status));
			return status;
		}
		sum += to->length;
	}
	return sum == length ? status : -1;
}

void moved(struct pair *pair, int status, const char *format, ...)
{
	char name[300];
	va_list args;

	va_start(args, format);
	vsnprintf(name, sizeof(name), format, args);
	va_end(args);
	if (!is(status, IBV_WC_SUCCESS, "%s", name))
		pair_reconnect(pair);
}
