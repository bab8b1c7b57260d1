/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The calls of <infiniband/mlx5dv.h> that register memory, of which some headers have not all, and
 * what the stand-in for libmlx5 adds to them.
 */
#ifndef MLX5_H
#define MLX5_H

#include <infiniband/verbs.h>

enum { UMEM_OF_DMABUF = 1 };

struct mlx5dv_devx_umem {
	uint32_t umem_id;
};

struct mlx5dv_devx_umem_in {
	void *addr;
	size_t size;
	uint32_t access;
	uint64_t pgsz_bitmap;
	uint64_t comp_mask;
	int dmabuf_fd;
};

struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
				    int mlx5_access);
struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *addr, size_t size, uint32_t access);
struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *context, struct mlx5dv_devx_umem_in *umem_in);
int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem);

/* The device that this libmlx5 has opened, and one that it has not: another driver's. */
struct ibv_context *stand_in_device(void);
struct ibv_context *stand_in_other_device(void);
/* What the last call was asked, with all arguments. */
const char *stand_in_said(void);

#endif
