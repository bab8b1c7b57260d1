// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing a region, fi_close(3).

use super::domain::Domain;
use super::errors::Result;
use super::region::Region;
use super::workers;
use core::sync::atomic::Ordering::Relaxed;
use rdmamr_cache::dispatch;
use rdmamr_mr::How;

/// Waits for a registration in the background, or cancels it before it has begun. After this call
/// the region's state stays the same until its close. Returns the region's domain.
#[inline(always)]
pub fn settle(region: &Region) -> &'static Domain {
    let domain = Domain::of(region);
    if domain.queue().is_some() {
        // This also concerns a registered region: its event may be on its way into the queue.
        workers::cancel(region);
    }
    domain
}

/// Closes a region whose only registration goes back to the cache: the short path, beside
/// [`register::hit`](super::register::hit). False if the region needs `close`, or was closed
/// already.
#[inline(always)]
pub fn release(region: &Region) -> bool {
    let Some(mr) = region.served() else {
        return false;
    };
    // The domain is read only now: a closed region may have outlived its domain.
    let domain = Domain::of(region);
    // The cache releases a region once, so of two threads that close it, one fails here.
    if !domain.fast.load(Relaxed) || !dispatch::release_relaxed(mr) {
        return false;
    }
    domain.close_region(region);
    true
}

/// Closes a region. When this call returns, the device no longer knows the region (or the cache
/// holds its registration), no event of the region can be read, and its key is free. Returns the
/// way in which the last of its registrations ended.
#[inline(always)]
pub fn close(region: &Region) -> Result<How> {
    region.check()?;
    let domain = settle(region);
    let before = {
        // Other threads replace a placed region and look up a key with the table locked.
        let in_table = region.plan.is_placed || region.plan.table_key.is_some();
        let _table = in_table.then(|| domain.keys.lock());
        region.begin_to_close()?
    };
    let how = region.end(before)?;
    domain.keys.remove(region);
    if let Some(queue) = domain.queue() {
        queue.forget(region);
    }
    domain.close_region(region);
    Ok(how)
}
