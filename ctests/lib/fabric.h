/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The fabric family, by libfabric's inline functions or, with RDMAMR_NO_LIBFABRIC, by the library's symbols. */
#ifndef CTESTS_FABRIC_H
#define CTESTS_FABRIC_H

#include <rdmamr/fi_mr.h>
#include <dlfcn.h>
#include <sys/uio.h>
#include "pair.h"

/* The library is preloaded; a program without libfabric (BUILD: alone) is linked to it. */
#pragma weak rdmamr_domain_open
#pragma weak rdmamr_eq_open
#pragma weak rdmamr_resolve
#pragma weak rdmamr_mr_segments

/* All rights, local ones, remote ones. */
#define FI_ALL (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define FI_LOCAL (FI_SEND | FI_RECV | FI_READ | FI_WRITE)
#define FI_REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)

/* An address that this process never maps. */
#define NOWHERE ((char *)((uintptr_t)1 << 44))

/* The keys and addresses that a domain can have. */
enum { PROVIDER_KEYS, OFFSETS, VIRTUAL_ADDRESSES, PLAIN_KINDS, KINDS = 6 };
extern const struct kind {
	const char *name;
	int32_t mr_mode;
	uint64_t flags;
	bool provider_keys, virtual_addresses, relaxed;
} kinds[KINDS];

struct fid_domain *open_kind(struct ibv_pd *pd, const struct kind *kind);

/* The address by which remote peers access the first byte of a buffer. */
uint64_t base_of(const struct kind *kind, const void *buf);

/* A region for the transfers of pair.h, which read its lkey only. */
const struct ibv_mr *with_lkey(uint32_t lkey);

/* The segment of a range that is one segment. */
struct rdmamr_segment resolved(struct fid_domain *domain, uint64_t key, uint64_t at, size_t length);

/* The functions below are inline: they call libfabric's functions in the way of the program. */

/* Checks which of the two ways this program uses. First in main. */
static inline void fabric_begin(void)
{
	must(rdmamr_domain_open && rdmamr_eq_open && rdmamr_resolve && rdmamr_mr_segments);
#ifdef RDMAMR_NO_LIBFABRIC
	ok((void *)fi_mr_reg == dlsym(RTLD_DEFAULT, "fi_mr_reg") &&
	   (void *)fi_eq_read == dlsym(RTLD_DEFAULT, "fi_eq_read"), "the calls are the library's functions");
#else
	ok((void *)fi_mr_reg != dlsym(RTLD_DEFAULT, "fi_mr_reg") &&
	   (void *)fi_eq_read != dlsym(RTLD_DEFAULT, "fi_eq_read"), "the calls are libfabric's inline functions");
#endif
}

/* A region without which the test means nothing. */
static inline struct fid_mr *region(struct fid_domain *domain, const void *buf, size_t length, uint64_t access,
				    uint64_t key)
{
	struct fid_mr *mr = NULL;
	int ret = fi_mr_reg(domain, buf, length, access, 0, key, 0, &mr, NULL);

	if (ret)
		printf("# fi_mr_reg: %d, %s\n", ret, rdmamr_last_reason());
	must(!ret && mr);
	return mr;
}

static inline const struct ibv_mr *with_desc(struct fid_mr *mr)
{
	return with_lkey((uint32_t)(uintptr_t)fi_mr_desc(mr));
}

#endif
