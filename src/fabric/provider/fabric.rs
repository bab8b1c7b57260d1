// SPDX-License-Identifier: MIT OR Apache-2.0
//! The provider's fabric: what opens domains and queues through libfabric.

use super::NAME;
use super::devices::{Device, DomainsOwn};
use crate::abi::libfabric::*;
use crate::abi::libfabric_provider::*;
use crate::config::config;
use crate::fabric::domain::Mode;
use crate::fabric::errors::{Failure, invalid, refused};
use crate::fabric::{Domain, Process, Queue, Tables};
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

/// A fabric.
#[repr(C)]
pub struct Fabric {
    // As `struct fid_fabric` has it. libfabric's core writes the version.
    fclass: AtomicUsize,
    context: AtomicPtr<c_void>,
    ops: &'static fi_ops,
    rest: &'static fi_ops_fabric,
    api_version: AtomicU32,
    // From here on ours.
    process: Process,
    tables: &'static Tables,
    /// Domains and queues that are open.
    opened: AtomicUsize,
}
const _: () = assert!(core::mem::offset_of!(Fabric, process) >= size_of::<fid_fabric>());
const _: () =
    assert!(core::mem::offset_of!(Fabric, rest) == core::mem::offset_of!(fid_fabric, ops));
const _: () = assert!(
    core::mem::offset_of!(Fabric, api_version) == core::mem::offset_of!(fid_fabric, api_version)
);

/// Something of a fabric that is open.
pub struct Held(&'static Fabric);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.opened.fetch_sub(1, AcqRel);
    }
}

impl Fabric {
    /// Opens the fabric.
    ///
    /// # Safety
    /// As libfabric calls a provider.
    pub unsafe fn open(
        tables: &'static Tables,
        ops: &'static fi_ops,
        rest: &'static fi_ops_fabric,
        attr: *const fi_fabric_attr,
        context: *mut c_void,
    ) -> Result<*mut fid_fabric, Failure> {
        // SAFETY: the caller's word.
        let attr = unsafe { attr.as_ref() }.ok_or(invalid("the attributes are NULL"))?;
        // SAFETY: a string, or NULL.
        if attr.name.is_null() || unsafe { CStr::from_ptr(attr.name) } != NAME {
            return Err(refused(
                FI_ENODATA,
                "the provider has no fabric of that name",
            ));
        }
        let fabric = Box::new(Fabric {
            fclass: AtomicUsize::new(FI_CLASS_FABRIC),
            context: AtomicPtr::new(context),
            ops,
            rest,
            api_version: AtomicU32::new(attr.api_version),
            process: Process::this(),
            tables,
            opened: AtomicUsize::new(0),
        });
        Ok(Box::into_raw(fabric).cast())
    }

    /// The fabric that C names.
    ///
    /// # Safety
    /// It is an open fabric of this library.
    pub unsafe fn from_c(fabric: *mut fid_fabric) -> Result<&'static Fabric, Failure> {
        // SAFETY: the caller's word: the table of functions that led here is that of our fabrics. It is
        // not closed as long as it counts something that holds it.
        let fabric = unsafe { &*fabric.cast::<Fabric>() };
        fabric.process.check()?;
        Ok(fabric)
    }

    /// Closes it.
    ///
    /// # Safety
    /// It is an open fabric of this library, and not used again after success.
    pub unsafe fn close(fid: *mut fid) -> Result<(), Failure> {
        // SAFETY: the caller's word.
        let fabric = unsafe { Fabric::from_c(fid.cast()) }?;
        if fabric.opened.load(Acquire) > 0 {
            return Err(refused(FI_EBUSY, "the fabric still has domains or queues"));
        }
        // SAFETY: `open` made it, and by the caller's word this is its end.
        drop(unsafe { Box::from_raw(fid.cast::<Fabric>()) });
        Ok(())
    }

    fn hold(&'static self) -> Held {
        self.opened.fetch_add(1, AcqRel);
        Held(self)
    }

    /// Opens a domain on the device that `info` names.
    ///
    /// # Safety
    /// `info` is NULL or a `struct fi_info`.
    pub unsafe fn open_domain(
        &'static self,
        info: *const fi_info,
        context: *mut c_void,
    ) -> Result<*mut fid_domain, Failure> {
        // SAFETY: the caller's word.
        let info = unsafe { info.as_ref() }.ok_or(invalid("the info is NULL"))?;
        // SAFETY: a part of the info, or NULL.
        let attr = unsafe { info.domain_attr.as_ref() };
        let attr = attr.ok_or(invalid("the info has no domain attributes"))?;
        if attr.name.is_null() {
            return Err(invalid(
                "the info names no domain: take one of fi_getinfo()'s",
            ));
        }
        let mode = Mode {
            relaxed: config().fabric_relaxed,
            ..Mode::agreed(self.api_version.load(Relaxed), attr.mr_mode)?
        };
        // SAFETY: a string of the info.
        let device = Device::open_by_name(unsafe { CStr::from_ptr(attr.name) })?;
        let pd = match device.allocate_pd() {
            Ok(pd) => pd,
            Err(failure) => {
                // The first failure counts.
                let _ = device.close();
                return Err(failure);
            }
        };
        let own = DomainsOwn {
            device,
            without_pd: AtomicBool::new(false),
            _held: self.hold(),
        };
        Domain::open(self.tables, pd, mode, context, Some(Box::new(own)))
    }

    /// Opens an event queue.
    ///
    /// # Safety
    /// As [`Queue::open`].
    pub unsafe fn open_queue(
        &'static self,
        attr: *const fi_eq_attr,
        context: *mut c_void,
    ) -> Result<*mut fid_eq, Failure> {
        let version = self.api_version.load(Relaxed);
        // SAFETY: the caller's word.
        unsafe { Queue::open(self.tables, version, attr, context, Some(self.hold())) }
    }
}
