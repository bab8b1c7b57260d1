// SPDX-License-Identifier: MIT OR Apache-2.0
//! The release of a use, by ibv_dereg_mr_relaxed(3) or by the ibv_dereg_mr(3) of an object that stands
//! for a use: the region stays registered, idle in the cache, while the limits allow it.

use crate::instance::{Cache, existing};
use crate::life::ending;
use crate::locked::By;
use crate::region::slot::{Cause, Id};
use crate::region::state::AfterRelease;
use core::sync::atomic::Ordering::Relaxed;
use rdmamr_mr::{Error, How, Mr};
use rdmamr_sys::thread;

/// Ends one use of a cached region. Returns false if `mr` is not a cached region, or is not in use.
/// (`Answer` in `hit.rs` says why the result is so small.)
///
/// Most releases end a region's only use, by its own handle. A separate function does all others,
/// so that this one needs little code (`hit.rs`).
#[inline(always)]
pub fn release(mr: Mr) -> bool {
    let Some(cache) = existing() else {
        return false;
    };
    let (regions, object) = (cache.regions, mr.address());
    let Some(id) = regions.release_last(object, cache.cleaner.now()) else {
        return release_otherwise(cache, object);
    };
    if cache.cleaner.is_dormant() || regions.account.is_full() {
        after_release(cache, id);
    }
    true
}

#[inline(never)]
fn release_otherwise(cache: &Cache, object: usize) -> bool {
    match cache.regions.release(object, cache.cleaner.now()) {
        Some((id, now @ (AfterRelease::InUse | AfterRelease::Idle))) => {
            // The age of a remote region counts from its first release, though it is still in use.
            if now == AfterRelease::Idle || cache.cleaner.is_dormant() {
                after_release(cache, id);
            }
            true
        }
        Some((id, AfterRelease::MustEnd(generation))) => {
            thread::keep_errno(|| ending::after_last_use(cache, id, generation));
            true
        }
        None => false,
    }
}

/// A use was released: wakes the cleaner if it sleeps, and ends the region if the cache is full and it
/// is idle.
#[inline(never)]
fn after_release(cache: &Cache, id: Id) {
    let regions = cache.regions;
    if cache.cleaner.is_dormant() {
        cache.cleaner.became_idle(regions.region(id));
    }
    if regions.account.is_full() {
        thread::keep_errno(|| make_room(cache, id));
    }
}

/// Ends one use of a cached region. An error says why there is no such use.
#[inline(always)]
pub fn end_relaxed_use(mr: Mr) -> Result<How, Error> {
    if release(mr) {
        return Ok(How::Kept);
    }
    Err(if existing().is_some() {
        Error::Gone
    } else {
        Error::Argument("the region belongs to the process that this one was forked from")
    })
}

/// Deregisters a region that has just been released, if the cache is still full.
#[cold]
fn make_room(cache: &Cache, id: Id) {
    if thread::is_inside() {
        cache.cleaner.wake();
        return;
    }
    let _inside = thread::enter();
    let Some(locked) = cache.regions.lock_by(By::Program) else {
        cache.cleaner.wake();
        return;
    };
    cache.apply(&locked, By::Program);
    let is_full = || cache.regions.account.is_full();
    let ends = locked.claim_unused(id, Cause::Watermark, |_| is_full());
    drop(locked);
    if ends {
        cache.cleaner.was_full.store(true, Relaxed);
        // A region that the kernel refuses to deregister stays unused. The cleaner tries again.
        let _ = ending::deregister(cache, id, By::Program);
    }
}
