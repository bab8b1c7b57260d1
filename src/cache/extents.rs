// SPDX-License-Identifier: MIT OR Apache-2.0
//! The extents of the cache's regions: which memory userfaultfd watches for which region. An extent
//! is a region's memory and the memory around it, within the region's chunks. Regions that share a
//! chunk share what is watched there. When the last of them ends, so does the watch.
//!
//! An extent may contain memory that is not watched any more, because a change has ended its watch.

use crate::cause::Cause;
use crate::layout::Regions;
use crate::locked::Locked;
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
use crate::watch::extent::CHUNK;
use rdmamr_sys::pages::PageRange;

/// How much memory, in bytes, stops being watched by one system call. That takes 80 ns a page
/// (measured), and the kernel's mmap lock meanwhile.
pub const UNWATCH_AT_MOST: u64 = 8 << 20;

impl Regions {
    /// Calls `each` for the regions that reach into the chunks of a range ([`Regions::overlapping`]).
    pub(super) fn near(&self, range: PageRange, each: impl FnMut(Id, &CachedRegion) -> bool) {
        self.overlapping(range.extended(CHUNK), each);
    }
}

impl Locked<'_> {
    /// What is watched for another region around this range, within the chunks of the range.
    pub fn watched_around(&self, page_range: PageRange) -> Option<PageRange> {
        let mut found = None;
        self.regions().near(page_range, |_, region| {
            // The memory of a stale region has changed, and other memory may be there.
            let stands = !region.state.load().is_stale() && !region.is_unwatching();
            let extent = region
                .extent()
                .filter(|it| stands && it.contains(page_range));
            found = extent.and_then(|it| it.common(page_range.extended(CHUNK)));
            found.is_none()
        });
        found
    }

    /// The first memory from `from` on that is watched for an ending region, and lies in chunks that
    /// no other region needs. At most [`UNWATCH_AT_MOST`] bytes.
    pub fn unneeded(&self, id: Id, from: u64) -> Option<PageRange> {
        let extent = self.regions().region(id).extent()?;
        let mut part = PageRange::new(extent.start.max(from), extent.end);
        if part.start >= part.end {
            return None;
        }
        self.regions().near(part, |other, region| {
            if other == id || region.is_unwatching() {
                return true;
            }
            // The regions come in the order of their addresses.
            let needed = region.page_range().extended(CHUNK);
            if needed.start > part.start {
                part.end = part.end.min(needed.start);
                return false;
            }
            part.start = part.start.max(needed.end);
            part.start < part.end
        });
        part.end = part.end.min(part.start.saturating_add(UNWATCH_AT_MOST));
        (part.start < part.end).then_some(part)
    }

    /// Memory of this range is about to change: invalidates the regions in it, and claims the idle
    /// ones. Returns how many were invalidated, and the memory whose watch is to end before the
    /// change.
    pub fn change(&self, range: PageRange) -> (u64, Option<PageRange>) {
        let (mut invalidated, mut watched) = (0, None::<PageRange>);
        self.regions().near(range, |id, region| {
            if let Some(part) = region.extent().and_then(|extent| extent.common(range)) {
                watched = Some(watched.map_or(part, |other| other.joined_with(part)));
            }
            if region.page_range().overlaps(range) {
                invalidated += u64::from(self.invalidate(id, Cause::Hook));
                self.evict(id);
            }
            true
        });
        // The kernel reports the change of more memory sooner than it stops watching it.
        let watched = watched.filter(|watched| watched.bytes() <= UNWATCH_AT_MOST);
        if let Some(watched) = watched {
            self.regions().overlapping(watched, |_, region| {
                if region.extent().is_some_and(|it| watched.contains(it)) {
                    region.claim_extent(None);
                }
                true
            });
        }
        (invalidated, watched)
    }

    /// Whether memory near a region stops being watched just now. Its own watch may be the one that
    /// ends.
    pub fn is_unwatching_near(&self, page_range: PageRange) -> bool {
        let mut found = false;
        self.regions().near(page_range, |_, region| {
            found = region.is_unwatching();
            !found
        });
        found
    }

    /// The watch near an ending region has ended beside the registrations of new regions there,
    /// which may have lost theirs: no other registration may use them.
    pub fn invalidate_unkept_near(&self, id: Id) {
        let Some(extent) = self.regions().region(id).extent() else {
            return;
        };
        self.regions().near(extent, |other, region| {
            if !region.state.load().is_kept() {
                self.invalidate(other, Cause::Fence);
            }
            true
        });
    }
}
