/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The argument of ibv_reg_mr_ex, struct ibv_mr_init_attr, which older headers lack. */
#ifndef CTESTS_INIT_ATTR_H
#define CTESTS_INIT_ATTR_H
#include <stddef.h>
#include <stdint.h>

struct init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah; /* the last field of rdma-core 59 */
	void *buffer; /* of 64 */
};
enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_FD_OFFSET = 8, MASK_DMAH = 16, MASK_BUF = 32 };

#endif
