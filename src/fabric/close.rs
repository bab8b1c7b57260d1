// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing a region, fi_close(3).

use super::domain::{Bound, Domain};
use super::errors::Failure;
use super::region::Region;
use super::workers;
use crate::mr::How;

/// Waits for a registration in the background, or cancels it before it has begun. After this call
/// the region's state stays the same until its close.
#[inline(always)]
pub fn settle(region: &Region) {
    if let Some(Bound::Own(_)) = Domain::of(region).queue() {
        // This also concerns a registered region: its event may be on its way into the queue.
        workers::cancel(region);
    }
}

/// Closes a region. When this call returns, the device does not know the region any more (or the
/// cache keeps its registration), no event of the region can be read, and its key is free. Returns
/// the way in which the last of its registrations ended.
#[inline(always)]
pub fn close(region: &Region) -> Result<How, Failure> {
    region.check()?;
    let domain = Domain::of(region);
    settle(region);
    {
        // Other threads replace a placed region and look up a key with the table locked.
        let in_table = region.is_placed || region.table_key.is_some();
        let _table = in_table.then(|| domain.keys.lock());
        region.begin_to_close()?;
    }
    let how = region.end()?;
    domain.keys.remove(region);
    if let Some(Bound::Own(queue)) = domain.queue() {
        queue.forget(region.address());
    }
    domain.close_region(region);
    Ok(how)
}
