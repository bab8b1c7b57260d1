// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structures of a libfabric provider, from `<rdma/fabric.h>`, `<rdma/fi_domain.h>` and
//! `<rdma/providers/fi_prov.h>`. They grow at their ends. libfabric allocates `struct fi_info`
//! itself.

use crate::libfabric::*;
use crate::mirror;
use core::ffi::{c_char, c_int, c_void};

/// A slot for a function that the library's provider does not support. Callers pass the arguments
/// of the slot, and the function takes none. The calling conventions of all architectures for which
/// the library is built allow this.
pub type Slot = unsafe extern "C" fn() -> c_int;

mirror! { "struct fid_fabric" =>
    /// A fabric.
    pub struct fid_fabric {
        pub fid: fid,
        pub ops: *mut fi_ops_fabric,
        /// Since libfabric 1.5: the version that the application passed to fi_getinfo().
        /// libfabric's core writes this field.
        pub api_version: u32,
    }
}

mirror! { "struct fi_ops_fabric" =>
    /// The functions of a fabric.
    pub struct fi_ops_fabric {
        pub size: usize,
        pub domain: unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int,
        pub passive_ep: Slot,
        pub eq_open: unsafe extern "C" fn(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int,
        pub wait_open: Slot,
        pub trywait: unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int,
        pub domain2: Slot,
    }
}

/// `struct fi_ops_domain`: the functions of a domain that do not concern memory. The library
/// supports none of them.
#[repr(C)]
pub struct domain_slots {
    pub size: usize,
    pub functions: [Slot; 11],
}

mirror! { "struct fi_info" =>
    /// The offer of a provider, or the request of an application.
    pub struct fi_info {
        pub next: *mut fi_info,
        pub caps: u64,
        pub mode: u64,
        pub addr_format: u32,
        pub src_addrlen: usize,
        pub dest_addrlen: usize,
        pub src_addr: *mut c_void,
        pub dest_addr: *mut c_void,
        pub handle: *mut fid,
        pub tx_attr: *mut fi_tx_attr,
        pub rx_attr: *mut fi_rx_attr,
        pub ep_attr: *mut fi_ep_attr,
        pub domain_attr: *mut fi_domain_attr,
        pub fabric_attr: *mut fi_fabric_attr,
    }
}

mirror! { "struct fi_tx_attr" =>
    /// The transmit side of a `fi_info`. Only the fields up to the last that the library sets are
    /// declared.
    pub struct fi_tx_attr {
        pub caps: u64,
        pub mode: u64,
    }
}

mirror! { "struct fi_rx_attr" =>
    /// The receive side of a `fi_info`. Only the fields up to the last that the library sets are
    /// declared.
    pub struct fi_rx_attr {
        pub caps: u64,
        pub mode: u64,
    }
}

mirror! { "struct fi_ep_attr" =>
    /// The endpoints of a `fi_info`. Only the fields up to the last that the library sets are
    /// declared.
    pub struct fi_ep_attr {
        pub r#type: c_int,
        pub protocol: u32,
    }
}

mirror! { "struct fi_domain_attr" =>
    /// The domain of a `fi_info`, as of libfabric 1.5.
    pub struct fi_domain_attr {
        pub domain: *mut fid_domain,
        pub name: *mut c_char,
        pub threading: c_int,
        pub control_progress: c_int,
        pub data_progress: c_int,
        pub resource_mgmt: c_int,
        pub av_type: c_int,
        pub mr_mode: c_int,
        pub mr_key_size: usize,
        pub cq_data_size: usize,
        pub cq_cnt: usize,
        pub ep_cnt: usize,
        pub tx_ctx_cnt: usize,
        pub rx_ctx_cnt: usize,
        pub max_ep_tx_ctx: usize,
        pub max_ep_rx_ctx: usize,
        pub max_ep_stx_ctx: usize,
        pub max_ep_srx_ctx: usize,
        pub cntr_cnt: usize,
        pub mr_iov_limit: usize,
        pub caps: u64,
        pub mode: u64,
        pub auth_key: *mut u8,
        pub auth_key_size: usize,
        pub max_err_data: usize,
        pub mr_cnt: usize,
    }
}

mirror! { "struct fi_fabric_attr" =>
    /// The fabric of a `fi_info`.
    pub struct fi_fabric_attr {
        pub fabric: *mut fid_fabric,
        pub name: *mut c_char,
        pub prov_name: *mut c_char,
        pub prov_version: u32,
        /// Since libfabric 1.5.
        pub api_version: u32,
    }
}

mirror! { "struct fi_provider" =>
    /// A provider. libfabric's core keeps its own data in `context`, so the structure must be
    /// writable.
    pub struct fi_provider {
        pub version: u32,
        pub fi_version: u32,
        pub context: [usize; 4],
        pub name: *const c_char,
        pub getinfo: unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int,
        pub fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
        pub cleanup: unsafe extern "C" fn(),
    }
}

/// FI_VERSION(1, 0)
pub const FI_VERSION_1_0: u32 = 0x1_0000;
/// FI_VERSION(1, 5)
pub const FI_VERSION_1_5: u32 = 0x1_0005;
/// FI_VERSION(1, 9)
pub const FI_VERSION_1_9: u32 = 0x1_0009;
/// FI_VERSION(1, 19)
pub const FI_VERSION_1_19: u32 = 0x1_0013;
/// FI_VERSION(1, 22)
pub const FI_VERSION_1_22: u32 = 0x1_0016;
/// FI_VERSION(2, 0)
pub const FI_VERSION_2_0: u32 = 0x2_0000;

/// Values of `fi_eq_attr.wait_obj`. They are integers, because C may pass any number there.
pub const FI_WAIT_NONE: c_int = fi_wait_obj::FI_WAIT_NONE as c_int;
/// See [`FI_WAIT_NONE`].
pub const FI_WAIT_UNSPEC: c_int = fi_wait_obj::FI_WAIT_UNSPEC as c_int;
/// See [`FI_WAIT_NONE`].
pub const FI_WAIT_FD: c_int = fi_wait_obj::FI_WAIT_FD as c_int;
/// `fi_ep_attr.type`: connectionless, reliable.
pub const FI_EP_RDM: c_int = 3;
/// `fi_domain_attr.threading`: any thread may make any call.
pub const FI_THREAD_SAFE: c_int = 1;
/// Value of `control_progress` and `data_progress`: the library's own threads make progress.
pub const FI_PROGRESS_AUTO: c_int = 1;
/// `fi_domain_attr.resource_mgmt`: resource management is enabled.
pub const FI_RM_ENABLED: c_int = 2;
/// Capabilities: messages, RMA, atomics.
pub const FI_MSG: u64 = 1 << 1;
/// See [`FI_MSG`].
pub const FI_RMA: u64 = 1 << 2;
/// See [`FI_MSG`].
pub const FI_ATOMIC: u64 = 1 << 4;
/// Capabilities that every provider has: peers on this machine, and peers on other machines.
pub const FI_LOCAL_COMM: u64 = 1 << 51;
/// See [`FI_LOCAL_COMM`].
pub const FI_REMOTE_COMM: u64 = 1 << 52;
/// `fi_info.mode` of libfabric before 1.5: the application registers the memory that it uses
/// itself.
pub const FI_LOCAL_MR: u64 = 1 << 55;

/// The constants, by their C names, for the comparison with the headers.
#[cfg(test)]
pub const PROVIDER_CONSTANTS: &[(&str, u64)] = &[
    ("FI_EP_RDM", FI_EP_RDM as u64),
    ("FI_THREAD_SAFE", FI_THREAD_SAFE as u64),
    ("FI_PROGRESS_AUTO", FI_PROGRESS_AUTO as u64),
    ("FI_RM_ENABLED", FI_RM_ENABLED as u64),
    ("FI_MSG", FI_MSG),
    ("FI_RMA", FI_RMA),
    ("FI_ATOMIC", FI_ATOMIC),
    ("FI_LOCAL_COMM", FI_LOCAL_COMM),
    ("FI_REMOTE_COMM", FI_REMOTE_COMM),
];
