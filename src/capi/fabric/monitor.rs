// SPDX-License-Identifier: MIT OR Apache-2.0
//! What libfabric calls in the monitor for its registration cache, and `fi_getinfo`, at which it is imported.
//!
//! `fi_getinfo` is libfabric's. Programs find ours by the version node that they were linked with, at which
//! they then get libfabric's of that node; nobody is linked to ours (`@`, not `@@`).
//!
//! # Safety
//! As fi_getinfo(3), and `<rdma/fi_ext.h>`: the functions of a monitor are called by libfabric, with it.

use crate::abi::libfabric::FI_ENOSYS;
use crate::abi::libfabric_monitor::*;
use crate::abi::libfabric_provider::fi_info;
use crate::capi::export::interpose;
use crate::fabric::monitor;
use crate::next;
use crate::relaxed::subscription;
use core::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;

static FUNCTIONS: fi_ops_mem_monitor = fi_ops_mem_monitor {
    size: size_of::<fi_ops_mem_monitor>(),
    start,
    stop,
    subscribe,
    unsubscribe,
    valid,
};

unsafe extern "C" fn start(_: *mut fid_mem_monitor) -> c_int {
    catch_unwind(monitor::start).unwrap_or(-FI_ENOSYS)
}

unsafe extern "C" fn stop(_: *mut fid_mem_monitor) {
    let _ = catch_unwind(subscription::stop);
}

unsafe extern "C" fn subscribe(_: *mut fid_mem_monitor, addr: *const c_void, len: usize) -> c_int {
    let _ = catch_unwind(|| monitor::subscribe(addr, len));
    0
}

unsafe extern "C" fn unsubscribe(_: *mut fid_mem_monitor, addr: *const c_void, len: usize) {
    let _ = catch_unwind(|| subscription::unsubscribe(addr.addr(), len));
}

unsafe extern "C" fn valid(_: *mut fid_mem_monitor, addr: *const c_void, len: usize) -> bool {
    catch_unwind(|| monitor::is_valid(addr, len)).unwrap_or(false)
}

/// `fi_getinfo` at a version node of libfabric's.
macro_rules! getinfo {
    ($($name:ident, $place:literal, $node:literal;)*) => { $(
        unsafe extern "C" fn $name(
            version: u32,
            node: *const c_char,
            service: *const c_char,
            flags: u64,
            hints: *const fi_info,
            info: *mut *mut fi_info,
        ) -> c_int {
            let _ = catch_unwind(|| monitor::import_once(&FUNCTIONS));
            match next::FI_GETINFO[$place].get() {
                // SAFETY: the caller's own arguments.
                Some(next) => unsafe { next(version, node, service, flags, hints, info) },
                None => -FI_ENOSYS,
            }
        }
        interpose!($name as "fi_getinfo", $node);
    )* };
}
getinfo! {
    fi_getinfo_1_0, 0, "FABRIC_1.0";
    fi_getinfo_1_1, 1, "FABRIC_1.1";
    fi_getinfo_1_2, 2, "FABRIC_1.2";
    fi_getinfo_1_3, 3, "FABRIC_1.3";
    fi_getinfo_1_7, 4, "FABRIC_1.7";
    fi_getinfo_1_8, 5, "FABRIC_1.8";
    fi_getinfo_1_9, 6, "FABRIC_1.9";
}
