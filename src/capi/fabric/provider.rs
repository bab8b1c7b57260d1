// SPDX-License-Identifier: MIT OR Apache-2.0
//! The provider interface, fi_provider(7): libfabric finds this library as `librdmamr-fi.so` and
//! enters it here.
//!
//! # Safety
//! libfabric and its application keep these contracts.
//!
//! - **Open objects**: a fabric that libfabric passes is open, and this library made it. Other
//!   objects are NULL or open.
//! - **Caller's memory**: any other pointer is NULL or points to a valid value of its type; a
//!   pointer for a result points to writable memory.

use super::functions::{no_bind, no_control, nothing};
use super::tables::{TABLES, object};
use crate::capi::export::versioned;
use crate::capi::ret;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::*;
use rdmamr_config::config;
use rdmamr_fabric::errors::{Failure, ensure};
use rdmamr_fabric::provider::{self, Fabric};
use rdmamr_fabric::queue::Queue;
use rdmamr_fabric::refusals::*;
use rdmamr_mr::Error;

static FABRIC: fi_ops = object(fabric_close, no_bind, no_control);

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
        ensure(!info.is_null(), NULL_INFO_PLACE)?;
        let has_address = !node.is_null() || !service.is_null();
        // SAFETY: caller's memory: `hints` is NULL or points to a valid info.
        let list = match unsafe { provider::getinfo(version, has_address, flags, hints) } {
            // FI_ENODATA is not a failure: a provider returns it for hints that do not match the
            // provider.
            Err(Failure {
                error: Error::Refused(FI_ENODATA, _),
                ..
            }) => return Ok(-FI_ENODATA),
            result => result?,
        };
        // SAFETY: caller's memory: `info` is not NULL, so it points to a writable pointer.
        unsafe { info.write(list) };
        Ok(0)
    })
}

unsafe extern "C" fn fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    ret::done("fi_fabric", || {
        let cached = config().fabric_cache;
        // SAFETY: caller's memory: `attr` is NULL or points to valid fabric attributes.
        let opened =
            unsafe { Fabric::open(&TABLES, &FABRIC, &FABRIC_REST, cached, attr, context) }?;
        // SAFETY: caller's memory: libfabric's core passes a writable place for the fabric.
        unsafe { fabric.write(opened) };
        Ok(())
    })
}

unsafe extern "C" fn cleanup() {}

unsafe extern "C" fn fabric_close(fid: *mut fid) -> c_int {
    // SAFETY: open objects: libfabric passes a fabric that this library made.
    ret::done("fi_close", || unsafe { Fabric::close(fid) })
}

unsafe extern "C" fn domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    ret::done("fi_domain", || {
        // SAFETY: open objects: libfabric passes a fabric that this library made.
        let fabric = unsafe { Fabric::from_c(fabric) }?;
        ensure(!domain.is_null(), NULL_DOMAIN_PLACE)?;
        // SAFETY: caller's memory: `info` is NULL or points to a valid info of the application.
        let opened = unsafe { fabric.open_domain(info, context) }?;
        // SAFETY: caller's memory: `domain` is not NULL, so it points to a writable pointer.
        unsafe { domain.write(opened) };
        Ok(())
    })
}

unsafe extern "C" fn eq_open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    ret::done("fi_eq_open", || {
        // SAFETY: open objects: libfabric passes a fabric that this library made.
        let fabric = unsafe { Fabric::from_c(fabric) }?;
        ensure(!eq.is_null(), NULL_QUEUE_PLACE)?;
        // SAFETY: caller's memory: `attr` is NULL or points to queue attributes.
        let opened = unsafe { fabric.open_queue(attr, context) }?;
        // SAFETY: caller's memory: `eq` is not NULL, so it points to a writable pointer.
        unsafe { eq.write(opened) };
        Ok(())
    })
}

unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    ret::done("fi_trywait", || {
        let count = usize::try_from(count).unwrap_or(0);
        ensure(!fids.is_null() || count == 0, NULL_OBJECTS)?;
        for n in 0..count {
            // SAFETY: caller's memory: `fids` has `count` elements.
            let object = unsafe { fids.wrapping_add(n).read() };
            // SAFETY: open objects: `object` is NULL or an open object.
            let ops = unsafe { object.as_ref() }.map_or(null_mut(), |object| object.ops);
            ensure(core::ptr::eq(ops, &TABLES.queue), OTHER_QUEUE)?;
            // SAFETY: the table is that of this library's queues, and the caller keeps the queue
            // open.
            let queue = unsafe { Queue::from_c(object.cast()) }?;
            ensure(queue.is_empty(), QUEUE_NOT_EMPTY)?;
        }
        Ok(())
    })
}

/// This library's version, in the form of FI_VERSION(major, minor).
const RELEASE: u32 =
    crate::capi::rdmamr::RDMAMR_VERSION_MAJOR << 16 | crate::capi::rdmamr::RDMAMR_VERSION_MINOR;

/// Returns the provider's description to the libfabric that has loaded this library, or NULL to a
/// libfabric that is too old or too new. A libfabric that gets NULL continues without this
/// provider.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    ret::always(null_mut(), || {
        let Some(fi_version) = provider::serves() else {
            return null_mut();
        };
        // libfabric's core writes to the description, and keeps it.
        Box::into_raw(Box::new(fi_provider {
            version: RELEASE,
            fi_version,
            context: [0; 4],
            name: provider::NAME.as_ptr(),
            getinfo,
            fabric,
            cleanup,
        }))
    })
}
versioned!(fi_prov_ini, "RDMAMR_1.0");
