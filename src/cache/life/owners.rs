// SPDX-License-Identifier: MIT OR Apache-2.0
//! The owners of a cached region besides its users: its protection domain, its device, another
//! process that imported the region, and a provider that ends the region by a call that bypasses
//! the library.

use crate::instance::{Cache, existing};
use crate::life::ending;
use crate::life::flush::{flush_those, relieve_program};
use crate::locked::By;
use crate::region::slot::{Cause, Domain, NO_FILE, Slot};
use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;
use rdmamr_config::{CacheMode, config};
use rdmamr_mr::{self as mr, Error, Mr};
use rdmamr_next::{self as next, Context, Maker, Pd};
use rdmamr_sys::thread;

/// Deallocates a protection domain, ibv_dealloc_pd(3). The cache first deregisters the idle regions
/// of the domain. Returns EBUSY while regions of the domain that relaxed calls have handed out are
/// in use. Under `RDMAMR_CACHE` the provider decides, as without the cache: the kernel refuses to
/// deallocate a domain with regions, but a parent domain is the provider's object alone.
pub fn dealloc_pd(pd: Pd) -> Result<(), Error> {
    let Some(cache) = existing() else {
        return mr::dealloc_pd(pd);
    };
    let of = ending::of_pd(pd.address() as u64);
    let is_used = cache.regions.each_used().any(&of);
    if is_used && config().cache_mode == CacheMode::Off {
        return Err(Error::Busy("the domain still has relaxed regions in use"));
    }
    // If the kernel refuses to deregister a region, it refuses to deallocate the domain as well.
    let _ = flush_those(cache, &of);
    // Another context may have imported the domain, under another number, and have idle regions of it.
    match mr::dealloc_pd(pd) {
        Err(error) if error.errno() == libc::EBUSY && relieve_program() => mr::dealloc_pd(pd)?,
        result => result?,
    }
    if is_used {
        // They serve until their release, and end then. Before this, another domain at the address
        // can hit one of them only if it has the same number in the kernel, and so the same domain
        // there: the kernel ends no domain that has regions.
        invalidate(cache, &of, None);
        let _ = flush_those(cache, of);
    }
    Ok(())
}

/// Closes a device, ibv_close_device(3). The cache first deregisters the idle regions of the
/// device. Returns EBUSY while regions of the device that relaxed calls have handed out are in use.
pub fn close_device(context: Context) -> Result<(), Error> {
    let of_cache = |cache| Some((cache, mr::kernel_mr::device_at(context.address())?));
    let Some((cache, device)) = existing().and_then(of_cache) else {
        return mr::close_device(context);
    };
    let of = ending::of_device(device);
    if cache.regions.each_used().any(&of) && config().cache_mode == CacheMode::Off {
        return Err(Error::Busy("the device still has relaxed regions in use"));
    }
    let _ = flush_those(cache, &of);
    // The kernel ends the remaining regions with the device: those that it refused to deregister,
    // and those in use. As without the cache, a program may close a device that has regions.
    let fd = context.fd().unwrap_or(NO_FILE);
    invalidate(cache, &of, Some(NO_FILE));
    let closed = mr::close_device(context);
    if closed.is_err() {
        invalidate(cache, &of, Some(fd));
    }
    cache.cleaner.wake();
    closed
}

/// Forgets an imported domain, ibv_unimport_pd(3). The kernel keeps the domain for another process.
/// Another domain may get the same address next, so the cache reuses no region of this domain.
pub fn unimport_pd(pd: Pd) {
    if let Some(cache) = existing() {
        let of = ending::of_pd(pd.address() as u64);
        invalidate(cache, &of, None);
        let _ = flush_those(cache, of);
    }
    if let Some(next) = next::UNIMPORT_PD.by(Maker::of(pd.device())) {
        let _uncancelled = thread::uncancelled();
        // SAFETY: the program passed this live domain to ibv_unimport_pd(3), and `next` is that
        // function of libibverbs.
        unsafe { next(pd.as_ptr()) }
    }
}

/// A domain of the kernel is about to end. Deregisters its idle regions, except those that the
/// kernel refuses to deregister. These include the regions of a parent domain, which may have been
/// freed.
pub fn flush_quietly(pd: Pd) {
    if let Some(cache) = existing() {
        let domain = Domain::of(pd);
        let _ = flush_those(cache, |region: &Slot| region.is_of(domain));
    }
}

