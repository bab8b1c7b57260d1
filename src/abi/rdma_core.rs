// SPDX-License-Identifier: MIT OR Apache-2.0
//! rdma-core's public structures, from `<infiniband/verbs.h>`.

use crate::{constants, mirror};
use core::ffi::{c_char, c_int, c_void};

mirror! { "struct ibv_device" =>
    /// A device, open or not. Only the fields up to the last that the library reads are
    /// declared.
    pub struct ibv_device {
        pub _ops: [*mut c_void; 2],
        pub node_type: c_int,
        pub transport_type: c_int,
        pub name: [c_char; 64],
    }
}

constants! {
    /// The access flags of rdma-core 44.
    IBV_ACCESS_LOCAL_WRITE: u32 = 1;
    IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
    IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
    IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
    IBV_ACCESS_MW_BIND: u32 = 1 << 4;
    IBV_ACCESS_ZERO_BASED: u32 = 1 << 5;
    IBV_ACCESS_ON_DEMAND: u32 = 1 << 6;
    IBV_ACCESS_HUGETLB: u32 = 1 << 7;
    IBV_ACCESS_RELAXED_ORDERING: u32 = 1 << 20;
    /// Bits 20 to 29 are requests that a device may ignore.
    IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
}

/// Some installed headers are older than these two flags, so the flags are not compared.
pub const IBV_ACCESS_FLUSH_GLOBAL: u32 = 1 << 8;
pub const IBV_ACCESS_FLUSH_PERSISTENT: u32 = 1 << 9;

/// An answer of `ibv_is_fork_initialized`: the kernel copies registered pages for a child.
pub const IBV_FORK_UNNEEDED: c_int = 2;

/// `ibv_device.transport_type` of iWARP. On iWARP the sink of an RDMA read needs remote write.
pub const IBV_TRANSPORT_IWARP: c_int = 1;

/// Structures of which the library only forwards pointers.
#[rustfmt::skip]
macro_rules! opaque {
    ($($name:ident)*) => { $( pub enum $name {} )* };
}
opaque! {
    ibv_comp_channel ibv_cq ibv_dmah ibv_qp ibv_qp_init_attr ibv_srq ibv_srq_init_attr
}

/// The number of pointers in `struct ibv_context_ops`.
const CONTEXT_OPS: usize = 32;

mirror! { "struct ibv_context" =>
    /// An open device. `ops` is private to libibverbs.
    pub struct ibv_context {
        pub device: *mut ibv_device,
        pub ops: [*mut c_void; CONTEXT_OPS],
        /// The open uverbs file. Negative if a provider works without the kernel (mlx5 over VFIO).
        pub cmd_fd: c_int,
        pub async_fd: c_int,
        pub num_comp_vectors: c_int,
        pub mutex: libc::pthread_mutex_t,
        /// All ones in every context that libibverbs made.
        pub abi_compat: *mut c_void,
    }
}

/// `struct verbs_context` ends with its `ibv_context`, and grows at its start. `sz`, the size of
/// the whole structure, lies this number of bytes before the `ibv_context`.
pub const SZ_BEFORE_CONTEXT: usize = 8;
/// The distance in bytes from the pointer `create_cq_ex` to the `ibv_context`. `ctests/plain/audit`
/// compares both numbers with the header.
pub const CREATE_CQ_EX_BEFORE_CONTEXT: usize = 120;

mirror! { "struct ibv_pd" =>
    /// A protection domain. A parent domain has this structure too, and carries the handle of the
    /// PD from which it was made.
    pub struct ibv_pd {
        pub context: *mut ibv_context,
        pub handle: u32,
    }
}

mirror! { "struct ibv_mr" =>
    /// A memory region, as programs see it.
    pub struct ibv_mr {
        pub context: *mut ibv_context,
        pub pd: *mut ibv_pd,
        pub addr: *mut c_void,
        pub length: usize,
        pub handle: u32,
        pub lkey: u32,
        pub rkey: u32,
    }
}

mirror! { "struct ibv_mr_init_attr" =>
    /// The argument of `ibv_reg_mr_ex`, in rdma-core 59 and later. The structure grows at its end:
    /// do not read a field that `comp_mask` does not name.
    pub struct ibv_mr_init_attr {
        pub length: usize,
        pub access: c_int,
        pub comp_mask: u64,
        pub iova: u64,
        pub addr: *mut c_void,
        pub fd: c_int,
        pub fd_offset: u64,
        pub dmah: *mut ibv_dmah,
    }
}

/// `ibv_mr_init_attr.comp_mask`: `iova` is set.
pub const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
/// `ibv_mr_init_attr.comp_mask`: `addr` is set.
pub const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
/// `ibv_mr_init_attr.comp_mask`: the memory at `addr` is of `ibv_alloc_buf` (rdma-core 64). The
/// structure then has one more field, an [`ibv_buf`].
pub const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;

/// `struct ibv_buf` of rdma-core's private `driver.h`, as of 64 and 65.
#[repr(C)]
pub struct ibv_buf {
    pub addr: *mut c_void,
    pub size: usize,
    pub pd: *mut ibv_pd,
    /// -1 if the memory is ordinary.
    pub dmabuf_fd: c_int,
}

mirror! { "struct mlx5dv_devx_umem_in" =>
    /// The argument of `mlx5dv_devx_umem_reg_ex`, from `<infiniband/mlx5dv.h>`. Later versions may
    /// be longer.
    pub struct mlx5dv_devx_umem_in {
        pub addr: *mut c_void,
        pub size: usize,
        pub access: u32,
        pub pgsz_bitmap: u64,
        pub comp_mask: u64,
        pub dmabuf_fd: c_int,
    }
}

/// `mlx5dv_devx_umem_in.comp_mask`: `dmabuf_fd` is set, and `addr` is an offset in that dma-buf.
pub const MLX5DV_UMEM_MASK_DMABUF: u64 = 1 << 0;

/// `struct verbs_mr` of rdma-core's private `driver.h`. libibverbs and the providers see this
/// structure behind an `ibv_mr`. Its size and fields have not changed since rdma-core 33.
/// `ctests/plain` proves this: libibverbs deregisters the library's objects (`regions.c`)
/// and binds windows to them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct verbs_mr {
    /// The public part.
    pub ibv_mr: ibv_mr,
    /// The kind of region: [`IBV_MR_TYPE_MR`], or a kind that a provider treats in its own way.
    pub mr_type: u32,
    /// The access flags of the registration; `ibv_rereg_mr` does not update them.
    pub access: u32,
}
const _: () = assert!(size_of::<verbs_mr>() == 56);

/// `verbs_mr.mr_type` of an ordinary region.
pub const IBV_MR_TYPE_MR: u32 = 0;

/// `verbs_mr.mr_type` of the region of `ibv_alloc_null_mr`.
pub const IBV_MR_TYPE_NULL_MR: u32 = 1;

/// `verbs_mr.mr_type` of a region of a dma-buf.
pub const IBV_MR_TYPE_DMABUF_MR: u32 = 3;
