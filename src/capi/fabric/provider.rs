// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's entry into the library where it finds it as `librdmamr-fi.so`, fi_provider(7).
//!
//! # Safety
//! As libfabric calls a provider.

use super::functions::{no_bind, no_control, no_ops_open, no_ops_set, no_tostr, nothing};
use super::tables::tables;
use crate::abi::libfabric::*;
use crate::abi::libfabric_provider::*;
use crate::capi::export::versioned;
use crate::capi::ret;
use crate::fabric::Queue;
use crate::fabric::errors::{Failure, invalid, refused};
use crate::fabric::provider::{self, Fabric};
use crate::mr::Error;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use std::sync::Mutex;

static FABRIC: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(fabric_close),
    bind: Some(no_bind),
    control: Some(no_control),
    ops_open: Some(no_ops_open),
    tostr: Some(no_tostr),
    ops_set: Some(no_ops_set),
};

static FABRIC_REST: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain,
    passive_ep: nothing,
    eq_open,
    wait_open: nothing,
    trywait,
    domain2: nothing,
};

unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    ret::code("fi_getinfo", None, || {
        if info.is_null() {
            return Err(invalid("the place for the info is NULL"));
        }
        let has_address = !node.is_null() || !service.is_null();
        // SAFETY: as libfabric calls a provider.
        let list = match unsafe { provider::getinfo(version, has_address, flags, hints) } {
            // No failure: it is how a provider says that it is not meant.
            Err(Failure {
                error: Error::Refused(FI_ENODATA, _),
                ..
            }) => return Ok(-FI_ENODATA),
            result => result?,
        };
        // SAFETY: as above.
        unsafe { info.write(list) };
        Ok(0)
    })
}

unsafe extern "C" fn fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    ret::code("fi_fabric", None, || {
        // SAFETY: as libfabric calls a provider.
        let opened = unsafe { Fabric::open(tables(), &FABRIC, &FABRIC_REST, attr, context) }?;
        // SAFETY: as above.
        unsafe { fabric.write(opened) };
        Ok(0)
    })
}

unsafe extern "C" fn cleanup() {}

unsafe extern "C" fn fabric_close(fid: *mut fid) -> c_int {
    ret::code("fi_close", None, || {
        // SAFETY: one of our fabrics.
        unsafe { Fabric::close(fid) }?;
        Ok(0)
    })
}

unsafe extern "C" fn domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    ret::code("fi_domain", None, || {
        // SAFETY: one of our fabrics.
        let fabric = unsafe { Fabric::from_c(fabric) }?;
        if domain.is_null() {
            return Err(invalid("the place for the domain is NULL"));
        }
        // SAFETY: the application's info.
        let opened = unsafe { fabric.open_domain(info, context) }?;
        // SAFETY: the application's.
        unsafe { domain.write(opened) };
        Ok(0)
    })
}

unsafe extern "C" fn eq_open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    ret::code("fi_eq_open", None, || {
        // SAFETY: one of our fabrics.
        let fabric = unsafe { Fabric::from_c(fabric) }?;
        if eq.is_null() {
            return Err(invalid("the place for the queue is NULL"));
        }
        // SAFETY: the application's attributes.
        let opened = unsafe { fabric.open_queue(attr, context) }?;
        // SAFETY: the application's.
        unsafe { eq.write(opened) };
        Ok(0)
    })
}

unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    ret::code("fi_trywait", None, || {
        let count = usize::try_from(count).unwrap_or(0);
        if fids.is_null() && count > 0 {
            return Err(invalid("the objects are NULL"));
        }
        for n in 0..count {
            // SAFETY: that many are there.
            let object = unsafe { fids.wrapping_add(n).read() };
            // SAFETY: NULL, or an open object.
            let class = unsafe { object.as_ref() }.map(|object| object.fclass);
            // SAFETY: an event queue, by its class.
            if class != Some(FI_CLASS_EQ) || !unsafe { Queue::is_ours(object.cast(), tables()) } {
                return Err(invalid("an object is no event queue of this provider"));
            }
            // SAFETY: one of our queues.
            if !unsafe { Queue::from_c(object.cast()) }?.is_empty() {
                return Err(refused(FI_EAGAIN, "a queue has events to be read"));
            }
        }
        Ok(0)
    })
}

/// The provider, in memory that libfabric's core may write to.
struct Shared(Mutex<fi_provider>);

// SAFETY: its pointers are to statics.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

static PROVIDER: Shared = Shared(Mutex::new(fi_provider {
    version: RELEASE,
    fi_version: 0,
    context: [0; 4],
    name: provider::NAME.as_ptr(),
    getinfo,
    fabric,
    cleanup,
}));

/// Our version as FI_VERSION(major, minor) writes one.
const RELEASE: u32 =
    crate::capi::rdmamr::RDMAMR_VERSION_MAJOR << 16 | crate::capi::rdmamr::RDMAMR_VERSION_MINOR;

/// The provider, for the libfabric that has loaded the library. NULL for one that is too old or too new: then
/// it goes on without.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let Some(version) = provider::serves() else {
        return null_mut();
    };
    let Ok(mut provider) = PROVIDER.0.lock() else {
        return null_mut();
    };
    provider.fi_version = version;
    &raw mut *provider
}
versioned!(fi_prov_ini, "RDMAMR_1.0");
