// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transparent reuse, `RDMAMR_CACHE`: plain registrations that the pool serves.
//!
//! The program gets an object of its own, memory of the C library like that of any other region of ours, which
//! stands for one use of a region of the pool. So an `ibv_dereg_mr` that the program took from libibverbs by
//! handle finds what it expects; it comes to `ibv_cmd_dereg_mr`, where this use ends and not the region.
//!
//! A region is never shared while it is in use: two regions of the program have two keys, as without the pool.
//!
//! What cannot be served is registered as without the pool, errors included: their errno is the kernel's, of the
//! memory that the program named.

use super::{beside_plain, release, start};
use crate::abi::rdma_core::ibv_mr;
use crate::caller::Caller;
use crate::config::{Cache, config};
use crate::log::{self, Level};
use crate::mr::{self, Access, Change, Error, Mr, Object, Pd, Request};
use crate::next;
use crate::thread;
use core::ffi::{CStr, c_int};
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Says what the program gives up, when the first region of the pool serves it. Nothing is given up where nothing can
/// be watched, and that has been said.
fn say_so(cache: Cache) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.load(Relaxed) || SAID.swap(true, Relaxed) {
        return;
    }
    if !super::existing().is_some_and(|relaxed| relaxed.watch.is_on()) {
        return;
    }
    let settings = &config().relaxed;
    let which = if cache == Cache::All { "all" } else { "local" };
    let (remote, linger) = match cache {
        Cache::All if !settings.fresh_keys => (
            ", also those that peers can reach: a key stays valid after ibv_dereg_mr, for",
            settings.linger_remote,
        ),
        _ => (
            " that peers cannot reach. Their memory stays pinned after ibv_dereg_mr, for",
            settings.linger_local,
        ),
    };
    let seconds = linger as f64 / 1000.0;
    log::line(
        Level::Info,
        format_args!(
            "RDMAMR_CACHE={which}: regions are kept and used again{remote} {seconds} s; each covers whole pages"
        ),
    );
}

/// Registers memory, of the pool if that is wanted and can be. `entry` is what the program called.
#[inline(always)]
pub fn register(
    pd: Pd,
    request: &Request,
    entry: &'static CStr,
    caller: Caller,
) -> Result<*mut ibv_mr, Error> {
    match config().cache {
        Cache::Off => beside_plain::register(pd, request),
        cache => register_of_pool(cache, pd, request, entry, caller),
    }
}

#[inline(never)]
fn register_of_pool(
    cache: Cache,
    pd: Pd,
    request: &Request,
    entry: &'static CStr,
    caller: Caller,
) -> Result<*mut ibv_mr, Error> {
    let wanted = match cache {
        Cache::Off => false,
        Cache::Local => super::LOCAL.contains(request.access),
        Cache::All => !request.access.intersects(super::register::OWN_REGION),
    };
    // A region has one address for all its users.
    let at_address = request.iova == request.addr.addr() as u64;
    // A signal handler that interrupts the library is served as if it were off, and so is a child of a process that
    // had a pool: who calls must not even be looked up there, since a thread of the parent may have had the linker's
    // lock at the fork. Where children do not get
    // registered memory nothing is kept (`keep`), and the pages that they do get are those of no region.
    if wanted
        && at_address
        && request.length != 0
        && !thread::is_inside()
        && !start::is_of_parent()
        && caller.imports(entry)
        && !mr::bare::is_fork_protected()
    {
        let hit = super::hit_alone(pd, request.addr.addr(), request.length, request.access);
        let region = hit.or_else(|miss| super::register(pd, request, miss, true));
        if let Ok(region) = region {
            say_so(cache);
            return stand_for(pd, request, region);
        }
    }
    beside_plain::register(pd, request)
}

/// The program's own object, for a region of the pool.
#[inline(always)]
fn stand_for(pd: Pd, request: &Request, region: *mut ibv_mr) -> Result<*mut ibv_mr, Error> {
    if !start::is_object(region.expose_provenance()) {
        // One of its own, because the pool could not have it.
        return Ok(region);
    }
    // SAFETY: the pool has just given it out.
    let region = unsafe { Mr::from_c(region) }.ok_or(Error::Memory)?;
    match mr::new_object() {
        Some(object) => {
            object.stand_for(request.access, region);
            Ok(object.as_ptr())
        }
        None => {
            release::release(region);
            beside_plain::register(pd, request)
        }
    }
}

