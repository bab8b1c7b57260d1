/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The types and prototypes of include/rdmamr/verbs.h as of 0.1. */
#pragma once
#include <infiniband/verbs.h>
struct ibv_mr *ibv_reg_mr_relaxed(struct ibv_pd *pd, void *addr, size_t length, int access);
int ibv_dereg_mr_relaxed(struct ibv_mr *mr);
int ibv_flush_relaxed_mr(struct ibv_pd *pd);
