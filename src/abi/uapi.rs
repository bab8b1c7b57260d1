// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's uverbs interface, from `<rdma/rdma_user_ioctl_cmds.h>`, `<rdma/ib_user_ioctl_cmds.h>`,
//! `<rdma/ib_user_ioctl_verbs.h>` and `<rdma/ib_user_verbs.h>`.

use super::mirror;

mirror! { "struct ib_uverbs_ioctl_hdr" =>
    /// What precedes the attributes of an ioctl.
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
    /// One attribute of an ioctl. The kernel writes into `flags` and, for a new handle, into `data`.
    pub struct ib_uverbs_attr {
        pub attr_id: u16,
        pub len: u16,
        pub flags: u16,
        pub attr_data: u16,
        pub data: u64,
    }
}

mirror! { "struct ib_uverbs_cmd_hdr" =>
    /// What precedes a command of the write() interface. Sizes are in units of four bytes.
    pub struct ib_uverbs_cmd_hdr {
        pub command: u32,
        pub in_words: u16,
        pub out_words: u16,
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
    /// Its answer.
    pub struct ib_uverbs_reg_mr_resp {
        pub mr_handle: u32,
        pub lkey: u32,
        pub rkey: u32,
    }
}

mirror! { "struct ib_uverbs_dereg_mr" =>
    /// The command that deregisters memory.
    pub struct ib_uverbs_dereg_mr {
        pub mr_handle: u32,
    }
}

/// Declares constants of the kernel's headers, and remembers the names for the comparison.
macro_rules! constants {
    ($( $(#[$meta:meta])* $name:ident: $type:ty = $value:expr; )*) => {
        $( $(#[$meta])* pub const $name: $type = $value; )*
        /// Each constant, for the comparison with the C headers.
        #[cfg(test)]
        pub const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

constants! {
    /// The one ioctl of uverbs.
    RDMA_VERBS_IOCTL: libc::c_ulong = 0xc018_1b01;

    /// The device itself, object of methods that concern no other.
    UVERBS_OBJECT_DEVICE: u16 = 0;
    /// A memory region.
    UVERBS_OBJECT_MR: u16 = 7;

    /// Runs a command of the write() interface inside an ioctl (kernel 5.0).
    UVERBS_METHOD_INVOKE_WRITE: u16 = 0;
    /// `INVOKE_WRITE`: the command's structure.
    UVERBS_ATTR_CORE_IN: u16 = 0;
    /// `INVOKE_WRITE`: where its answer goes.
    UVERBS_ATTR_CORE_OUT: u16 = 1;
    /// `INVOKE_WRITE`: the command's number.
    UVERBS_ATTR_WRITE_CMD: u16 = 2;
    /// The driver's private bytes, in.
    UVERBS_ATTR_UHW_IN: u16 = 0x1000;
    /// The driver's private bytes, out.
    UVERBS_ATTR_UHW_OUT: u16 = 0x1001;

    /// Deregisters a region.
    UVERBS_METHOD_MR_DESTROY: u16 = 1;
    /// `MR_DESTROY`: its handle.
    UVERBS_ATTR_DESTROY_MR_HANDLE: u16 = 0;
    /// Asks about a region (kernel 5.9).
    UVERBS_METHOD_QUERY_MR: u16 = 3;

    /// The attribute must be understood.
    UVERBS_ATTR_F_MANDATORY: u16 = 1;

    /// The command that asks about the device.
    IB_USER_VERBS_CMD_QUERY_DEVICE: u32 = 1;
    /// The command that registers memory.
    IB_USER_VERBS_CMD_REG_MR: u32 = 9;
    /// The command that deregisters memory.
    IB_USER_VERBS_CMD_DEREG_MR: u32 = 13;

    /// Driver numbers, as the kernel has them.
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

/// Later than the headers that are installed everywhere, so not compared with them.
pub const RDMA_DRIVER_MANA: u32 = 20;
/// Kernel 6.18.
pub const RDMA_DRIVER_IONIC: u32 = 21;
