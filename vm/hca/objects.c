// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ioctl objects, methods and attributes that providers have of their own: what mlx5 asks for
 * when it opens a device, and what ibv_import_device(), ibv_alloc_dm(), mlx5dv_reg_dmabuf_mr(),
 * mlx5dv_devx_umem_reg() and efadv_query_mr() pass. Without them these calls end in EPROTONOSUPPORT,
 * as mlx5's other objects (DEVX) do here.
 */
#include <linux/slab.h>
#include <rdma/efa-abi.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <rdma/uverbs_std_types.h>
#define UVERBS_MODULE_NAME rdmamr_hca
#include <rdma/uverbs_named_ioctl.h>
#include "hca.h"

/*
 * Doorbell pages, hw/mlx5/main.c: today's provider allocates them one by one
 * (MLX5_LIB_CAP_DYN_UAR), the first when it opens.
 */

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

/* What an import asks: hw/mlx5/main.c (the answer of alloc_ucontext again), std_types.c, dm.c. */
static int query_ucontext(struct ib_ucontext *context, struct uverbs_attr_bundle *attrs)
{
	const struct hca_driver *driver = hca_slot_of(context->device)->driver;

	return uverbs_copy_to_struct_or_zero(attrs, MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX,
					     driver->context, driver->context_size);
}

static int UVERBS_HANDLER(MLX5_IB_METHOD_PD_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_pd *pd = uverbs_attr_get_obj(attrs, MLX5_IB_ATTR_QUERY_PD_HANDLE);

	return uverbs_copy_to(attrs, MLX5_IB_ATTR_QUERY_PD_RESP_PDN,
			      &container_of(pd, struct hca_pd, ib)->number, sizeof(u32));
}

DECLARE_UVERBS_NAMED_METHOD(
	MLX5_IB_METHOD_PD_QUERY,
	UVERBS_ATTR_IDR(MLX5_IB_ATTR_QUERY_PD_HANDLE, UVERBS_OBJECT_PD, UVERBS_ACCESS_READ,
			UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, UVERBS_ATTR_TYPE(u32), UA_MANDATORY));

ADD_UVERBS_METHODS(hca_mlx5_pd, UVERBS_OBJECT_PD, &UVERBS_METHOD(MLX5_IB_METHOD_PD_QUERY));

static int UVERBS_HANDLER(MLX5_IB_METHOD_DM_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_dm *dm = uverbs_attr_get_obj(attrs, MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE);
	u64 offset = 0, length = dm->length;
	u16 page = 0;

	return uverbs_copy_to(attrs, MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, &page, sizeof(page)) ?:
	       uverbs_copy_to(attrs, MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, &offset, sizeof(offset)) ?:
	       uverbs_copy_to(attrs, MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, &length, sizeof(length));
}

DECLARE_UVERBS_NAMED_METHOD(
	MLX5_IB_METHOD_DM_QUERY,
	UVERBS_ATTR_IDR(MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, UVERBS_OBJECT_DM, UVERBS_ACCESS_READ,
			UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, UVERBS_ATTR_TYPE(u64),
			    UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, UVERBS_ATTR_TYPE(u16),
			    UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, UVERBS_ATTR_TYPE(u64), UA_MANDATORY));

ADD_UVERBS_METHODS(hca_mlx5_dm_query, UVERBS_OBJECT_DM, &UVERBS_METHOD(MLX5_IB_METHOD_DM_QUERY));

/* mlx5_ib_alloc_dmah(), hw/mlx5/dmah.c, 7.2: a processing hint, and both parts of a tag or none. */
HCA_SINCE_6_17(
	struct hca_dmah {
		struct ib_dmah ib;
	};

	static int alloc_dmah(struct ib_dmah *dmah, struct uverbs_attr_bundle *attrs) {
		const u32 tag = BIT(IB_DMAH_CPU_ID_EXISTS) | BIT(IB_DMAH_MEM_TYPE_EXISTS);
		u32 given = dmah->valid_fields;

		if (!(given & BIT(IB_DMAH_PH_EXISTS)) || ((given & tag) && (given & tag) != tag))
			return -EINVAL;
		return 0;
	}

	static int dealloc_dmah(struct ib_dmah *dmah, struct uverbs_attr_bundle *attrs) {
		return 0;
	}
)

