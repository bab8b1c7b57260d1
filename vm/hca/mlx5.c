// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ioctl objects and attributes that mlx5's provider has of its own: doorbell pages, without
 * which it does not open a device as it does today's (MLX5_IB_OBJECT_UAR, hw/mlx5/main.c), and what
 * ibv_import_device(), ibv_alloc_dm() and mlx5dv_reg_dmabuf_mr() pass.
 */
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <rdma/uverbs_std_types.h>
#define UVERBS_MODULE_NAME rdmamr_hca
#include <rdma/uverbs_named_ioctl.h>
#include "hca.h"

static int free_uar(struct ib_uobject *object, enum rdma_remove_reason why,
		    struct uverbs_attr_bundle *attrs)
{
	return 0;
}

static int UVERBS_HANDLER(MLX5_IB_METHOD_UAR_OBJ_ALLOC)(struct uverbs_attr_bundle *attrs)
{
	struct ib_uobject *object =
		uverbs_attr_get_uobject(attrs, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
	struct ib_ucontext *context = ib_uverbs_get_ucontext(attrs);
	u64 offset = 0;
	u32 length = PAGE_SIZE, page = 0;

	if (IS_ERR(context))
		return PTR_ERR(context);
	object->object = hca_slot_of(context->device);
	uverbs_finalize_uobj_create(attrs, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
	return uverbs_copy_to(attrs, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &offset, sizeof(offset)) ?:
	       uverbs_copy_to(attrs, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &page, sizeof(page)) ?:
	       uverbs_copy_to(attrs, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &length, sizeof(length));
}

DECLARE_UVERBS_NAMED_METHOD(
	MLX5_IB_METHOD_UAR_OBJ_ALLOC,
	UVERBS_ATTR_IDR(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, MLX5_IB_OBJECT_UAR, UVERBS_ACCESS_NEW,
			UA_MANDATORY),
	UVERBS_ATTR_CONST_IN(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, enum mlx5_ib_uapi_uar_alloc_type,
			     UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, UVERBS_ATTR_TYPE(u32), UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, UVERBS_ATTR_TYPE(u32),
			    UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, UVERBS_ATTR_TYPE(u64),
			    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD_DESTROY(
	MLX5_IB_METHOD_UAR_OBJ_DESTROY,
	UVERBS_ATTR_IDR(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, MLX5_IB_OBJECT_UAR,
			UVERBS_ACCESS_DESTROY, UA_MANDATORY));

DECLARE_UVERBS_NAMED_OBJECT(MLX5_IB_OBJECT_UAR, UVERBS_TYPE_ALLOC_IDR(free_uar),
			    &UVERBS_METHOD(MLX5_IB_METHOD_UAR_OBJ_ALLOC),
			    &UVERBS_METHOD(MLX5_IB_METHOD_UAR_OBJ_DESTROY));

ADD_UVERBS_ATTRIBUTES_SIMPLE(
	hca_mlx5_query_context, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT,
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX,
			    UVERBS_ATTR_STRUCT(struct mlx5_ib_alloc_ucontext_resp, dump_fill_mkey),
			    UA_MANDATORY));

/* mlx5_ib_query_ucontext(), hw/mlx5/main.c: the answer of alloc_ucontext again. */
static int query_ucontext(struct ib_ucontext *context, struct uverbs_attr_bundle *attrs)
{
	const struct hca_driver *driver = hca_slot_of(context->device)->driver;

	return uverbs_copy_to_struct_or_zero(attrs, MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX,
					     driver->context, driver->context_size);
}

const struct ib_device_ops hca_mlx5_ops = {
	.query_ucontext = query_ucontext,
};

ADD_UVERBS_ATTRIBUTES_SIMPLE(
	hca_mlx5_dm, UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC,
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, UVERBS_ATTR_TYPE(u64),
			    UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, UVERBS_ATTR_TYPE(u16),
			    UA_OPTIONAL),
	UVERBS_ATTR_CONST_IN(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, enum mlx5_ib_uapi_dm_type,
			     UA_OPTIONAL));

/* handle_alloc_dm_memic(), hw/mlx5/dm.c: memory for data alone, none for steering. */
int hca_mlx5_answer_dm(struct uverbs_attr_bundle *attrs)
{
	enum mlx5_ib_uapi_dm_type type;
	u64 offset = 0;
	u16 page = 0;
	int error = uverbs_get_const_default(&type, attrs, MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE,
					     MLX5_IB_UAPI_DM_TYPE_MEMIC);

	if (!error && type != MLX5_IB_UAPI_DM_TYPE_MEMIC)
		error = -EOPNOTSUPP;
	return error ?:
	       uverbs_copy_to(attrs, MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, &page, sizeof(page)) ?:
	       uverbs_copy_to(attrs, MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, &offset, sizeof(offset));
}

const struct uapi_definition hca_mlx5_objects[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &hca_mlx5_query_context),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &hca_mlx5_dm),
	UAPI_DEF_CHAIN_OBJ_TREE_NAMED(MLX5_IB_OBJECT_UAR),
	{}
};
