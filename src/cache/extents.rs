// SPDX-License-Identifier: MIT OR Apache-2.0
//! The extents of the cache's regions: which memory userfaultfd watches for which region. An extent
//! is a region's memory and the memory around it. When a region ends, another region in the extent
//! takes the extent over, or the watch of that memory ends. All of this runs under the cache's
//! lock.

use crate::cause::Cause;
use crate::layout::Regions;
use crate::locked::Locked;
use crate::region::link::Id;
use crate::watch::event_reader;
use crate::watch::extent::CHUNK;
use core::sync::atomic::Ordering::*;
use rdmamr_sys::pages::{PageRange, page_size};

/// The region that takes over memory that an ending region leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heir {
    None,
    Region(Id),
    /// A nearby region exists whose watched extent is not known yet.
    Unknown,
}

/// How much memory, in bytes, stops being watched with a region. To stop watching takes 80 ns a page
/// (measured), under the lock, and large regions split few mappings.
pub const UNWATCH_AT_MOST: u64 = 8 << 20;

impl Regions {
    /// Some memory stays watched that is in no region's extent.
    pub fn leave_some(&self) {
        self.left_some.store(true, Relaxed);
    }

    /// Whether memory may be watched that is in no region's extent.
    pub fn has_left_some(&self) -> bool {
        self.left_some.load(Relaxed)
    }
}

impl Locked<'_> {
    /// Returns the region that takes over memory of a chunk from the region `leaving`. A region
    /// that is not watched yet cannot take memory over, and may become watched at any moment.
    pub fn heir(&self, memory: PageRange, leaving: Id) -> Heir {
        let mut heir = Heir::None;
        self.regions().near(memory, |id, region| {
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
        self.regions().near(range, |id, region| {
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
        self.regions().near(range, |_, region| {
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

    /// Whether one extent contains all of a range, or none of it can be watched. Before Linux
    /// 6.16, watched memory outside all extents does not count: to end its watch costs 80 ns a page
    /// of the range.
    pub fn is_whole(&self, range: PageRange) -> bool {
        let mut whole = !(event_reader::keeps_apart() && self.regions().has_left_some());
        self.watching(range, |_, extent| {
            whole = extent.contains(range);
            !whole
        });
        whole
    }

    /// Removes memory from the extents of all regions: the cache does not watch it any more. If an
    /// extent reached beyond that memory, a region that lies there takes over the rest; `orphan`
    /// gets a rest whose watch no region needs. In `going`, the range of a call under way, no region
    /// needs the watch.
    pub(super) fn lose_memory(
        &self,
        gone: PageRange,
        going: PageRange,
        mut orphan: impl FnMut(PageRange),
    ) {
        self.regions().near(gone, |_, region| {
            let Some(before) = region.extent().filter(|extent| extent.overlaps(gone)) else {
                return true;
            };
            region.lose_memory(gone);
            let both = gone.joined_with(going);
            let parts = [
                (before.start, both.start, true),
                (both.start, gone.start, false),
                (gone.end, both.end, false),
                (both.end, before.end, true),
            ];
            for (start, end, is_beyond) in parts {
                let rest = PageRange::new(start.max(before.start), end.min(before.end));
                if rest.start >= rest.end {
                    continue;
                }
                let is_left = region.extent().is_some_and(|extent| extent.contains(rest));
                let is_needed = is_left || is_beyond && self.hand_over(rest);
                if !is_needed {
                    orphan(rest);
                }
            }
            true
        });
    }

    /// Adds memory to the extent of a region that lies in it, as far as it lies in the chunks of
    /// that region. Returns false if the watch of that memory is to end, because no region needs it.
    ///
    /// A region without an extent may become watched at any moment, outside the lock, so its memory
    /// must stay watched. A stale or ending region needs no watch: it may be the region that has
    /// just lost this memory.
    fn hand_over(&self, memory: PageRange) -> bool {
        let (mut needed, mut taken) = (false, false);
        self.regions().overlapping(memory, |_, region| {
            let near = memory.common(region.page_range().extended(CHUNK));
            if let Some(near) = near {
                region.inherit(near);
            }
            let (seen, takes) = (region.state.load(), region.extent().is_some());
            needed |= takes || !(seen.is_stale() || seen.is_ending());
            taken = takes && near == Some(memory);
            !takes
        });
        let stays = needed || memory.bytes() > UNWATCH_AT_MOST;
        if stays && !taken {
            self.regions().leave_some();
        }
        stays
    }

    /// Stops watching a range, by `unwatch`. The regions in it are already invalidated. If no other
    /// region lies in the memory around them, the same call ends the watch of that memory. Returns
    /// whether some of the range was watched.
    pub fn unwatch(&self, range: PageRange, mut unwatch: impl FnMut(PageRange) -> bool) -> bool {
        let mut watched = false;
        self.watching(range, |id, _| {
            let region = self.regions().region(id);
            let touched = || region.extent().filter(|extent| extent.overlaps(range));
            while let Some(extent) = touched() {
                let part = match self.may_lie_beyond(range, extent) {
                    false => extent,
                    true => extent.common(range).unwrap_or(extent),
                };
                if !unwatch(part) {
                    return false;
                }
                watched = true;
                // The orphans on one side of the part touch it, or each other.
                let join = |orphans: &mut Option<PageRange>, orphan: PageRange| {
                    *orphans = Some(orphans.map_or(orphan, |others| others.joined_with(orphan)));
                };
                let (mut below, mut above) = (None, None);
                self.lose_memory(part, range, |orphan| {
                    let is_above = orphan.start > part.start;
                    join(if is_above { &mut above } else { &mut below }, orphan);
                });
                for mut orphans in [below, above] {
                    while let Some(memory) = orphans.take() {
                        if !unwatch(memory) {
                            self.regions().leave_some();
                        }
                        self.lose_memory(memory, range, |orphan| {
                            join(&mut orphans, orphan);
                        });
                    }
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
            self.regions().near(range, |_, region| {
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
