// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of the memory monitor for libfabric's registration cache, and `fi_getinfo`, whose
//! first call imports the monitor into libfabric.
//!
//! This `fi_getinfo` precedes libfabric's in the search order. A program finds it by the version
//! node that the program was linked with, and the call continues in libfabric's function of that
//! node. No program is linked to the symbols here, since they are hidden versions (`@`, not `@@`).
//!
//! # Safety
//! Callers of `fi_getinfo` keep the contract of fi_getinfo(3), and the functions here forward their
//! arguments unchanged. Only libfabric calls the functions of the monitor, as `<rdma/fi_ext.h>`
//! declares them, and it passes the monitor itself.

use crate::capi::export::interpose;
use crate::capi::ret;
use core::ffi::{c_char, c_int, c_void};
use rdmamr_abi::libfabric::FI_ENOSYS;
use rdmamr_abi::libfabric_monitor::*;
use rdmamr_abi::libfabric_provider::fi_info;
use rdmamr_config::{config, disabled};
use rdmamr_fabric::monitor;
use rdmamr_monitor as subscription;
use rdmamr_next as next;
use rdmamr_sys::thread;

static FUNCTIONS: fi_ops_mem_monitor = fi_ops_mem_monitor {
    size: size_of::<fi_ops_mem_monitor>(),
    start,
    stop,
    subscribe,
    unsubscribe,
    valid,
};

unsafe extern "C" fn start(_: *mut fid_mem_monitor) -> c_int {
    ret::always(-FI_ENOSYS, monitor::start)
}

unsafe extern "C" fn stop(_: *mut fid_mem_monitor) {
    ret::always((), subscription::stop)
}

unsafe extern "C" fn subscribe(_: *mut fid_mem_monitor, addr: *const c_void, len: usize) -> c_int {
    ret::always(0, || {
        monitor::subscribe(addr, len);
        0
    })
}

unsafe extern "C" fn unsubscribe(_: *mut fid_mem_monitor, addr: *const c_void, len: usize) {
    ret::always((), || subscription::unsubscribe(addr.addr(), len))
}

unsafe extern "C" fn valid(_: *mut fid_mem_monitor, addr: *const c_void, len: usize) -> bool {
    ret::always(false, || monitor::is_valid(addr, len))
}

/// `fi_getinfo` at one of libfabric's version nodes.
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
            ret::always((), || {
                if config().monitor_libfabric {
                    monitor::import_once(&FUNCTIONS, disabled);
                }
            });
            // libfabric reads files, and a cancellation there would unwind this function.
            let _uncancelled = thread::uncancelled();
            match next::FI_GETINFO[$place].get() {
                // SAFETY: `next` is libfabric's function of the same contract, and gets the
                // arguments unchanged.
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
