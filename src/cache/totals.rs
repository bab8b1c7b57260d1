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

    /// Calls `each` for every idle region.
    pub fn each_idle(&self, mut each: impl FnMut(&CachedRegion)) {
        for (_, region) in self.each() {
            let seen = region.state.load();
            if seen.is_unused() || seen.is_ending() {
                each(region);
            }
        }
    }

    /// The number of idle regions and their summed length.
    pub fn idle(&self) -> (u64, u64) {
        let (mut count, mut bytes) = (0, 0);
        self.each_idle(|region| {
            count += 1;
            bytes += region.page_range().bytes();
        });
        (count, bytes)
    }

    /// Whether the idle regions together have more than this many bytes.
    pub fn is_more_idle_than(&self, bytes: u64) -> bool {
        let mut sum = 0;
        self.each().any(|(_, region)| {
            if region.state.load().is_unused() {
                sum += region.page_range().bytes();
            }
            sum > bytes
        })
    }

    /// The number of regions in use and their summed length.
    pub fn in_use(&self) -> (u64, u64) {
        let used = self.each().filter(|(_, region)| {
            let seen = region.state.load();
            seen.is_registered() && seen.users() > 0 && !region.is_left()
        });
        used.fold((0, 0), |(count, bytes), (_, region)| {
            (count + 1, bytes + region.page_range().bytes())
        })
    }

    /// Whether a region that `of` selects has a user.
    pub fn is_used(&self, mut of: impl FnMut(&CachedRegion) -> bool) -> bool {
        self.each().any(|(_, region)| {
            let seen = region.state.load();
            seen.is_registered() && seen.users() > 0 && !region.is_left() && of(region)
        })
    }
}
