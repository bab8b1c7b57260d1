/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Stands in for libmlx5, at its nodes: registers nothing, and says what it was asked. As the real
 * one it refuses devices that it has not opened, sets no errno when a call succeeds, and none when a
 * deregistration fails. LIBIBVERBS is the libibverbs that it is linked to: its device has a
 * function of that one, as libibverbs leaves one in each device.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include "mlx5.h"

struct umem {
	struct mlx5dv_devx_umem public;
	struct ibv_context *context;
	bool is_live;
};

static struct verbs_context devices[2];
static char said[256];

struct ibv_context *stand_in_device(int number)
{
	struct verbs_context *context = &devices[number];

	context->sz = sizeof(*context);
	context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->context.cmd_fd = -1;
	*(void **)&context->create_cq_ex = dlsym(dlopen(LIBIBVERBS, RTLD_NOW | RTLD_NOLOAD), "ibv_node_type_str");
	return &context->context;
}

const char *stand_in_said(void)
{
	return said;
}

int mlx5dv_query_device(struct ibv_context *context, struct mlx5dv_context *attributes)
{
	(void)context;
	(void)attributes;
	return ENOTSUP;
}

/* The first free one: an address comes back at once. */
static struct mlx5dv_devx_umem *registered(struct ibv_context *context, size_t size)
{
	static struct umem umems[8];
	struct umem *umem = umems;

	if (context != &devices[0].context || size == 0) {
		errno = size ? EOPNOTSUPP : EINVAL;
		return NULL;
	}
	while (umem->is_live)
		umem++;
	*umem = (struct umem){ .public.umem_id = (uint32_t)(umem - umems), .context = context, .is_live = true };
	return &umem->public;
}

struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *addr, size_t size, uint32_t access)
{
	snprintf(said, sizeof(said), "reg %d %p %zu %#x", context == &devices[0].context, addr, size, access);
	if (access & IBV_ACCESS_MW_BIND) {
		errno = ENOMEM;
		return NULL;
	}
	return registered(context, size);
}

struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *context, struct mlx5dv_devx_umem_in *in)
{
	snprintf(said, sizeof(said), "reg_ex %d %p %zu %#x %#lx %#lx %d", context == &devices[0].context, in->addr, in->size,
		 in->access, in->pgsz_bitmap, in->comp_mask, in->dmabuf_fd);
	return registered(context, in->size);
}

int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *public)
{
	struct umem *umem = (struct umem *)public;

	if (umem->context != &devices[0].context)
		return EOPNOTSUPP;
	snprintf(said, sizeof(said), "dereg %u", public->umem_id);
	if (!umem->is_live)
		return EBUSY;
	umem->is_live = false;
	return 0;
}

struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access,
				    int mlx5_access)
{
	static struct ibv_mr mr;

	snprintf(said, sizeof(said), "reg_dmabuf_mr %d %#lx %zu %#lx %d %#x %#x", pd->context == &devices[0].context, offset,
		 length, iova, fd, access, mlx5_access);
	if (pd->context != &devices[0].context) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .length = length, .handle = 9, .lkey = 0x500 };
	return &mr;
}
