// SPDX-License-Identifier: MIT OR Apache-2.0
//! The provider's fabric. Through it, libfabric opens domains and queues.

use super::NAME;
use super::devices::{DeviceOfDomain, allocate_pd, open_by_name};
use crate::domain::Domain;
use crate::errors::{Result, ensure, may_allocate};
use crate::mode::Mode;
use crate::object::{Head, Hold, Process, Tables};
use crate::queue::Queue;
use crate::refusals::*;
use core::ffi::{CStr, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::*;
use rdmamr_cache::dispatch;

/// A fabric.
#[repr(C)]
pub struct Fabric {
    // The fields of `struct fid_fabric`. libfabric's core writes the version.
    _fid: Head,
    rest: &'static fi_ops_fabric,
    api_version: AtomicU32,
    // The private fields.
    process: Process,
    tables: &'static Tables,
    /// Whether the domains use the cache.
    cached: bool,
    /// The number of open domains and queues.
    holds: AtomicUsize,
}
const _: () = assert!(offset_of!(Fabric, process) >= size_of::<fid_fabric>());
const _: () = assert!(offset_of!(Fabric, rest) == offset_of!(fid_fabric, ops));
const _: () = assert!(offset_of!(Fabric, api_version) == offset_of!(fid_fabric, api_version));

impl Fabric {
    /// Opens the fabric. `cached` says whether its domains use the cache.
    ///
    /// # Safety
    /// `attr` is NULL or valid, as libfabric passes it to a provider.
    pub unsafe fn open(
        tables: &'static Tables,
        ops: &'static fi_ops,
        rest: &'static fi_ops_fabric,
        cached: bool,
        attr: *const fi_fabric_attr,
        context: *mut c_void,
    ) -> Result<*mut fid_fabric> {
        may_allocate()?;
        // SAFETY: the caller promised that `attr` is NULL or valid.
        let attr = unsafe { attr.as_ref() }.ok_or(NULL_ATTRIBUTES)?;
        // SAFETY: `name` is not NULL here, and libfabric passes a string in it.
        let ours = !attr.name.is_null() && unsafe { CStr::from_ptr(attr.name) } == NAME;
        ensure(ours, NO_FABRIC)?;
        let fabric = Box::new(Fabric {
            _fid: Head::new(FI_CLASS_FABRIC, context, ops),
            rest,
            api_version: AtomicU32::new(attr.api_version),
            process: Process::this(),
            tables,
            cached,
            holds: AtomicUsize::new(0),
        });
        Ok(Box::into_raw(fabric).cast())
    }

    /// The fabric that C names. A fabric that the parent process opened is refused.
    ///
    /// # Safety
    /// `fabric` is an open fabric of this library.
    pub unsafe fn from_c(fabric: *mut fid_fabric) -> Result<&'static Fabric> {
        // SAFETY: the caller promised an open fabric: only fabrics have the table that led here.
        // `close` refuses a fabric that counts a holder.
        let fabric = unsafe { &*fabric.cast::<Fabric>() };
        fabric.process.check()?;
        Ok(fabric)
    }

    /// Closes the fabric.
    ///
    /// # Safety
    /// `fid` is an open fabric of this library. After success the caller does not use it again.
    pub unsafe fn close(fid: *mut fid) -> Result<()> {
        // SAFETY: the caller promised an open fabric of this library.
        let fabric = unsafe { Fabric::from_c(fid.cast()) }?;
        ensure(fabric.holds.load(Acquire) == 0, FABRIC_IN_USE)?;
        // SAFETY: `open` made the box, and the caller promised not to use the fabric again.
        drop(unsafe { Box::from_raw(fid.cast::<Fabric>()) });
        Ok(())
    }

    /// Opens a domain on the device that `info` names.
    ///
    /// # Safety
    /// `info` is NULL or a valid `struct fi_info`.
    pub unsafe fn open_domain(
        &'static self,
        info: *const fi_info,
        context: *mut c_void,
    ) -> Result<*mut fid_domain> {
        // SAFETY: the caller promised that `info` is NULL or valid.
        let info = unsafe { info.as_ref() }.ok_or(NULL_INFO)?;
        // SAFETY: `domain_attr` of a valid info is NULL or valid.
        let attr = unsafe { info.domain_attr.as_ref() };
        let attr = attr.ok_or(NO_DOMAIN_ATTRIBUTES)?;
        ensure(!attr.name.is_null(), NO_DOMAIN_NAME)?;
        let mode = Mode {
            cached: self.cached,
            ..Mode::agreed(self.api_version.load(Relaxed), attr.mr_mode)?
        };
        // SAFETY: `name` is not NULL, and a valid info has a string in it.
        let device = open_by_name(unsafe { CStr::from_ptr(attr.name) })?;
        let pd = allocate_pd(device).inspect_err(|_| {
            // The caller gets the first failure.
            let _ = dispatch::close_device(device);
        })?;
        let opened = DeviceOfDomain {
            device,
            without_pd: AtomicBool::new(false),
            _fabric: Hold::on(&self.holds),
        };
        Domain::open(self.tables, pd, mode, context, Some(opened))
    }

    /// Opens an event queue.
    ///
    /// # Safety
    /// The caller keeps the promises of [`Queue::open`].
    pub unsafe fn open_queue(
        &'static self,
        attr: *const fi_eq_attr,
        context: *mut c_void,
    ) -> Result<*mut fid_eq> {
        let version = self.api_version.load(Relaxed);
        let hold = Some(Hold::on(&self.holds));
        // SAFETY: the caller promised what `Queue::open` demands: `attr` is NULL or readable.
        unsafe { Queue::open(self.tables, version, attr, context, hold) }
    }
}
