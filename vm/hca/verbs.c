// SPDX-License-Identifier: GPL-2.0-only
/* Contexts, protection domains, queues, mappings: as much of them as the providers ask for. */
#include <linux/mm.h>
#include <linux/module.h>
#include <rdma/ib_cache.h>
#include "hca.h"

struct hca_ucontext {
	struct ib_ucontext ib;
};

struct hca_cq {
	struct ib_cq ib;
};

struct hca_qp {
	struct ib_qp ib;
	struct ib_qp_attr attr;
	struct ib_qp_init_attr init;
};

struct hca_srq {
	struct ib_srq ib;
	struct ib_srq_attr attr;
};

/* Shorter than what user space wants: the rest is 0. Longer: user space knows the beginning. */
int hca_answer(struct ib_udata *udata, const void *bytes, size_t size)
{
	if (!udata || !udata->outlen)
		return 0;
	if (clear_user(udata->outbuf, udata->outlen))
		return -EFAULT;
	return size ? ib_copy_to_udata(udata, (void *)bytes, min(size, udata->outlen)) : 0;
}

static int hca_alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	struct hca_slot *slot = hca_slot_of(context->device);
	int error = hca_injected(slot, HCA_alloc_ucontext) ?:
		    hca_answer(udata, slot->driver->context, slot->driver->context_size);

	hca_say_udata(slot, HCA_alloc_ucontext, udata, error);
	return error;
}

static void hca_dealloc_ucontext(struct ib_ucontext *context)
{
}

/*
 * With it a device goes although it is open, as on unplug; the driver needs to do nothing, since
 * the core ends all objects. Without it ib_unregister_device() waits until the device is closed:
 * so do efa, qedr, cxgb4, hfi1, qib, vmw_pvrdma, ocrdma and mthca on every kernel, and bnxt_re
 * and erdma (main.c, erdma_main.c) on 6.1. Here every device can go.
 */
static void hca_disassociate_ucontext(struct ib_ucontext *context)
{
}

static int hca_alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	struct hca_slot *slot = hca_slot_of(pd->device);
	u32 number = atomic_inc_return(&slot->next_number);
	u32 answer[2] = { number };
	int error = hca_injected(slot, HCA_alloc_pd);

	/* The number, then zeros. efa alone has a mask before it, and 16 bits of number (efa-abi.h). */
	if (slot->driver->id == RDMA_DRIVER_EFA) {
		answer[1] = number & 0xffff;
		answer[0] = 0;
	}
	container_of(pd, struct hca_pd, ib)->number = number;
	error = error ?: hca_answer(udata, answer, sizeof(answer));
	hca_say_udata(slot, HCA_alloc_pd, udata, error);
	return error;
}

static int hca_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	struct hca_slot *slot = hca_slot_of(pd->device);
	int error = hca_injected(slot, HCA_dealloc_pd);

	hca_say_udata(slot, HCA_dealloc_pd, udata, error);
	return error;
}

static int hca_query_device(struct ib_device *device, struct ib_device_attr *attr,
			    struct ib_udata *udata)
{
	struct hca_slot *slot = hca_slot_of(device);
	const struct hca_driver *driver = slot->driver;
	int error = hca_injected(slot, HCA_query_device);

	if (error)
		return error;
	memset(attr, 0, sizeof(*attr));
	attr->fw_ver = 1;
	attr->sys_image_guid = device->node_guid;
	attr->max_mr_size = slot->max_mr_size;
	attr->page_size_cap = driver->page_sizes ?: PAGE_SIZE;
	attr->vendor_id = driver->vendor;
	attr->vendor_part_id = driver->device;
	attr->hw_ver = driver->hw_ver;
	attr->max_qp = 1024;
	attr->max_qp_wr = 4096;
	attr->max_send_sge = 16;
	attr->max_recv_sge = 16;
	attr->max_sge_rd = 1;
	attr->max_cq = 1024;
	attr->max_cqe = 65535;
	attr->max_mr = slot->max_mr;
	attr->max_pd = 32768;
	attr->max_qp_rd_atom = 16;
	attr->max_qp_init_rd_atom = 16;
	attr->max_srq = 1024;
	attr->max_srq_wr = 4096;
	attr->max_srq_sge = 16;
	attr->max_pkeys = 1;
	attr->max_ah = 1024;
	attr->atomic_cap = IB_ATOMIC_NONE;
	if (driver->features & HCA_MW) {
		attr->max_mw = slot->max_mr;
		attr->device_cap_flags |= IB_DEVICE_MEM_WINDOW | IB_DEVICE_MEM_WINDOW_TYPE_2B;
	}
	if (driver->features & HCA_DM)
		attr->max_dm_size = HCA_DM_SIZE;
	if (driver->features & HCA_ODP) {
		attr->kernel_cap_flags |= IBK_ON_DEMAND_PAGING;
		attr->odp_caps.general_caps = IB_ODP_SUPPORT | IB_ODP_SUPPORT_IMPLICIT;
		attr->odp_caps.per_transport_caps.rc_odp_caps =
			IB_ODP_SUPPORT_SEND | IB_ODP_SUPPORT_RECV | IB_ODP_SUPPORT_WRITE |
			IB_ODP_SUPPORT_READ;
	}
	return hca_answer(udata, driver->query, driver->query_size);
}

static int hca_query_port(struct ib_device *device, u32 port, struct ib_port_attr *attr)
{
	attr->state = IB_PORT_ACTIVE;
	attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_1024;
	attr->gid_tbl_len = 1;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = 1U << 30;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	return hca_injected(hca_slot_of(device), HCA_query_port);
}

