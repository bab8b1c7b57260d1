// SPDX-License-Identifier: GPL-2.0-only
/*
 * The hardware drivers. What a row says of registration was read in the driver's source of Linux
 * 6.1.192, 6.12.117 and 7.2.13 (under drivers/infiniband/; file and function stand beside it, "all"
 * is all three). Errnos that come from a device or its firmware are what the driver makes of the
 * status that fits; those lines say "firmware". What a provider wants when it opens was read in
 * rdma-core 44, 56.1 and 65 (providers/).
 *
 * A kernel without the driver (mana in 6.1, ionic in 6.1 and 6.12, qib in 7.2) gets the row of the
 * nearest kernel that has it.
 */
#include <rdma/bnxt_re-abi.h>
#include <rdma/cxgb4-abi.h>
#include <rdma/efa-abi.h>
#include <rdma/erdma-abi.h>
#include <rdma/hns-abi.h>
#include <rdma/irdma-abi.h>
#include <rdma/mlx4-abi.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mthca-abi.h>
#include <rdma/ocrdma-abi.h>
#include <rdma/qedr-abi.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/vmw_pvrdma-abi.h>
#include "hca.h"

/* Private bytes. */

static int refuse_bytes(const struct hca_request *request, int error)
{
	struct ib_udata *udata = request->udata;

	if (udata && udata->inlen && !ib_is_udata_cleared(udata, 0, udata->inlen))
		return error;
	return 0;
}

/*
 * hw/efa/efa_verbs.c, efa_alloc_mr(): private bytes that are not 0 are EINVAL, on 7.2 EOPNOTSUPP;
 * remote writes since 6.4.
 */
static int check_efa(struct hca_request *request)
{
	int rights = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_OPTIONAL;
	int error = refuse_bytes(request, SINCE(7, 0) ? -EOPNOTSUPP : -EINVAL);

	if (SINCE(6, 4))
		rights |= IB_ACCESS_REMOTE_WRITE;
	return error ?: request->access & ~rights ? -EOPNOTSUPP : 0;
}

/*
 * hw/irdma/verbs.c, irdma_reg_user_mr(), all: eight private bytes, of which the first two are the
 * kind of memory. Queues' memory comes this way too and has no key; a ring that is shorter than
 * its queues is EINVAL (irdma_reg_user_mr_type_qp(), _cq()).
 */
static int check_irdma(struct hca_request *request)
{
	struct irdma_mem_reg_req in = {};
	u64 pages = (ALIGN(request->start + request->length, SZ_4K) -
		     ALIGN_DOWN(request->start, SZ_4K)) / SZ_4K;

	if (request->verb != HCA_reg_mr)
		return 0;
	if (!request->udata || request->udata->inlen < sizeof(in))
		return -EINVAL;
	if (ib_copy_from_udata(&in, request->udata, sizeof(in)))
		return -EFAULT;
	switch (in.reg_type) {
	case IRDMA_MEMREG_TYPE_MEM:
		return 0;
	case IRDMA_MEMREG_TYPE_QP:
		request->is_queue = true;
		return in.sq_pages + in.rq_pages + 1 > pages ? -EINVAL : 0;
	case IRDMA_MEMREG_TYPE_CQ:
		request->is_queue = true;
		return in.cq_pages > pages ? -EINVAL : 0;
	default:
		return -EINVAL;
	}
}

/* hw/bnxt_re/ib_verbs.c, bnxt_re_reg_user_mr(), 7.2; before, and with a dma-buf, any bytes pass. */
static int check_bnxt_re(struct hca_request *request)
{
	if (SINCE(7, 0) && request->verb == HCA_reg_mr)
		return refuse_bytes(request, -EOPNOTSUPP);
	return 0;
}

/*
 * hw/mana/mr.c, mana_ib_reg_user_mr(), 6.12 and 7.2, and mana_ib_reg_user_mr_dmabuf(), 7.2: the
 * rights, and an errno for each of the two.
 */
