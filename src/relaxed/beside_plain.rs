// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the plain calls have to do with the pool: memory that it has pinned is given back when a plain
//! registration finds none, regions of both kinds may be deregistered by either call, and a domain ends only
//! with its relaxed regions.

use super::flush::{flush_those, relieve};
use super::{ending, existing, release, start};
use crate::abi::rdma_core::ibv_mr;
use crate::mr::{self, Change, Context, Error, Mr, Pd, Request};
use crate::thread;
use core::ffi::c_int;
use errno::Errno;

/// Registers memory for a region of its own.
#[inline(always)]
pub fn register(pd: Pd, request: &Request) -> Result<*mut ibv_mr, Error> {
    match mr::register(pd, request) {
        Err(Error::Kernel(Errno(libc::ENOMEM)) | Error::Next(Errno(libc::ENOMEM))) => {
            register_again(pd, request)
        }
        result => result,
    }
}

#[cold]
fn register_again(pd: Pd, request: &Request) -> Result<*mut ibv_mr, Error> {
    if let Some(relaxed) = existing()
        && !thread::is_inside()
    {
        let inside = thread::enter();
        relieve(relaxed);
        drop(inside);
    }
    mr::register(pd, request)
}

/// Changes a region; a relaxed one cannot be.
///
/// # Safety
/// As for [`mr::rereg`].
pub unsafe fn rereg(mr: Mr, change: &Change) -> Result<c_int, Error> {
    if start::is_object(mr.address()) {
        return Err(Error::Argument(
            "a relaxed region cannot be changed: others may use it, now or later",
        ));
    }
    // SAFETY: the caller's word.
    unsafe { mr::rereg(mr, change) }
}

/// Deallocates a protection domain.
pub fn dealloc_pd(pd: Pd) -> Result<(), Error> {
    if let Some(relaxed) = existing() {
        let of = ending::of_pd(pd.address() as u64);
        if relaxed.pool.is_used(&of) {
            return Err(Error::Busy("the domain still has relaxed regions in use"));
        }
        // What the kernel refuses to deregister makes it refuse the domain as well.
        let _ = flush_those(relaxed, of);
    }
    mr::dealloc_pd(pd)
}

/// Closes a device.
pub fn close_device(context: Context) -> Result<(), Error> {
    if let Some(relaxed) = existing()
        && let Some(device) = mr::bare::device_of(context)
    {
        let of = |region: &super::region::Region| {
            region.device.load(core::sync::atomic::Ordering::Relaxed) == device
        };
        if relaxed.pool.is_used(of) {
            return Err(Error::Busy("the device still has relaxed regions in use"));
        }
        let _ = flush_those(relaxed, of);
    }
    mr::close_device(context)
}

/// Deregisters a region of either kind.
#[inline(always)]
pub fn deregister(mr: Mr) -> Result<(), Error> {
    release::deregister(mr)
}
