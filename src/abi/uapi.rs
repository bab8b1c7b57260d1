// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's uverbs interface, from `<rdma/rdma_user_ioctl_cmds.h>`,
//! `<rdma/ib_user_ioctl_cmds.h>`, `<rdma/ib_user_ioctl_verbs.h>` and `<rdma/ib_user_verbs.h>`.

use crate::{constants, mirror};

mirror! { "struct ib_uverbs_ioctl_hdr" =>
    /// The header before the attributes of an ioctl.
    pub struct ib_uverbs_ioctl_hdr {
        pub length: u16,
        pub object_id: u16,
        pub method_id: u16,
        pub num_attrs: u16,
        pub reserved1: u64,
        pub driver_id: u32,
        pub reserved2: u32,
    }
}

mirror! { "struct ib_uverbs_attr" =>
    /// An attribute of an ioctl. The kernel writes `flags` and, for a new handle, `data`.
    pub struct ib_uverbs_attr {
        pub attr_id: u16,
        pub len: u16,
        pub flags: u16,
        pub attr_data: u16,
        pub data: u64,
    }
}

mirror! { "struct ib_uverbs_reg_mr" =>
    /// The command that registers memory.
    pub struct ib_uverbs_reg_mr {
        pub response: u64,
        pub start: u64,
        pub length: u64,
        pub hca_va: u64,
        pub pd_handle: u32,
        pub access_flags: u32,
    }
}

mirror! { "struct ib_uverbs_reg_mr_resp" =>
    /// The response to `struct ib_uverbs_reg_mr`.
    pub struct ib_uverbs_reg_mr_resp {
        pub mr_handle: u32,
        pub lkey: u32,
        pub rkey: u32,
    }
}

/// A value of `ib_uverbs_query_device_resp.atomic_cap`, `enum ib_atomic_cap`: no atomic operations.
pub const IB_ATOMIC_NONE: u32 = 0;

mirror! { "struct ib_uverbs_query_device_resp" =>
    /// The kernel's answer about a device.
    pub struct ib_uverbs_query_device_resp {
        pub fw_ver: u64,
        pub node_guid: u64,
        pub sys_image_guid: u64,
        pub max_mr_size: u64,
        pub page_size_cap: u64,
        pub vendor_id: u32,
        pub vendor_part_id: u32,
        pub hw_ver: u32,
        pub max_qp: u32,
        pub max_qp_wr: u32,
        pub device_cap_flags: u32,
        pub max_sge: u32,
        pub max_sge_rd: u32,
        pub max_cq: u32,
        pub max_cqe: u32,
        pub max_mr: u32,
        pub max_pd: u32,
        pub max_qp_rd_atom: u32,
        pub max_ee_rd_atom: u32,
        pub max_res_rd_atom: u32,
        pub max_qp_init_rd_atom: u32,
        pub max_ee_init_rd_atom: u32,
        pub atomic_cap: u32,
        pub max_ee: u32,
        pub max_rdd: u32,
        pub max_mw: u32,
        pub max_raw_ipv6_qp: u32,
        pub max_raw_ethy_qp: u32,
        pub max_mcast_grp: u32,
        pub max_mcast_qp_attach: u32,
        pub max_total_mcast_qp_attach: u32,
        pub max_ah: u32,
        pub max_fmr: u32,
        pub max_map_per_fmr: u32,
        pub max_srq: u32,
        pub max_srq_wr: u32,
        pub max_srq_sge: u32,
        pub max_pkeys: u16,
        pub local_ca_ack_delay: u8,
        pub phys_port_cnt: u8,
        pub reserved: [u8; 4],
    }
}

