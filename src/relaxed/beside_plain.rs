// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the plain calls have to do with the pool: memory that it has pinned is given back when a plain
//! registration finds none, regions of both kinds may be deregistered by either call, and a domain ends only
//! with its relaxed regions.

use super::Instance;
use super::flush::{flush_those, relieve};
use super::pool::Cause;
use super::region::{LEFT, Region};
use super::{ending, existing, start};
use crate::abi::rdma_core::ibv_mr;
use crate::config::{Cache, config};
use crate::mr::{self, Change, Context, Error, Mr, Pd, Request};
use crate::next;
use crate::thread;
use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;
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
    let Some(relaxed) = existing() else {
        return mr::close_device(context);
    };
    let Some(device) = mr::bare::device_at(context.address()) else {
        return mr::close_device(context);
    };
    let of = ending::of_device(device);
    let is_used = relaxed.pool.is_used(&of);
    if is_used && config().cache == Cache::Off {
        return Err(Error::Busy("the device still has relaxed regions in use"));
    }
    let _ = flush_those(relaxed, &of);
    if !is_used {
        return mr::close_device(context);
    }
    // As without the pool, a device can be closed while it has regions: the kernel ends them.
    let fd = context.fd().unwrap_or(LEFT);
    abandon(relaxed, &of, LEFT);
    mr::close_device(context).inspect_err(|_| {
        abandon(relaxed, &of, fd);
    })
}

/// A provider is about to deallocate a domain, for a call that may not have come to us: what nobody uses must not
/// be in the way.
pub fn dealloc_pd_past_us(pd: Pd) {
    if let Some(relaxed) = existing() {
        let _ = flush_those(relaxed, ending::of_pd(pd.address() as u64));
    }
}

/// A domain is about to be forgotten that lives on in the kernel. Its address may be another's next, so nothing of it
/// is used again.
pub fn unimport_pd(pd: Pd) {
    if let Some(relaxed) = existing() {
        let of = ending::of_pd(pd.address() as u64);
        // Those in use as well, before they are idle.
        withdraw(relaxed, &of);
        let _ = flush_those(relaxed, of);
    }
    if let Some(next) = next::UNIMPORT_PD.get() {
        // SAFETY: the program's own domain, to the function that it meant.
        unsafe { next(pd.as_ptr()) }
    }
}

/// The kernel is asked, by `dereg`, to end a region that is none of ours by its object. If it is the same as one of
/// the pool, that must neither be used again nor ended: its number may be another's by then.
pub fn deregister_past_us(mr: Mr, dereg: impl FnOnce() -> c_int) -> c_int {
    let public = mr.read();
    let context = public.context.expose_provenance();
    // Who is interrupted in the pool may have its lock.
    let relaxed = existing().filter(|_| !thread::is_inside());
    let Some((relaxed, device)) = relaxed.zip(mr::bare::device_at(context)) else {
        return dereg();
    };
    let of = |region: &Region| {
        region.handle.load(Relaxed) == public.handle
            && region.lkey() == public.lkey
            && ending::of_device(device)(region)
    };
    // Before, since another region may have the number as soon as this one has ended.
    let had = abandon(relaxed, of, LEFT);
    let errno = dereg();
    if errno != 0
        && let Some(fd) = had
    {
        abandon(relaxed, of, fd);
    }
    errno
}

/// A region of the pool is the program's no more, but the kernel's region lives on, or has been ended by whoever
/// shares it: so it is neither used again nor ended. Of what is none nothing is done.
pub fn forget(object: usize) {
    if let Some(relaxed) = existing()
        && let Some(handle) = relaxed.pool.handle(object)
    {
        let region = relaxed.pool.region(handle.region);
        abandon(relaxed, |other| core::ptr::eq(other, region), LEFT);
    }
}

/// A provider is about to close a device's file, for a call that may not have come to us: what we have on it ends with
/// it, and must not be sought in the next file that gets its number. The address is that of the `verbs_context`,
/// of which the device is the last part.
pub fn close_device_past_us(verbs_context: usize) {
    /// The structure grows at its start with rdma-core's releases; 320 bytes are before the device now, and as many
    /// are the device, so that no other one is as near as this.
    const BEFORE: usize = 600;
    if let Some(relaxed) = existing()
        && let Some(device) = (0..=BEFORE)
            .step_by(size_of::<usize>())
            .find_map(|before| mr::bare::device_at(verbs_context + before))
    {
        let of = ending::of_device(device);
        let _ = flush_those(relaxed, &of);
        abandon(relaxed, &of, LEFT);
    }
}

/// Withdraws regions, and notes the file by which the kernel is told of their end: none once that may be another's.
/// Returns the file that they had, if there were any.
fn abandon(relaxed: &Instance, of: impl Fn(&Region) -> bool, fd: i32) -> Option<i32> {
    let mut had = None;
    withdraw(relaxed, |region| {
        let meant = of(region);
        if meant {
            had = Some(region.fd.swap(fd, Relaxed));
        }
        meant
    });
    had
}

fn withdraw(relaxed: &Instance, mut of: impl FnMut(&Region) -> bool) {
    let _inside = thread::enter();
    let locked = relaxed.pool.lock();
    for (id, region) in relaxed.pool.each() {
        if region.word.load().is_registered() && !region.is_watched_only() && of(region) {
            locked.withdraw(id, Cause::Flush);
        }
    }
}
