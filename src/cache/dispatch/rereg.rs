// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_rereg_mr(3) on a region of any kind.

use crate::dispatch::register::register_rarely;
use crate::dispatch::reuse;
use crate::objects::is_region;
use core::ffi::c_int;
use rdmamr_mr::{self as mr, Access, Error, Mr, Request, Reregistration};
use rdmamr_next::Pd;

/// Changes a region. If the cache serves the region and the kernel makes the change, a plain region
/// over the same memory replaces it. Otherwise the region stays as it was, with its keys, which
/// remote peers may hold.
///
/// # Safety
/// As for [`mr::rereg`].
pub unsafe fn rereg(mr: Mr, change: &Reregistration) -> Result<c_int, Error> {
    if is_region(mr) {
        return Err(Error::Argument(
            "a relaxed region cannot be changed: others may use it, now or later",
        ));
    }
    if !mr.is_cached() {
        // SAFETY: this function's caller promises the contract of `mr::rereg` for `change`.
        return unsafe { mr::rereg(mr, change) };
    }
    let public = mr.read();
    // SAFETY: the domain is the one that the region was registered in, and it exists as long as the
    // region does: the kernel refuses to deallocate a domain that has regions.
    let pd = unsafe { Pd::from_c(public.pd) }.ok_or(Error::Gone)?;
    let access = Access::from_bits_retain(mr.access());
    let object = mr.claim_cached().ok_or(Error::Gone)?;
    let cached = object.cached();
    let request = Request::at_address(public.addr, public.length, access);
    // SAFETY: this function's caller promises the contract of `mr::rereg` for `change`.
    let changed = unsafe { changed_copy(pd, &request, change) };
    let (code, copy) = changed.inspect_err(|_| mr.restore_cached())?;
    match copy {
        Some(copy) => {
            mr::move_region(copy, object).inspect_err(|_| mr.restore_cached())?;
            reuse::end(cached);
        }
        None => mr.restore_cached(),
    }
    Ok(code)
}

/// Registers the memory anew and changes the new region. If the change fails, returns only its
/// result, with errno, and no region.
///
/// # Safety
/// As for [`mr::rereg`].
unsafe fn changed_copy(
    pd: Pd,
    request: &Request,
    change: &Reregistration,
) -> Result<(c_int, Option<Mr>), Error> {
    let copy = match register_rarely(pd, request) {
        Ok(copy) => copy.mr,
        // What refuses the copy (a device that is gone, a limit) would refuse the change.
        Err(Error::Kernel(errno) | Error::Next(errno)) if change.is_accepted() => {
            errno::set_errno(errno);
            return Ok((mr::REFUSED, None));
        }
        Err(error) => return Err(error),
    };
    // SAFETY: `register_rarely` has just made this region, and nothing has deregistered it.
    let copy = unsafe { Mr::from_c(copy) }.ok_or(Error::Memory)?;
    // SAFETY: this function's caller promises the contract of `mr::rereg` for `change`.
    let changed = unsafe { mr::rereg(copy, change) };
    if let Ok(code @ (0 | mr::CHANGED_BUT_NOT_FOR_CHILDREN)) = changed {
        return Ok((code, Some(copy)));
    }
    let errno = errno::errno();
    // If the kernel refuses to deregister the copy, the copy ends with its device.
    let _ = mr::deregister(copy);
    errno::set_errno(errno);
    changed.map(|code| (code, None))
}