static int check_mana(struct hca_request *request)
{
	int rights = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ |
		     IB_ACCESS_OPTIONAL;

	if (SINCE(7, 0))
		rights |= IB_ACCESS_REMOTE_ATOMIC | IB_ACCESS_MW_BIND | IB_ZERO_BASED;
	if (request->access & ~rights)
		return request->verb == HCA_reg_mr ? -EINVAL : -EOPNOTSUPP;
	return 0;
}

/*
 * hw/mthca/mthca_provider.c, mthca_reg_user_mr(): eight private bytes or none. 7.2 refuses what
 * follows them if it is not 0.
 */
static int check_mthca(struct hca_request *request)
{
	const size_t size = sizeof(struct mthca_reg_mr);
	struct ib_udata *udata = request->udata;

	if (SINCE(7, 0) && udata && udata->inlen > size &&
	    !ib_is_udata_cleared(udata, size, udata->inlen - size))
		return -EOPNOTSUPP;
	return 0;
}

/*
 * hw/erdma/erdma_verbs.c, erdma_reg_user_mr(); sw/rdmavt/mr.c, rvt_reg_user_mr() (hfi1 and qib);
 * hw/vmw_pvrdma/pvrdma_mr.c, pvrdma_reg_user_mr(): all.
 */
static int check_length(struct hca_request *request)
{
	return request->length ? 0 : -EINVAL;
}

/* hw/cxgb4/mem.c, c4iw_reg_user_mr(), all. Chips before T6 refuse 8 GiB and more, too. */
static int check_cxgb4(struct hca_request *request)
{
	if (request->length == U64_MAX || request->start + request->length < request->start)
		return -EINVAL;
	return 0;
}

/*
 * hw/qedr/verbs.c, qedr_reg_user_mr(); hw/ocrdma/ocrdma_verbs.c, ocrdma_reg_user_mr(): all. The
 * core has looked already (ib_check_mr_access()).
 */
static int check_remote_write(struct hca_request *request)
{
	if ((request->access & IB_ACCESS_REMOTE_WRITE) && !(request->access & IB_ACCESS_LOCAL_WRITE))
		return -EINVAL;
	return 0;
}

/* Answers to GET_CONTEXT. Offsets of mappings are 0: the same page lies at each (verbs.c). */

static const struct mlx5_ib_alloc_ucontext_resp mlx5_context = {
	/* No tot_bfregs: the provider allocates doorbells as objects (MLX5_LIB_CAP_DYN_UAR). */
	.qp_tab_size = 1 << 18,
	.bf_reg_size = 512,
	.cache_line_size = 64,
	.max_sq_desc_sz = 1024,
	.max_rq_desc_sz = 512,
	.max_send_wqebb = 32768,
	.max_recv_wr = 32768,
	.max_srq_recv_wr = 32767,
	.num_ports = 1,
	/* The null region of ibv_alloc_null_mr() is this key. */
	.comp_mask = MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY,
	.dump_fill_mkey = 0x700,
	.response_length = sizeof(struct mlx5_ib_alloc_ucontext_resp),
	.cqe_version = 1,
	.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
	.eth_min_inline = MLX5_USER_INLINE_MODE_NONE,
	.log_uar_size = 12,
	.num_uars_per_page = 1,
	.num_dyn_bfregs = 512,
};

static const struct efa_ibv_alloc_ucontext_resp efa_context = {
	.cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE |
				EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
	.sub_cqs_per_cq = 2,
	.inline_buf_size = 32,
	.max_llq_size = 65536,
};

static const struct efa_ibv_ex_query_device_resp efa_query = {
	.max_sq_wr = 4096,
	.max_rq_wr = 32768,
	.max_sq_sge = 2,
	.max_rq_sge = 3,
	.max_rdma_size = 1 << 30,
	/* Bit 3: RDMA writes, which the header of 6.1 has no name for. */
	.device_caps = EFA_QUERY_DEVICE_CAPS_RDMA_READ | (SINCE(6, 4) ? 1 << 5 : 0),
};