const struct ib_device_ops hca_mlx5_ops = {
	.query_ucontext = query_ucontext,
	HCA_SINCE_6_17(.alloc_dmah = alloc_dmah, .dealloc_dmah = dealloc_dmah,
		       INIT_RDMA_OBJ_SIZE(ib_dmah, hca_dmah, ib),)
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

/* mlx5_ib_reg_user_mr_dmabuf(), hw/mlx5/mr.c, 6.12 and 7.2: this device has no DATA_DIRECT. */
HCA_SINCE_6_12(
	ADD_UVERBS_ATTRIBUTES_SIMPLE(
		hca_mlx5_dmabuf, UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR,
		UVERBS_ATTR_FLAGS_IN(MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
				     enum mlx5_ib_uapi_reg_dmabuf_flags, UA_OPTIONAL));

	int hca_mlx5_check_dmabuf(struct uverbs_attr_bundle *attrs, u64 iova) {
		u32 flags = 0;
		int error = 0;

		if (uverbs_attr_is_valid(attrs, MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS))
			error = uverbs_get_flags32(&flags, attrs,
						   MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
						   MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT);
		if (!error && flags)
			error = PAGE_ALIGNED(iova) ? -EINVAL : -EOPNOTSUPP;
		return error;
	}
)

/*
 * devx_umem_get(), hw/mlx5/devx.c, all: memory that is pinned for the device without a key. A
 * dma-buf is pinned where it is.
 */
static int free_devx_umem(struct ib_uobject *object, enum rdma_remove_reason why,
			  struct uverbs_attr_bundle *attrs)
{
	struct ib_umem *umem = object->object;

	hca_say(hca_slot_of(umem->ibdev), "devx_umem_dereg start=%#lx", umem->address);
	ib_umem_release(umem);
	return 0;
}

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_UMEM_REG)(struct uverbs_attr_bundle *attrs)
{
	struct ib_uobject *object =
		uverbs_attr_get_uobject(attrs, MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE);
	struct ib_ucontext *context = ib_uverbs_get_ucontext(attrs);
	struct hca_request request = { .verb = HCA_devx_umem_reg, .fd = -1 };
	struct hca_slot *slot;
	struct ib_umem *umem;
	u32 id;
	int error;

	if (IS_ERR(context))
		return PTR_ERR(context);
	slot = hca_slot_of(context->device);
	error = hca_injected(slot, HCA_devx_umem_reg) ?:
		uverbs_get_flags32(&request.access, attrs, MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS,
				   IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
				   IB_ACCESS_REMOTE_READ | IB_ACCESS_RELAXED_ORDERING) ?:
		uverbs_copy_from(&request.start, attrs, MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR) ?:
		uverbs_copy_from(&request.length, attrs, MLX5_IB_ATTR_DEVX_UMEM_REG_LEN) ?:
		ib_check_mr_access(context->device, request.access);
	if (!error && uverbs_attr_is_valid(attrs, MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD))
		error = uverbs_get_raw_fd(&request.fd, attrs, MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD);
	umem = error ? ERR_PTR(error) : hca_pin(context->device, &request);
	hca_say_request(slot, &request, PTR_ERR_OR_ZERO(umem), 0, 0);
	if (IS_ERR(umem))
		return PTR_ERR(umem);
	object->object = umem;
	id = atomic_inc_return(&slot->next_number);
	uverbs_finalize_uobj_create(attrs, MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE);
	return uverbs_copy_to(attrs, MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, &id, sizeof(id));
}

