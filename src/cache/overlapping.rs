// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regions that overlap a range, by the index and the filter together. Under the lock.

use crate::find::filter::Filter;
use crate::find::index::Index;
use crate::layout::Regions;
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
use crate::watch::extent::CHUNK;
use rdmamr_sys::pages::PageRange;

/// A range of at most this many bytes is looked up in the index granule by granule.
const FEW: u64 = 4 * CHUNK;

impl Regions {
    /// Calls `each` for the regions that overlap a range, until `each` returns false. `each` must
    /// not change the index. Under the lock.
    ///
    /// The index finds small regions by granules of a few pages, and a large range has too many of
    /// them. The filter tells which chunks hold small regions at all.
    pub(super) fn overlapping(
        &self,
        range: PageRange,
        mut each: impl FnMut(Id, &CachedRegion) -> bool,
    ) {
        self.each_overlapping(range, &mut each);
    }

    /// Calls `each` for the regions that reach into the chunks of a range, until `each` returns
    /// false: first for those that overlap `first`. `each` must not change the index. Under the
    /// lock.
    ///
    /// A chunk has hundreds of granules, each a cache miss or two. The filter tells whether there
    /// are more regions than those in `first`.
    pub(super) fn near(
        &self,
        range: PageRange,
        first: PageRange,
        mut each: impl FnMut(Id, &CachedRegion) -> bool,
    ) {
        self.each_near(range, first, &mut each);
    }

    /// `each` is `dyn`, so that this code exists once, and not once for each caller.
    fn each_near(
        &self,
        range: PageRange,
        first: PageRange,
        each: &mut dyn FnMut(Id, &CachedRegion) -> bool,
    ) {
        let chunks = range.extended(CHUNK);
        if chunks.bytes() > FEW {
            return self.each_overlapping(chunks, each);
        }
        // The regions found must be among those that the filter has counted.
        let first = first.common(chunks).unwrap_or(range);
        let (mut found, mut goes_on) = (0, true);
        self.overlapping(first, |id, region| {
            found += 1;
            goes_on = each(id, region);
            goes_on
        });
        if goes_on && found < self.filter.at_most(chunks) {
            self.overlapping(chunks, |id, region| {
                region.page_range().overlaps(first) || each(id, region)
            });
        }
    }

    fn each_overlapping(&self, range: PageRange, each: &mut dyn FnMut(Id, &CachedRegion) -> bool) {
        if range.end.saturating_sub(range.start) <= FEW {
            self.index
                .overlapping_of(u64::MAX, &*self.slots, range, each);
            return;
        }
        if Filter::is_too_large_to_look(range) {
            let mut all = self.each();
            all.all(|(id, region)| {
                !region.state.load().is_linked()
                    || !region.page_range().overlaps(range)
                    || each(id, region)
            });
            return;
        }
        let small = Index::smaller_than(CHUNK);
        let whole = self
            .index
            .overlapping_of(!small, &*self.slots, range, &mut *each);
        if !whole {
            return;
        }
        self.filter.each_chunk(range, |part| {
            self.index
                .overlapping_of(small, &*self.slots, part, &mut |id, region| {
                    // A region that lies in two chunks belongs to the first of them.
                    let start = region.page_range().start.max(range.start);
                    start < part.start || each(id, region)
                })
        });
    }
}
