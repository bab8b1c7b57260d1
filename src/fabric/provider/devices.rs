// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs devices of this machine, by the libibverbs underneath.

use crate::abi::rdma_core::*;
use crate::fabric::domain::Opened;
use crate::fabric::errors::{Failure, refused};
use crate::mr::{Context, Error, Pd};
use crate::next;
use crate::relaxed::beside_plain;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::*};
use errno::errno;

/// An open device.
pub struct Device(Context);

// SAFETY: contexts of libibverbs may be used by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

fn missing(name: &'static str) -> Failure {
    Failure::from(Error::NoNext(name))
}

/// Looks at the devices, until one is wanted.
pub fn find<R>(
    mut look: impl FnMut(&CStr, *mut ibv_device) -> Option<R>,
) -> Result<Option<R>, Failure> {
    let list = next::GET_DEVICE_LIST
        .get()
        .ok_or(missing("ibv_get_device_list"))?;
    let free = next::FREE_DEVICE_LIST
        .get()
        .ok_or(missing("ibv_free_device_list"))?;
    let mut count: c_int = 0;
    // SAFETY: the count is writable.
    let devices = unsafe { list(&mut count) };
    if devices.is_null() {
        return Err(Failure::from(Error::Next(errno())));
    }
    // SAFETY: that many are there.
    let slice =
        unsafe { core::slice::from_raw_parts(devices, usize::try_from(count).unwrap_or(0)) };
    let found = slice.iter().find_map(|&device| {
        // SAFETY: a device of the list.
        let name = unsafe { &raw const (*device).name };
        // SAFETY: libibverbs ends names with a NUL.
        let name = unsafe { CStr::from_ptr(name.cast()) };
        look(name, device)
    });
    // SAFETY: the list; devices that were opened stay.
    unsafe { free(devices) };
    Ok(found)
}

impl Device {
    /// Opens a device.
    pub fn open(device: *mut ibv_device) -> Result<Device, Failure> {
        let open = next::OPEN_DEVICE.get().ok_or(missing("ibv_open_device"))?;
        // SAFETY: a device of a list that is not freed yet.
        let context = unsafe { open(device) };
        // SAFETY: libibverbs has just opened it.
        let context = unsafe { Context::from_c(context) };
        let context = context.ok_or_else(|| Failure::from(Error::Next(errno())))?;
        Ok(Device(context))
    }

    /// The device of that name.
    pub fn open_by_name(wanted: &CStr) -> Result<Device, Failure> {
        find(|name, device| (name == wanted).then(|| Device::open(device)))?.unwrap_or(Err(
            refused(libc::ENODEV, "there is no verbs device of that name"),
        ))
    }

    /// How many regions it can have.
    pub fn max_regions(&self) -> Option<usize> {
        let query = next::QUERY_DEVICE.get()?;
        /// More than `struct ibv_device_attr` has had since its beginning; it does not grow.
        #[repr(C)]
        struct Room(ibv_device_attr, [u64; 64]);
        let mut room = MaybeUninit::<Room>::zeroed();
        // SAFETY: an open device, and room.
        let errno = unsafe { query(self.0.as_ptr(), room.as_mut_ptr().cast()) };
        // SAFETY: all zeros is one, and so is what libibverbs has written.
        let room = unsafe { room.assume_init() };
        (errno == 0).then(|| usize::try_from(room.0.max_mr).unwrap_or(0))
    }

    /// Makes a protection domain.
    pub fn allocate_pd(&self) -> Result<Pd, Failure> {
        let allocate = next::ALLOC_PD.get().ok_or(missing("ibv_alloc_pd"))?;
        // SAFETY: an open device.
        let pd = unsafe { allocate(self.0.as_ptr()) };
        // SAFETY: libibverbs has just made it.
        let pd = unsafe { Pd::from_c(pd) };
        pd.ok_or_else(|| Failure::from(Error::Next(errno())))
    }

    /// Closes it.
    pub fn close(&self) -> Result<(), Error> {
        beside_plain::close_device(self.0)
    }
}

/// A device that a domain has opened for itself.
pub struct DomainsOwn<Held> {
    pub device: Device,
    /// Whether its protection domain has gone already, in an earlier attempt to close.
    pub without_pd: AtomicBool,
    pub _held: Held,
}

impl<Held: Send + Sync> Opened for DomainsOwn<Held> {
    fn close(&self, pd: Pd) -> Result<(), Error> {
        if !self.without_pd.load(Acquire) {
            beside_plain::dealloc_pd(pd)?;
            self.without_pd.store(true, Release);
        }
        self.device.close()
    }
}
