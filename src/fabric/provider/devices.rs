// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs devices of this machine, as the underlying libibverbs lists them.

use crate::errors::{Failure, Result};
use crate::object::Hold;
use crate::refusals::NO_DEVICE;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering::*};
use errno::errno;
use rdmamr_abi::rdma_core::*;
use rdmamr_cache::dispatch;
use rdmamr_mr::Error;
use rdmamr_next::{self as next, Context, Next, Pd};
use rdmamr_sys::thread;

/// A function of libibverbs.
fn function<F: Copy>(next: &Next<F>) -> Result<F> {
    next.get().ok_or(Failure::from(Error::NoNext(next.name())))
}

/// The failure of the call of libibverbs that has just returned.
fn failed() -> Failure {
    Failure::from(Error::Next(errno()))
}

/// Calls `look` for each device, until `look` returns a result.
pub fn find<R>(mut look: impl FnMut(&CStr, *mut ibv_device) -> Option<R>) -> Result<Option<R>> {
    let list = function(&next::GET_DEVICE_LIST)?;
    let free = function(&next::FREE_DEVICE_LIST)?;
    let _uncancelled = thread::uncancelled();
    let mut count: c_int = 0;
    // SAFETY: `count` is writable.
    let devices = unsafe { list(&mut count) };
    if devices.is_null() {
        return Err(failed());
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: libibverbs returned a list of `count` devices.
    let slice = unsafe { core::slice::from_raw_parts(devices, count) };
    let found = slice.iter().find_map(|&device| {
        // SAFETY: `device` is in the list, which is not freed yet.
        let name = unsafe { &raw const (*device).name };
        // SAFETY: libibverbs ends names with a NUL.
        let name = unsafe { CStr::from_ptr(name.cast()) };
        look(name, device)
    });
    // SAFETY: libibverbs made the list; its devices that were opened stay open.
    unsafe { free(devices) };
    Ok(found)
}

/// Opens a device.
pub fn open(device: *mut ibv_device) -> Result<Context> {
    let open = function(&next::OPEN_DEVICE)?;
    let _uncancelled = thread::uncancelled();
    // SAFETY: `device` is in a list that is not freed yet.
    let context = unsafe { open(device) };
    // SAFETY: `context` is NULL, or libibverbs has just opened it.
    unsafe { Context::from_c(context) }.ok_or_else(failed)
}

/// Opens the device of that name.
pub fn open_by_name(wanted: &CStr) -> Result<Context> {
    find(|name, device| (name == wanted).then(|| open(device)))?.unwrap_or(Err(NO_DEVICE.into()))
}

/// Allocates a protection domain on an open device.
pub fn allocate_pd(device: Context) -> Result<Pd> {
    let allocate = function(&next::ALLOC_PD)?;
    let _uncancelled = thread::uncancelled();
    // SAFETY: the device is open.
    let pd = unsafe { allocate(device.as_ptr()) };
    // SAFETY: `pd` is NULL, or libibverbs has just made it.
    unsafe { Pd::from_c(pd) }.ok_or_else(failed)
}

/// A device that was opened for one domain.
pub struct DeviceOfDomain {
    pub device: Context,
    /// Whether an earlier attempt to close has deallocated the protection domain.
    pub without_pd: AtomicBool,
    /// Keeps the fabric open that opened the device.
    pub _fabric: Hold,
}

impl DeviceOfDomain {
    /// Closes the device. After an error the device is still open.
    pub fn close(&self, pd: Pd) -> Result<(), Error> {
        if !self.without_pd.load(Acquire) {
            dispatch::dealloc_pd(pd)?;
            self.without_pd.store(true, Release);
        }
        dispatch::close_device(self.device)
    }
}