static int hca_port_immutable(struct ib_device *device, u32 port, struct ib_port_immutable *what)
{
	what->gid_tbl_len = 1;
	what->pkey_tbl_len = 1;
	return 0;
}

static enum rdma_link_layer hca_link_layer(struct ib_device *device, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int hca_query_gid(struct ib_device *device, u32 port, int index, union ib_gid *gid)
{
	gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
	gid->global.interface_id = device->node_guid;
	return 0;
}

static int hca_query_pkey(struct ib_device *device, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

/* Doorbells that nobody rings: at each offset the same pages, but for mlx5's device memory. */
static int hca_mmap(struct ib_ucontext *context, struct vm_area_struct *vma)
{
	struct hca_slot *slot = hca_slot_of(context->device);
	size_t size = vma->vm_end - vma->vm_start;
	unsigned long pfn = page_to_pfn(slot->pages);
	int error = hca_injected(slot, HCA_mmap);

	if (error)
		return error;
	/* MLX5_IB_MMAP_DEVICE_MEM, hw/mlx5/mlx5_ib.h. */
	if (slot->driver->id == RDMA_DRIVER_MLX5 && ((vma->vm_pgoff >> 8) & 0xff) == 8) {
		if (size > HCA_DM_SIZE)
			return -EINVAL;
		pfn += HCA_DM_PAGE;
	} else if (size > HCA_DM_SIZE) {
		return -EINVAL;
	}
	return rdma_user_mmap_io(context, vma, pfn, size, vma->vm_page_prot, NULL);
}

const struct ib_device_ops hca_ops = {
	.owner = THIS_MODULE,
	.alloc_ucontext = hca_alloc_ucontext,
	.dealloc_ucontext = hca_dealloc_ucontext,
	.disassociate_ucontext = hca_disassociate_ucontext,
	.alloc_pd = hca_alloc_pd,
	.dealloc_pd = hca_dealloc_pd,
	.query_device = hca_query_device,
	.query_port = hca_query_port,
	.get_port_immutable = hca_port_immutable,
	.get_link_layer = hca_link_layer,
	.query_gid = hca_query_gid,
	.query_pkey = hca_query_pkey,
	.mmap = hca_mmap,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, hca_ucontext, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, hca_pd, ib),
};

/* Queues exist so that user space can bind windows on them; nothing is ever sent. */

static int hca_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr, HCA_ATTRS)
{
	struct hca_slot *slot = hca_slot_of(cq->device);
	/* The number begins each driver's answer; irdma's has the size behind it. */
	u32 answer[4] = { atomic_inc_return(&slot->next_number), attr->cqe };
	int error = hca_injected(slot, HCA_create_cq);

	cq->cqe = attr->cqe;
	return error ?: hca_answer(HCA_UDATA, answer, sizeof(answer));
}

static int hca_destroy_cq(struct ib_cq *cq, struct ib_udata *udata)
{
	return 0;
}

static int hca_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata)
{
	struct hca_qp *qp = container_of(ib, struct hca_qp, ib);
	struct hca_slot *slot = hca_slot_of(ib->device);
	/* irdma-abi.h: number, sizes of both queues. The others need nothing but zeros. */
	u32 answer[] = { 0, init->cap.max_send_wr, init->cap.max_recv_wr };
	int error = hca_injected(slot, HCA_create_qp);

	qp->init = *init;
	qp->attr.cap = init->cap;
	ib->qp_num = atomic_inc_return(&slot->next_number);
	if (error || slot->driver->id != RDMA_DRIVER_IRDMA)
		return error ?: hca_answer(udata, NULL, 0);
	answer[0] = ib->qp_num;
	return hca_answer(udata, answer, sizeof(answer));
}

static int hca_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
			 struct ib_udata *udata)
{
	struct hca_qp *qp = container_of(ib, struct hca_qp, ib);

	if (mask & IB_QP_STATE)
		qp->attr.qp_state = attr->qp_state;
	return hca_answer(udata, NULL, 0);
}

static int hca_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
			struct ib_qp_init_attr *init)
{
	struct hca_qp *qp = container_of(ib, struct hca_qp, ib);

	*attr = qp->attr;
	*init = qp->init;
	return 0;
}

static int hca_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	return 0;
}

static int hca_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *init, struct ib_udata *udata)
{
	struct hca_srq *srq = container_of(ib, struct hca_srq, ib);
	struct hca_slot *slot = hca_slot_of(ib->device);
	u32 answer[2] = { atomic_inc_return(&slot->next_number) };
	int error = hca_injected(slot, HCA_create_srq);

	srq->attr = init->attr;
	return error ?: hca_answer(udata, answer, sizeof(answer));
}

static int hca_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr,
			  enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	return 0;
}

static int hca_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr)
{
	*attr = container_of(ib, struct hca_srq, ib)->attr;
	return 0;
}

static int hca_destroy_srq(struct ib_srq *ib, struct ib_udata *udata)
{
	return 0;
}

const struct ib_device_ops hca_queue_ops = {
	.HCA_CREATE_CQ = hca_create_cq,
	.destroy_cq = hca_destroy_cq,
	.create_qp = hca_create_qp,
	.modify_qp = hca_modify_qp,
	.query_qp = hca_query_qp,
	.destroy_qp = hca_destroy_qp,
	.create_srq = hca_create_srq,
	.modify_srq = hca_modify_srq,
	.query_srq = hca_query_srq,
	.destroy_srq = hca_destroy_srq,
	INIT_RDMA_OBJ_SIZE(ib_cq, hca_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, hca_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_srq, hca_srq, ib),
};
