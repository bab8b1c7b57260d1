/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* include/rdmamr/verbs.h as of 0.1, without its comments. */
#ifndef RDMAMR_VERBS_H
#define RDMAMR_VERBS_H 
#include <infiniband/verbs.h>
#ifdef __cplusplus
extern "C" {
#endif
struct ibv_mr *ibv_reg_mr_relaxed(struct ibv_pd *pd,
                                  void *addr,
                                  size_t length,
                                  int access);
int ibv_dereg_mr_relaxed(struct ibv_mr *mr);
int ibv_flush_relaxed_mr(struct ibv_pd *pd);
#ifdef __cplusplus
}
#endif
#endif
