// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing a region, fi_close(3).

use super::domain::{Bound, Domain};
use super::errors::Failure;
use super::region::Region;
use super::workers;

/// Waits for a registration in the background, or ends it before it has begun: then the region is as it will be
/// until it is closed.
#[inline(always)]
pub fn settle(region: &Region) {
    if let Some(Bound::Own(_)) = Domain::of(region).queue() {
        // Also when it is registered: its event may be just on its way into the queue.
        workers::cancel(region);
    }
}

/// Closes a region: when this returns, the device knows it no more (or the pool keeps it), no event of it can
/// be read, and its key is free.
#[inline(always)]
pub fn close(region: &Region) -> Result<(), Failure> {
    region.check()?;
    let domain = Domain::of(region);
    settle(region);
    {
        // With the table locked a placed region is replaced, and one with a key is asked where it is.
        let in_table = region.is_placed || region.table_key.is_some();
        let _table = in_table.then(|| domain.keys.lock());
        region.begin_to_close()?;
    }
    region.end()?;
    domain.keys.remove(region);
    if let Some(Bound::Own(queue)) = domain.queue() {
        queue.forget(region.address());
    }
    domain.close_region(region);
    Ok(())
}