/// A provider ends, by `dereg`, a region whose object is not the cache's. If the cache holds the
/// same kernel region, it must neither reuse nor deregister that region: by then the number may
/// belong to another region.
pub fn around_deregister_bypassed(mr: Mr, dereg: impl FnOnce() -> c_int) -> c_int {
    let public = mr.read();
    let context = public.context.expose_provenance();
    // A thread that was interrupted inside the cache may hold the cache's lock.
    let cache = existing().filter(|_| !thread::is_inside());
    let Some((cache, device)) = cache.zip(mr::kernel_mr::device_at(context)) else {
        return dereg();
    };
    let of = |region: &Slot| {
        region.kernel_handle.load(Relaxed) == public.handle
            && region.lkey() == public.lkey
            && ending::of_device(device)(region)
    };
    // The region is abandoned before the call: as soon as it has ended, another region may get its
    // number.
    let had = invalidate(cache, of, Some(NO_FILE));
    let errno = dereg();
    if errno != 0 {
        // The region gets its number back.
        invalidate(cache, of, had);
    }
    errno
}

/// The program has given up a cached region, but the kernel's region lives on, or another process
/// that shares it has ended it. The cache neither reuses nor deregisters the region. An argument
/// that is not a cached region is ignored.
pub fn forget(object: usize) {
    if let Some((cache, region)) = region_of(object) {
        invalidate(cache, |other| core::ptr::eq(other, region), Some(NO_FILE));
    }
}

/// The region whose handle has its object at this address.
fn region_of(object: usize) -> Option<(&'static Cache, &'static Slot)> {
    let cache = existing()?;
    let id = cache.regions.region_of(object)?;
    Some((cache, cache.regions.region(id)))
}

/// Whether the region is of a GPU's memory.
pub fn is_of_gpu(object: usize) -> bool {
    region_of(object).is_some_and(|(_, region)| region.is_of_gpu())
}

/// As [`forget`], if the region has one user. With more users the region stays registered, and the
/// cache deregisters it after the last of them. Returns whether the region is forgotten.
pub fn forget_unshared(object: usize) -> bool {
    let Some((cache, region)) = region_of(object) else {
        return true;
    };
    let is_it = |other: &Slot| core::ptr::eq(other, region);
    let had = invalidate(cache, is_it, Some(NO_FILE));
    // The region is invalidated, so the number of its users only falls from now on.
    let is_unshared = region.state.load().users() <= 1;
    if !is_unshared {
        // The region gets its number back.
        invalidate(cache, is_it, had);
    }
    is_unshared
}

/// A provider is about to close a device's file, perhaps in a call that bypassed the library. The
/// cache's regions on that file end with the file. The cache must not deregister them through the
/// next file that gets the same number. The argument is the address of the `verbs_context`, and the
/// device is the last part of that structure.
pub fn before_close_bypassed(verbs_context: usize) {
    /// The largest offset of the device from the start of the structure. The structure grows at its
    /// start with rdma-core's releases. Today 320 bytes precede the device, and the device itself
    /// has as many bytes, so no other device is this near.
    const BEFORE: usize = 600;
    if let Some(cache) = existing() {
        if let Some(device) = (0..=BEFORE)
            .step_by(size_of::<usize>())
            .find_map(|before| mr::kernel_mr::device_at(verbs_context + before))
        {
            let of = ending::of_device(device);
            let _ = flush_those(cache, &of);
            invalidate(cache, &of, Some(NO_FILE));
        }
    }
}

/// [`invalidate_those`] in a call of the program. Those in use are not reused after their release.
fn invalidate(cache: &Cache, of: impl Fn(&Slot) -> bool, fd: Option<i32>) -> Option<i32> {
    let _inside = thread::enter();
    invalidate_those(cache, of, By::Program, fd)
}

/// Invalidates the regions that `is_it` selects. With `fd`, also replaces the descriptor number
/// through which the kernel deregisters them: `NO_FILE` stands for none, once the number may mean
/// another file, or the kernel has ended the regions. Returns the number that they had, if there
/// were any.
///
/// To look at all slots takes a millisecond, so this does it without the lock, for which
/// registrations wait. A region that is made meanwhile need not be invalidated. A thread that keeps
/// the lock is waited for once.
pub fn invalidate_those(
    cache: &Cache,
    is_it: impl Fn(&Slot) -> bool,
    by: By,
    fd: Option<i32>,
) -> Option<i32> {
    let (regions, mut had) = (cache.regions, None);
    let meant = |region: &Slot| region.state.load().is_live() && is_it(region);
    let mut has_waited = false;
    for (id, region) in regions.each().filter(|(_, region)| meant(region)) {
        let locked = (!has_waited).then(|| regions.lock_patiently(by)).flatten();
        has_waited = locked.is_none();
        if !meant(region) {
            continue;
        }
        had = fd.map(|fd| region.fd.swap(fd, Relaxed));
        match locked {
            Some(locked) => drop(locked.invalidate(id, Cause::Flush)),
            // The invalidated bit needs no lock. Without the lock the cause is not recorded.
            None => drop(region.state.invalidate()),
        }
    }
    had
}