constants! {
    /// The only ioctl of uverbs.
    RDMA_VERBS_IOCTL: libc::c_ulong = 0xc018_1b01;

    /// The device itself, the object of methods that concern no other object.
    UVERBS_OBJECT_DEVICE: u16 = 0;
    /// A memory region.
    UVERBS_OBJECT_MR: u16 = 7;

    /// Runs a command of the write() interface inside an ioctl (kernel 5.0).
    UVERBS_METHOD_INVOKE_WRITE: u16 = 0;
    /// Attribute of `INVOKE_WRITE`: the command's structure.
    UVERBS_ATTR_CORE_IN: u16 = 0;
    /// Attribute of `INVOKE_WRITE`: the room for the response.
    UVERBS_ATTR_CORE_OUT: u16 = 1;
    /// Attribute of `INVOKE_WRITE`: the command's number.
    UVERBS_ATTR_WRITE_CMD: u16 = 2;
    /// The driver's private bytes to the kernel.
    UVERBS_ATTR_UHW_IN: u16 = 0x1000;
    /// The driver's private bytes from the kernel.
    UVERBS_ATTR_UHW_OUT: u16 = 0x1001;

    /// Deregisters a region.
    UVERBS_METHOD_MR_DESTROY: u16 = 1;
    /// Attribute of `MR_DESTROY`: the region's handle.
    UVERBS_ATTR_DESTROY_MR_HANDLE: u16 = 0;
    /// Queries a region (kernel 5.9).
    UVERBS_METHOD_QUERY_MR: u16 = 3;

    /// Registers a part of a dma-buf (kernel 5.12).
    UVERBS_METHOD_REG_DMABUF_MR: u16 = 4;
    /// Attributes of `REG_DMABUF_MR`: the new region's handle, the domain's, the part's offset and
    /// length, the address of remote peers, the file, the access, and the room for both keys.
    UVERBS_ATTR_REG_DMABUF_MR_HANDLE: u16 = 0;
    UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE: u16 = 1;
    UVERBS_ATTR_REG_DMABUF_MR_OFFSET: u16 = 2;
    UVERBS_ATTR_REG_DMABUF_MR_LENGTH: u16 = 3;
    UVERBS_ATTR_REG_DMABUF_MR_IOVA: u16 = 4;
    UVERBS_ATTR_REG_DMABUF_MR_FD: u16 = 5;
    UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS: u16 = 6;
    UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY: u16 = 7;
    UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY: u16 = 8;

    /// The kernel must understand the attribute.
    UVERBS_ATTR_F_MANDATORY: u16 = 1;

    /// The command that queries the device.
    IB_USER_VERBS_CMD_QUERY_DEVICE: u32 = 1;
    /// The command that registers memory.
    IB_USER_VERBS_CMD_REG_MR: u32 = 9;

    /// The kernel's driver numbers.
    RDMA_DRIVER_MLX5: u32 = 1;
    RDMA_DRIVER_MLX4: u32 = 2;
    RDMA_DRIVER_CXGB3: u32 = 3;
    RDMA_DRIVER_CXGB4: u32 = 4;
    RDMA_DRIVER_MTHCA: u32 = 5;
    RDMA_DRIVER_BNXT_RE: u32 = 6;
    RDMA_DRIVER_OCRDMA: u32 = 7;
    RDMA_DRIVER_NES: u32 = 8;
    RDMA_DRIVER_IRDMA: u32 = 9;
    RDMA_DRIVER_VMW_PVRDMA: u32 = 10;
    RDMA_DRIVER_QEDR: u32 = 11;
    RDMA_DRIVER_HNS: u32 = 12;
    RDMA_DRIVER_USNIC: u32 = 13;
    RDMA_DRIVER_RXE: u32 = 14;
    RDMA_DRIVER_HFI1: u32 = 15;
    RDMA_DRIVER_QIB: u32 = 16;
    RDMA_DRIVER_EFA: u32 = 17;
    RDMA_DRIVER_SIW: u32 = 18;
    RDMA_DRIVER_ERDMA: u32 = 19;
}

/// Some installed headers are older than this number, so it is not compared.
pub const RDMA_DRIVER_MANA: u32 = 20;
/// Since kernel 6.18.
pub const RDMA_DRIVER_IONIC: u32 = 21;