DECLARE_UVERBS_NAMED_METHOD(
	MLX5_IB_METHOD_DEVX_UMEM_REG,
	UVERBS_ATTR_IDR(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, MLX5_IB_OBJECT_DEVX_UMEM,
			UVERBS_ACCESS_NEW, UA_MANDATORY),
	UVERBS_ATTR_PTR_IN(MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR, UVERBS_ATTR_TYPE(u64), UA_MANDATORY),
	UVERBS_ATTR_PTR_IN(MLX5_IB_ATTR_DEVX_UMEM_REG_LEN, UVERBS_ATTR_TYPE(u64), UA_MANDATORY),
	UVERBS_ATTR_RAW_FD(MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD, UA_OPTIONAL),
	UVERBS_ATTR_FLAGS_IN(MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS, enum ib_access_flags),
	UVERBS_ATTR_CONST_IN(MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP, u64),
	UVERBS_ATTR_PTR_OUT(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, UVERBS_ATTR_TYPE(u32), UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD_DESTROY(
	MLX5_IB_METHOD_DEVX_UMEM_DEREG,
	UVERBS_ATTR_IDR(MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE, MLX5_IB_OBJECT_DEVX_UMEM,
			UVERBS_ACCESS_DESTROY, UA_MANDATORY));

DECLARE_UVERBS_NAMED_OBJECT(MLX5_IB_OBJECT_DEVX_UMEM, UVERBS_TYPE_ALLOC_IDR(free_devx_umem),
			    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_UMEM_REG),
			    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_UMEM_DEREG));

const struct uapi_definition hca_mlx5_objects[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &hca_mlx5_query_context),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_PD, &hca_mlx5_pd),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &hca_mlx5_dm),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &hca_mlx5_dm_query),
	HCA_SINCE_6_12(UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &hca_mlx5_dmabuf),)
	UAPI_DEF_CHAIN_OBJ_TREE_NAMED(MLX5_IB_OBJECT_UAR),
	UAPI_DEF_CHAIN_OBJ_TREE_NAMED(MLX5_IB_OBJECT_DEVX_UMEM),
	{}
};

/* efadv_query_mr(), hw/efa/efa_verbs.c, 6.12 and 7.2: a device that has no numbers to tell. */
HCA_SINCE_6_12(
	static int UVERBS_HANDLER(EFA_IB_METHOD_MR_QUERY)(struct uverbs_attr_bundle *attrs) {
		u16 nothing = 0;

		return uverbs_copy_to(attrs, EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, &nothing,
				      sizeof(nothing)) ?:
		       uverbs_copy_to(attrs, EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID, &nothing,
				      sizeof(nothing)) ?:
		       uverbs_copy_to(attrs, EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID, &nothing,
				      sizeof(nothing)) ?:
		       uverbs_copy_to(attrs, EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY, &nothing,
				      sizeof(nothing));
	}

	DECLARE_UVERBS_NAMED_METHOD(
		EFA_IB_METHOD_MR_QUERY,
		UVERBS_ATTR_IDR(EFA_IB_ATTR_QUERY_MR_HANDLE, UVERBS_OBJECT_MR, UVERBS_ACCESS_READ,
				UA_MANDATORY),
		UVERBS_ATTR_PTR_OUT(EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY,
				    UVERBS_ATTR_TYPE(u16), UA_MANDATORY),
		UVERBS_ATTR_PTR_OUT(EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, UVERBS_ATTR_TYPE(u16),
				    UA_MANDATORY),
		UVERBS_ATTR_PTR_OUT(EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID,
				    UVERBS_ATTR_TYPE(u16), UA_MANDATORY),
		UVERBS_ATTR_PTR_OUT(EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID,
				    UVERBS_ATTR_TYPE(u16), UA_MANDATORY));

	DECLARE_UVERBS_GLOBAL_METHODS(UVERBS_OBJECT_MR, &UVERBS_METHOD(EFA_IB_METHOD_MR_QUERY));
)

const struct uapi_definition hca_efa_objects[] = {
	HCA_SINCE_6_12(UAPI_DEF_CHAIN_OBJ_TREE_NAMED(UVERBS_OBJECT_MR),)
	{}
};
