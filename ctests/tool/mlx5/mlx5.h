/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What libmlx5 has and some of its headers lack, and what the stand-in for it adds. */
#ifndef MLX5_H
#define MLX5_H

#include <infiniband/mlx5dv.h>

struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
				    int mlx5_access);

/* Device 0, which this libmlx5 has opened, and 1, which it has not: another driver's. */
struct ibv_context *stand_in_device(int number);
/* What the last call was asked, with all arguments. */
const char *stand_in_said(void);

#endif
