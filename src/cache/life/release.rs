// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_dereg_mr_relaxed(3): the region stays registered, idle in the cache, while the limits allow
//! it.

use crate::batch::Batch;
use crate::instance::{Cache, existing};
use crate::life::ending;
use crate::life::limits;
use crate::locked::By;
use crate::region::link::Id;
use crate::region::state::Left;
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
    if cache.cleaner.is_dormant() || !regions.account.all_fits() {
        left_idle(cache, id);
    }
    true
}

#[inline(never)]
fn release_otherwise(cache: &Cache, object: usize) -> bool {
    let regions = cache.regions;
    let Some(handle) = regions.handle(object) else {
        return false;
    };
    let id = handle.region;
    match regions.release(handle, cache.cleaner.now()) {
        Some(Left::InUse) => true,
        Some(Left::Idle) => {
            left_idle(cache, id);
            true
        }
        Some(Left::Spent(generation)) => {
            let errno = errno::errno();
            ending::spent(cache, id, generation);
            errno::set_errno(errno);
            true
        }
        None => false,
    }
}

/// A region has become idle: wakes the cleaner if it sleeps, and counts the idle regions if need
/// be.
#[inline(never)]
fn left_idle(cache: &Cache, id: Id) {
    let regions = cache.regions;
    if cache.cleaner.is_dormant() {
        cache.cleaner.idle(regions.region(id));
    }
    if !regions
        .account
        .may_be_idle(|| regions.region(id).page_range())
    {
        trim(cache, id);
    }
}

/// Ends one use of a cached region. An error says why there is no such use.
#[inline(always)]
pub fn deregister(mr: Mr) -> Result<How, Error> {
    if release(mr) {
        return Ok(How::Kept);
    }
    Err(if existing().is_some() {
        Error::Gone
    } else {
        Error::Argument("the region belongs to the process that this one was forked from")
    })
}

/// Little is spare, or too much is idle. Goes on with the count of the idle regions. If too much is
/// idle, deregisters a few regions that have been idle for longer, or else the region that was just
/// released. This takes a bounded time, however many regions there are.
#[cold]
fn trim(cache: &Cache, released: Id) {
    /// The slots that the count looks at for each release: 0.5 us.
    const SLOTS: u32 = 128;
    if thread::is_inside() {
        cache.cleaner.wake();
        return;
    }
    let errno = errno::errno();
    let _inside = thread::enter();
    let (regions, account) = (cache.regions, &cache.regions.account);
    if account.is_over() {
        cache.limits.read_old(&cache.limits_reader, limits::MOMENT);
    }
    let mut batch = Batch::new();
    let Some(locked) = regions.lock_of_program() else {
        cache.cleaner.wake();
        return;
    };
    cache.apply(&locked, By::Program);
    let too_large = regions.region(released).page_range().bytes() as i64 > account.limit().bytes;
    let ends = too_large && locked.claim_released(released);
    locked.count_idle(SLOTS, &mut batch, cache.cleaner.now());
    let ends = ends || (account.is_over() && locked.claim_released(released));
    drop(locked);
    if ends {
        let _ = ending::end(cache, released, By::Program);
    }
    for &id in batch.ids() {
        // A region that the kernel refuses to deregister stays unused. The cleaner tries again.
        let _ = ending::end(cache, id, By::Program);
    }
    errno::set_errno(errno);
}