/// Ends a use of the region of the pool with that object.
fn end(pooled: usize) {
    // SAFETY: the pool's slots are never freed; in a child, where there is no pool, it is not looked at.
    if let Some(region) = unsafe { Mr::from_c(with_exposed_provenance_mut(pooled)) } {
        // False in a child of the process that registered it: the region is the parent's, and stays.
        release::release(region);
    }
}

/// Deregisters a region of any kind: one that the pool serves, a relaxed one, a plain one.
#[inline(always)]
pub fn deregister(mr: Mr) -> Result<(), Error> {
    if mr.is_pooled() {
        deregister_pooled(mr)
    } else {
        release::deregister(mr)
    }
}

#[inline(never)]
fn deregister_pooled(mr: Mr) -> Result<(), Error> {
    let object = mr.claim_pooled().ok_or(Error::Gone)?;
    end(object.pooled());
    mr::put_object_away(object);
    Ok(())
}

/// A provider deregisters a region that the pool serves, and frees the object if this is true.
pub fn deregister_past_us(mr: Mr) -> bool {
    mr.claim_pooled()
        .map(|object| end(object.pooled()))
        .is_some()
}

/// The program forgets a region, which the kernel may still have for whoever shares it.
pub fn unimport(mr: Mr) {
    let region = mr.claim_pooled().map_or(mr.address(), Object::pooled);
    beside_plain::forget(region);
    end(region);
    // What is the pool's is not memory that a provider may free.
    if !start::is_object(mr.address())
        && let Some(next) = next::UNIMPORT_MR.get()
    {
        // SAFETY: the program's own region, to the function that it meant.
        unsafe { next(mr.as_ptr()) }
    }
}

/// Changes a region. One that the pool serves becomes one of its own, over the same memory, if that can be changed;
/// otherwise it stays what it was, with its keys, which peers may have.
///
/// # Safety
/// As for [`mr::rereg`].
pub unsafe fn rereg(mr: Mr, change: &Change) -> Result<c_int, Error> {
    if !mr.is_pooled() {
        // SAFETY: the caller's word.
        return unsafe { beside_plain::rereg(mr, change) };
    }
    let public = mr.read();
    // SAFETY: the region's own domain.
    let pd = unsafe { Pd::from_c(public.pd) }.ok_or(Error::Gone)?;
    let access = Access::from_bits_retain(mr.access());
    let object = mr.claim_pooled().ok_or(Error::Gone)?;
    let pooled = object.pooled();
    let request = Request::at_address(public.addr, public.length, access);
    // SAFETY: the caller's word.
    let changed = unsafe { changed_copy(pd, &request, change) };
    let (code, copy) = changed.inspect_err(|_| mr.restore_pooled())?;
    match copy {
        Some(copy) => {
            mr::move_region(copy, object).inspect_err(|_| mr.restore_pooled())?;
            end(pooled);
        }
        None => mr.restore_pooled(),
    }
    Ok(code)
}

/// Registers memory, and changes that region. None is left, but the answer, with its errno, if it could not be
/// changed.
///
/// # Safety
/// As for [`mr::rereg`].
unsafe fn changed_copy(
    pd: Pd,
    request: &Request,
    change: &Change,
) -> Result<(c_int, Option<Mr>), Error> {
    let copy = beside_plain::register(pd, request)?;
    // SAFETY: just registered.
    let copy = unsafe { Mr::from_c(copy) }.ok_or(Error::Memory)?;
    // SAFETY: the caller's word.
    let changed = unsafe { mr::rereg(copy, change) };
    if let Ok(code @ (0 | mr::CHANGED_BUT_NOT_FOR_CHILDREN)) = changed {
        return Ok((code, Some(copy)));
    }
    let errno = errno::errno();
    // What the kernel refuses to deregister ends with its device.
    let _ = mr::deregister(copy);
    errno::set_errno(errno);
    changed.map(|code| (code, None))
}