static const struct irdma_alloc_ucontext_resp irdma_context = {
	.kernel_ver = IRDMA_ABI_VER,
	.feature_flags = 1 | 2, /* RTS_AE, CQ_RESIZE */
	.max_hw_wq_frags = 13,
	.max_hw_read_sges = 13,
	.max_hw_inline = 101,
	.max_hw_rq_quanta = 32768,
	.max_hw_wq_quanta = 32768,
	.min_hw_cq_size = 1,
	.max_hw_cq_size = 1048575,
	.max_hw_sq_chunk = 8,
	.hw_rev = 2,
};

static const struct bnxt_re_uctx_resp bnxt_re_context = {
	.dev_id = 1,
	.max_qp = 65536,
	.pg_size = PAGE_SIZE,
	.cqe_sz = 32,
	.max_cqd = 65536,
	.comp_mask = BNXT_RE_UCNTX_CMASK_HAVE_CCTX,
	.chip_id0 = 0x1750,
};

static const struct mlx4_ib_alloc_ucontext_resp mlx4_context = {
	.qp_tab_size = 1 << 18,
	.cqe_size = 32,
};

static const struct hns_roce_ib_alloc_ucontext_resp hns_context = {
	.qp_tab_size = 1 << 16,
	.cqe_size = 32,
	.srq_tab_size = 1 << 16,
};

static const struct erdma_uresp_alloc_ctx erdma_context = {
	.dev_id = 0x107f,
};

static const struct qedr_alloc_ucontext_resp qedr_context = {
	.db_size = PAGE_SIZE,
	.max_send_wr = 4096,
	.max_recv_wr = 4096,
	.max_srq_wr = 4096,
	.sges_per_send_wr = 4,
	.sges_per_recv_wr = 4,
	.sges_per_srq_wr = 4,
	.max_cqes = 65535,
	.wids_enabled = 1,
	.wid_count = 1,
};

static const struct c4iw_alloc_ucontext_resp cxgb4_context = {
	.status_page_size = PAGE_SIZE,
};

/* struct t4_dev_status_page, hw/cxgb4/t4.h: the provider makes tables of so many numbers. */
static const struct {
	u8 db_off, write_cmpl_supported;
	u16 pad2;
	u32 pad3;
	u64 qp_start, qp_size, cq_start, cq_size;
} cxgb4_page = { .qp_size = 65536, .cq_size = 65536 };

static const struct pvrdma_alloc_ucontext_resp pvrdma_context = {
	.qp_tab_size = 4096,
};

static const struct ocrdma_alloc_ucontext_resp ocrdma_context = {
	.dev_id = 1,
	.wqe_size = 256,
	.max_inline_data = 128,
	.ah_tbl_len = PAGE_SIZE,
	.rqe_size = 64,
	.fw_ver = "1",
};

static const struct mthca_alloc_ucontext_resp mthca_context = {
	.qp_tab_size = 1 << 16,
	.uarc_size = 1 << 17,
};

/* struct ionic_ctx_resp (ionic-abi.h, 7.2). */
static const struct {
	u32 rsvd, page_shift;
	u64 dbell_offset;
	u16 version;
	u8 qp_opcodes, admin_opcodes, sq_qtype, rq_qtype, cq_qtype, admin_qtype;
	u8 max_stride, max_spec, udma_count, expdb_mask, expdb_qtypes, rsvd2[3];
} ionic_context = {
	.page_shift = PAGE_SHIFT,
	.version = 1,
	.qp_opcodes = 16,
	.admin_opcodes = 32,
	.max_stride = 9,
	.udma_count = 1,
};

#define CONTEXT(answer) .context = &(answer), .context_size = sizeof(answer)

