// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums over the regions, idle and in use. These functions read all slots, without the lock.

use crate::layout::Regions;
use crate::region::slot::CachedRegion;
use core::sync::atomic::Ordering::*;

impl Regions {
    /// The hits that the regions count, without those that have ended. Under the lock no region
    /// ends. Without the lock, the hits of regions that end meanwhile are missing.
    pub fn hits_of_regions(&self) -> u64 {
        let hits = self.each().map(|(_, region)| region.hits());
        self.many_hits.load(Relaxed) + hits.sum::<u64>()
    }

    /// The idle regions.
    pub fn each_idle(&self) -> impl Iterator<Item = &CachedRegion> {
        let regions = self.each().map(|(_, region)| region);
        regions.filter(|region| {
            let seen = region.state.load();
            seen.is_unused() || seen.is_ending()
        })
    }

    /// The regions in use.
    pub fn each_used(&self) -> impl Iterator<Item = &CachedRegion> {
        let regions = self.each().map(|(_, region)| region);
        regions.filter(|region| {
            let seen = region.state.load();
            seen.is_registered() && seen.users() > 0 && !region.is_left()
        })
    }
}
