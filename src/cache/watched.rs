// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which memory userfaultfd watches for which region: memory in the region's chunks. Regions that share
//! a chunk share what is watched there. When the last of them ends, so does the watch.

use crate::cause::Cause;
use crate::find::filter::CHUNK;
use crate::layout::Regions;
use crate::locked::Locked;
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
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
    /// The first memory from `from` on in the chunks of an ending region that is watched, of those
    /// chunks that no other region needs. At most [`UNWATCH_AT_MOST`] bytes.
    pub fn unneeded(&self, id: Id, from: u64) -> Option<PageRange> {
        let region = self.regions().region(id);
        let chunks = region.page_range().extended(CHUNK);
        let mut part = PageRange::new(chunks.start.max(from), chunks.end);
        if !region.is_watched() || part.start >= part.end {
            return None;
        }
        self.regions().near(part, |other, region| {
            // A region that is not watched needs nothing. One that is not watched yet is not kept.
            if other == id || region.is_unwatching() || !region.is_watched() {
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

    /// Memory of this range changes: invalidates the regions in it, and claims the idle ones. Returns
    /// how many were invalidated.
    pub fn change(&self, range: PageRange) -> u64 {
        let mut invalidated = 0;
        self.regions().overlapping(range, |id, _| {
            invalidated += u64::from(self.invalidate(id, Cause::Hook));
            self.evict(id);
            true
        });
        invalidated
    }

    /// The memory of this range that may be watched, unless it is so much that the kernel reports its
    /// change sooner than it stops watching it.
    pub fn watched_in(&self, range: PageRange) -> Option<PageRange> {
        let mut watched = None::<PageRange>;
        self.regions().near(range, |_, region| {
            let part = region.page_range().extended(CHUNK).common(range);
            if let Some(part) = part.filter(|_| region.is_watched()) {
                watched = Some(watched.map_or(part, |other| other.joined_with(part)));
            }
            true
        });
        watched.filter(|watched| watched.bytes() <= UNWATCH_AT_MOST)
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
        let page_range = self.regions().region(id).page_range();
        self.regions().near(page_range, |other, region| {
            if !region.state.load().is_kept() {
                self.invalidate(other, Cause::Fence);
            }
            true
        });
    }
}
