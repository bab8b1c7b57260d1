/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* libfabric's verbs provider with its registration cache, and the protection domain that it uses. */
#ifndef CTESTS_CACHED_H
#define CTESTS_CACHED_H

#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include "../../lib/pair.h"

extern struct fi_info *info;
extern struct fid_fabric *fabric;

/* The last protection domain that the provider has made: queue pairs on it can use its regions. */
extern struct ibv_pd *last_pd;

void open_fabric(void);
struct fid_domain *open_domain(void);

/* Registers with all rights; it must succeed. */
struct fid_mr *reg(struct fid_domain *domain, void *memory, size_t length);

#endif
