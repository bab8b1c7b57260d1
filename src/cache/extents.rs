// SPDX-License-Identifier: MIT OR Apache-2.0
//! The extents of the cache's regions: which memory userfaultfd watches for which region. An extent
//! is a region's memory and the memory around it. When a region ends, another region in the extent
//! takes the extent over, or the watch of that memory ends. All of this runs under the cache's
//! lock.

use crate::cause::Cause;
use crate::locked::Locked;
use crate::region::link::Id;
use crate::watch::extent::CHUNK;
use crate::watch::watcher::Unwatching;
use rdmamr_sys::pages::{PageRange, page_size};

/// The region that takes over memory that an ending region leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heir {
    None,
    Region(Id),
    /// A nearby region exists whose watched extent is not known yet.
    Unknown,
}

impl Locked<'_> {
    /// Returns the region that takes over memory of a chunk from the region `leaving`. A region
    /// that is not watched yet cannot take memory over, and may become watched at any moment.
    pub fn heir(&self, memory: PageRange, leaving: Id) -> Heir {
        let mut heir = Heir::None;
        let page_range = self.regions().region(leaving).page_range();
        self.regions().near(memory, page_range, |id, region| {
            match region.extent() {
                _ if id == leaving => {}
                Some(extent) if extent.overlaps(memory) => heir = Heir::Region(id),
                Some(_) => {}
                None => heir = Heir::Unknown,
            }
            !matches!(heir, Heir::Region(_))
        });
        heir
    }

    /// Calls `each` for the regions whose extent overlaps a range, until `each` returns false.
    pub(super) fn watching(&self, range: PageRange, mut each: impl FnMut(Id, PageRange) -> bool) {
        // An extent does not reach beyond the chunks of its region.
        self.regions().near(range, range, |id, region| {
            match region.extent().filter(|extent| extent.overlaps(range)) {
                Some(extent) => each(id, extent),
                None => true,
            }
        });
    }

    /// Notes the part of a chunk around a range that holds neither a region nor watched memory, so
    /// that the next call that changes memory there need not take the lock. A region without an
    /// extent may become watched at any moment.
    pub fn note_clear(&self, range: PageRange) {
        let mut part = PageRange::new(
            range.start - range.start % CHUNK,
            range.start - range.start % CHUNK + CHUNK,
        );
        if !part.contains(range) || range.start >= range.end {
            return;
        }
        let mut clear = true;
        self.regions().near(range, range, |_, region| {
            match region.extent() {
                Some(extent) if extent.end <= range.start => {
                    part.start = part.start.max(extent.end)
                }
                Some(extent) if extent.start >= range.end => part.end = part.end.min(extent.start),
                _ => clear = false,
            }
            clear
        });
        if clear {
            self.regions().filter.note_clear(part);
        }
    }

    /// Whether one extent contains all of a range, or every extent lies outside it.
    pub fn is_whole(&self, range: PageRange) -> bool {
        let mut whole = true;
        self.watching(range, |_, extent| {
            whole = extent.contains(range);
            !whole
        });
        whole
    }

    /// Removes memory from the extents of all regions: the cache does not watch it any more. If an
    /// extent reached beyond that memory, a region that lies there takes over the rest; `orphan`
    /// gets a rest without such a region. The search begins with the regions that overlap `first`.
    pub(super) fn lose_memory(
        &self,
        gone: PageRange,
        first: PageRange,
        mut orphan: impl FnMut(PageRange),
    ) {
        self.regions().near(gone, first, |_, region| {
            let Some(before) = region.extent().filter(|extent| extent.overlaps(gone)) else {
                return true;
            };
            region.lose_memory(gone);
            let below = PageRange::new(before.start, gone.start);
            let above = PageRange::new(gone.end, before.end);
            for part in [below, above] {
                let is_left = |extent: PageRange| extent.contains(part);
                if part.start < part.end
                    && !region.extent().is_some_and(is_left)
                    && !self.hand_over(part)
                {
                    orphan(part);
                }
            }
            true
        });
    }

    /// Adds memory to the extent of a region that lies in it, as far as it lies in the chunks of
    /// that region. Returns false if there is no such region. (A region without an extent may become
    /// watched at any moment, outside the lock, so its memory must stay watched.)
    fn hand_over(&self, memory: PageRange) -> bool {
        let mut found = false;
        self.regions().overlapping(memory, |_, region| {
            found = true;
            if let Some(near) = memory.common(region.page_range().extended(CHUNK)) {
                region.inherit(near);
            }
            region.extent().is_none()
        });
        found
    }

    /// Stops watching a range, by `unwatch`. The regions in it are already invalidated. If no other
    /// region lies in the memory around them, the same call ends the watch of that memory. Returns
    /// whether some of the range was watched.
    pub fn unwatch(
        &self,
        range: PageRange,
        mut unwatch: impl FnMut(PageRange) -> Unwatching,
    ) -> bool {
        let mut watched = false;
        self.watching(range, |id, _| {
            let region = self.regions().region(id);
            let touched = || region.extent().filter(|extent| extent.overlaps(range));
            while let Some(extent) = touched() {
                let part = match self.may_lie_beyond(range, extent) {
                    false => extent,
                    true => extent.common(range).unwrap_or(extent),
                };
                if unwatch(part) != Unwatching::Done {
                    return false;
                }
                watched = true;
                let mut orphans = [PageRange { start: 0, end: 0 }; 2];
                self.lose_memory(part, region.page_range(), |orphan| {
                    orphans[usize::from(orphan.start > part.start)] = orphan;
                });
                for orphan in orphans.into_iter().filter(|orphan| orphan.end > 0) {
                    unwatch(orphan);
                    self.lose_memory(orphan, orphan, |_| {});
                }
            }
            true
        });
        watched
    }

    /// Whether a region outside `range` may reach into `extent`, which overlaps `range`.
    fn may_lie_beyond(&self, range: PageRange, extent: PageRange) -> bool {
        if range.contains(extent) {
            return false;
        }
        let mut found = !range.extended(CHUNK).contains(extent);
        if !found {
            self.regions().near(range, range, |_, region| {
                found =
                    !region.page_range().overlaps(range) && region.page_range().overlaps(extent);
                !found
            });
        }
        found
    }

    /// If some of a range is watched, invalidates the regions whose watched memory overlaps or
    /// adjoins the range. Returns the range together with that memory.
    pub fn invalidate_adjoining(&self, range: PageRange) -> PageRange {
        let mut watched = false;
        self.watching(range, |_, _| {
            watched = true;
            false
        });
        let mut memory = range;
        let mut grows = watched;
        while grows {
            grows = false;
            let around = PageRange::new(
                memory.start.saturating_sub(page_size()),
                memory.end.saturating_add(page_size()),
            );
            self.watching(around, |id, extent| {
                if self.invalidate(id, Cause::Hook) || !memory.contains(extent) {
                    grows |= !memory.contains(extent);
                    memory = memory.joined_with(extent);
                }
                true
            });
        }
        if watched {
            // This covers every region in that memory, because a region without an extent may
            // become watched at any moment.
            self.regions().overlapping(memory, |id, _| {
                self.invalidate(id, Cause::Hook);
                self.evict(id);
                true
            });
        }
        memory
    }
}
