// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory monitor for libfabric's registration cache, from `<rdma/fi_ext.h>` of libfabric 1.13
//! and later.
//! A table of functions begins with its size and grows at its end.

use crate::libfabric::*;
use crate::mirror;
use core::ffi::{c_int, c_void};

mirror! { "struct fid_mem_monitor" =>
    /// A monitor. libfabric writes the table of its own functions to `import_ops`.
    pub struct fid_mem_monitor {
        pub fid: fid,
        pub export_ops: *const fi_ops_mem_monitor,
        pub import_ops: *const fi_ops_mem_notify,
    }
}

mirror! { "struct fi_ops_mem_monitor" =>
    /// The monitor's functions for libfabric. libfabric holds its own lock when it calls any of
    /// them but the first two.
    pub struct fi_ops_mem_monitor {
        pub size: usize,
        pub start: unsafe extern "C" fn(*mut fid_mem_monitor) -> c_int,
        pub stop: unsafe extern "C" fn(*mut fid_mem_monitor),
        pub subscribe: unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize) -> c_int,
        pub unsubscribe: unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize),
        pub valid: unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize) -> bool,
    }
}

mirror! { "struct fi_ops_mem_notify" =>
    /// libfabric's functions for the monitor.
    pub struct fi_ops_mem_notify {
        pub size: usize,
        pub notify: unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize),
    }
}

/// The class of a monitor.
pub const FI_CLASS_MEM_MONITOR: usize = 23;