const struct hca_driver hca_drivers[] = {
	{
		.name = "mlx5", .id = RDMA_DRIVER_MLX5, .abi = MLX5_IB_UVERBS_ABI_VERSION,
		.vendor = 0x15b3, .device = 0x101d, .node = RDMA_NODE_IB_CA,
		CONTEXT(mlx5_context), .objects = hca_mlx5_objects, .ops = &hca_mlx5_ops,
		.max_mr = 1 << 20, .max_mr_size = U64_MAX,
		.features = HCA_MW | HCA_REREG_MLX5 | HCA_DMABUF_MOVES | HCA_ODP | HCA_DM |
			    HCA_ADVISE | HCA_QUEUES | HCA_TAKES_DMAH,
		/* Firmware (mlx5_core, cmd.c): limit exceeded, bad parameter. */
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "efa", .id = RDMA_DRIVER_EFA, .abi = EFA_UVERBS_ABI_VERSION,
		.vendor = 0x1d0f, .device = 0xefa2, .node = RDMA_NODE_UNSPECIFIED,
		CONTEXT(efa_context), .objects = hca_efa_objects,
		.query = &efa_query, .query_size = sizeof(efa_query),
		.max_mr = 1 << 18, .max_mr_size = 1ULL << 40,
		.features = HCA_DMABUF_PINNED | HCA_HIDES_IOVA,
		.check = check_efa,
		/* hw/efa/efa_verbs.c, efa_register_mr(), all. */
		.page_sizes = 0xfffff000, .page_size_errno = -EOPNOTSUPP,
		/* hw/efa/efa_com.c, efa_com_comp_status_to_errno(), all: firmware. */
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "irdma", .id = RDMA_DRIVER_IRDMA, .abi = IRDMA_ABI_VER,
		.vendor = 0x8086, .device = 0x1592, .node = RDMA_NODE_IB_CA,
		CONTEXT(irdma_context),
		/* hw/irdma/user.h: IRDMA_MAX_MR_SIZE. */
		.max_mr = 1 << 18, .max_mr_size = 0x200000000000ULL,
		.features = HCA_MW | HCA_QUEUES | HCA_LENGTH_FIRST | HCA_HIDES_LENGTH |
			    (SINCE(6, 12) ? HCA_REREG_IN_PLACE | HCA_DMABUF_PINNED : 0),
		.check = check_irdma,
		/* hw/irdma/verbs.c, irdma_reg_user_mr(), irdma_alloc_iwmr(), all. */
		.page_sizes = SZ_4K | SZ_2M | SZ_1G, .page_size_errno = -EOPNOTSUPP,
		/* irdma_create_stag() is 0, all. */
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "bnxt_re", .id = RDMA_DRIVER_BNXT_RE, .abi = BNXT_RE_ABI_VERSION,
		.vendor = 0x14e4, .device = 0x1750, .node = RDMA_NODE_IB_CA,
		CONTEXT(bnxt_re_context),
		/* hw/bnxt_re/bnxt_re.h: BNXT_RE_MAX_MR_SIZE. */
		.max_mr = 1 << 18, .max_mr_size = 1ULL << 39,
		/*
		 * hw/bnxt_re/ib_verbs.c, bnxt_re_reg_user_mr(). 6.1: length, key, memory, page size;
		 * 6.12 and 7.2: memory, length, page size, key.
		 */
		.features = HCA_HIDES_IOVA | HCA_HIDES_LENGTH |
			    (SINCE(6, 12) ? HCA_DMABUF_PINNED : HCA_LENGTH_FIRST | HCA_KEY_FIRST),
		.check = check_bnxt_re,
		.pin_errno = SINCE(6, 12) ? 0 : -EFAULT,
		.page_sizes = 0x7ffff000, .page_size_errno = SINCE(6, 12) ? -EINVAL : -EFAULT,
		/* hw/bnxt_re/qplib_rcfw.c, __bnxt_qplib_rcfw_send_message(), all: firmware. */
		.full_errno = -EIO, .length_errno = -ENOMEM,
	},
	{
		.name = "mlx4", .id = RDMA_DRIVER_MLX4, .abi = MLX4_IB_UVERBS_ABI_VERSION,
		.vendor = 0x15b3, .device = 0x1007, .node = RDMA_NODE_IB_CA,
		CONTEXT(mlx4_context),
		.max_mr = 1 << 18, .max_mr_size = U64_MAX,
		.features = HCA_MW | HCA_REREG_IN_PLACE | HCA_QUEUES,
		/* net/ethernet/mellanox/mlx4/mr.c, mlx4_mr_alloc(), mlx4_mw_alloc(), all. */
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "hns", .id = RDMA_DRIVER_HNS, .abi = 1, .no_id_binding = true,
		.vendor = 0x19e5, .device = 0xa222, .node = RDMA_NODE_IB_CA,
		CONTEXT(hns_context), .hw_ver = 0x30,
		.max_mr = 1 << 18, .max_mr_size = U64_MAX,
		/* hw/hns/hns_roce_main.c: windows in 6.1 and 6.12. The key comes first, all. */
		.features = HCA_REREG_IN_PLACE | HCA_QUEUES | HCA_KEY_FIRST |
			    (SINCE(7, 0) ? 0 : HCA_MW),
		/* hw/hns/hns_roce_mr.c, mtr_alloc_bufs(), all: any failure to pin. */
		.pin_errno = -ENOMEM,
		/* get_best_page_shift(), 6.12 and 7.2. */
		.page_sizes = SINCE(6, 12) ? SZ_4K | SZ_64K | SZ_2M : 0,
		.page_size_errno = -EINVAL,
		/* alloc_mr_key(), hns_roce_alloc_mw(), all. */
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "erdma", .id = RDMA_DRIVER_ERDMA, .abi = ERDMA_ABI_VERSION,
		.vendor = 0x1ded, .device = 0x107f, .node = RDMA_NODE_RNIC,
		CONTEXT(erdma_context),
		.max_mr = 1 << 17, .max_mr_size = 1ULL << 40,
		.features = HCA_LENGTH_FIRST,
		.check = check_length,
		/* hw/erdma/erdma_verbs.c, erdma_reg_user_mr(), erdma_alloc_idx(), all. */
		.full_errno = -ENOSPC, .length_errno = -EINVAL,
	},
	{
		.name = "mana", .id = HCA_DRIVER_MANA, .abi = 1,
		.vendor = 0x1414, .device = 0x00ba, .node = RDMA_NODE_RNIC,
		.max_mr = 1 << 17, .max_mr_size = U64_MAX,
		.features = HCA_HIDES_IOVA | HCA_HIDES_LENGTH |
			    (SINCE(7, 0) ? HCA_DMABUF_PINNED | HCA_MW | HCA_DM : 0),
		.check = check_mana,
		/* hw/mana/mr.c, mana_ib_gd_create_mr(), 6.12: firmware. */
		.full_errno = -EPROTO, .length_errno = -EPROTO,
	},
	{
		.name = "qedr", .id = RDMA_DRIVER_QEDR, .abi = QEDR_ABI_VERSION,
		.vendor = 0x1077, .device = 0x1656, .node = RDMA_NODE_IB_CA,
		CONTEXT(qedr_context),
		.max_mr = 1 << 17, .max_mr_size = 1ULL << 40,
		.features = HCA_RKEY_IF_REMOTE,
		.check = check_remote_write,
		/* hw/qedr/verbs.c, qedr_reg_user_mr(), all: any failure to pin; no TID is left. */
		.pin_errno = -EFAULT,
		/* qedr_prepare_pbl_tbl(), all: MAX_PBES_TWO_LAYER is 256 GiB. */
		.max_pages = 8192 * 8192, .max_pages_errno = -EINVAL,
		.full_errno = -EINVAL, .length_errno = -EINVAL,
	},
	{
		.name = "cxgb4", .id = RDMA_DRIVER_CXGB4, .abi = C4IW_UVERBS_ABI_VERSION,
		.vendor = 0x1425, .device = 0x6401, .node = RDMA_NODE_RNIC,
		CONTEXT(cxgb4_context), .page = &cxgb4_page, .page_size = sizeof(cxgb4_page),
		.max_mr = 1 << 16, .max_mr_size = U64_MAX,
		.check = check_cxgb4,
		/* hw/cxgb4/mem.c, c4iw_reg_user_mr(), all: any failure to pin; write_tpt_entry(). */
		.pin_errno = -ENOMEM,
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "hfi1", .id = RDMA_DRIVER_HFI1, .abi = 2,
		.vendor = 0x8086, .device = 0x24f0, .node = RDMA_NODE_IB_CA,
		.max_mr = 1 << 16, .max_mr_size = U64_MAX,
		.check = check_length,
		/* sw/rdmavt/mr.c, rvt_alloc_lkey(), all. */
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "qib", .id = RDMA_DRIVER_QIB, .abi = 2,
		.vendor = 0x1077, .device = 0x7322, .node = RDMA_NODE_IB_CA,
		.max_mr = 1 << 16, .max_mr_size = U64_MAX,
		.check = check_length,
		/* sw/rdmavt/mr.c, rvt_alloc_lkey(), 6.1 and 6.12. */
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "vmw_pvrdma", .id = RDMA_DRIVER_VMW_PVRDMA, .abi = PVRDMA_UVERBS_ABI_VERSION,
		.vendor = 0x15ad, .device = 0x0820, .node = RDMA_NODE_IB_CA,
		CONTEXT(pvrdma_context),
		.max_mr = 1 << 16, .max_mr_size = 1ULL << 40,
		.features = HCA_LENGTH_FIRST,
		.check = check_length,
		/* hw/vmw_pvrdma/pvrdma_mr.c, all: PVRDMA_PAGE_DIR_MAX_PAGES is 1 GiB. */
		.max_pages = 512 * 512, .max_pages_errno = -EINVAL,
		/* hw/vmw_pvrdma/pvrdma_cmd.c, pvrdma_cmd_post(), all: the hypervisor's refusal. */
		.full_errno = -EFAULT, .length_errno = -EINVAL,
	},
	{
		.name = "ocrdma", .id = RDMA_DRIVER_OCRDMA, .abi = OCRDMA_ABI_VERSION,
		.vendor = 0x10df, .device = 0x0720, .node = RDMA_NODE_IB_CA,
		CONTEXT(ocrdma_context),
		.max_mr = 1 << 16, .max_mr_size = 1ULL << 40,
		.features = HCA_RKEY_IF_REMOTE,
		.check = check_remote_write,
		/* hw/ocrdma/ocrdma_verbs.c, ocrdma_reg_user_mr(), all: any failure to pin. */
		.pin_errno = -EFAULT,
		/* hw/ocrdma/ocrdma_hw.c, ocrdma_get_mbx_errno(), all: firmware. */
		.full_errno = -EAGAIN, .length_errno = -EINVAL,
	},
	{
		.name = "mthca", .id = RDMA_DRIVER_MTHCA, .abi = MTHCA_UVERBS_ABI_VERSION,
		.no_id_binding = true,
		.vendor = 0x15b3, .device = 0x6282, .node = RDMA_NODE_IB_CA,
		CONTEXT(mthca_context),
		.max_mr = 1 << 17, .max_mr_size = U64_MAX,
		.features = HCA_QUEUES,
		.check = check_mthca,
		/* hw/mthca/mthca_mr.c, mthca_mr_alloc(), all. */
		.full_errno = -ENOMEM, .length_errno = -EINVAL,
	},
	{
		.name = "ionic", .id = HCA_DRIVER_IONIC, .abi = 1,
		.vendor = 0x1dd8, .device = 0x1002, .node = RDMA_NODE_IB_CA,
		CONTEXT(ionic_context),
		.max_mr = 1 << 17, .max_mr_size = 1ULL << 40,
		/* hw/ionic/ionic_controlpath.c, ionic_reg_user_mr(), 7.2: the key comes first. */
		.features = HCA_MW | HCA_DMABUF_PINNED | HCA_KEY_FIRST,
		.page_sizes = 0xfffff000, .page_size_errno = -EINVAL,
		/* ionic_get_mrid(), ida_alloc_range(). */
		.full_errno = -ENOSPC, .length_errno = -EINVAL,
	},
};
const size_t hca_driver_count = ARRAY_SIZE(hca_drivers);
