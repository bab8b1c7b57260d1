// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regions that overlap a range, by the index and the filter together. Under the lock.

use crate::layout::Regions;
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
use crate::sys::pages::{PageRange, page_size};
use crate::watch::extent::CHUNK;

/// A range of more bytes has more chunks than are worth asking the filter about.
const FEW: u64 = 4 * CHUNK;

impl Regions {
    /// Calls `each` for the regions that overlap a range, until `each` returns false. `each` must
    /// not change the index. Under the lock. There is one copy of this code, not one for each
    /// caller.
    ///
    /// The index finds regions by granules. If a large range has more granules than there are
    /// slots, all slots are looked at.
    pub(super) fn overlapping(
        &self,
        range: PageRange,
        each: &mut dyn FnMut(Id, &CachedRegion) -> bool,
    ) {
        // Per class of sizes, the index looks at a list for each two pages.
        let bytes = range.end.saturating_sub(range.start);
        if bytes / page_size() / 2 < self.slots().len() as u64 {
            self.index.overlapping(&*self.slots, range, each);
            return;
        }
        let _ = self.each().all(|(id, region)| {
            !region.state.load().is_linked()
                || !region.page_range().overlaps(range)
                || each(id, region)
        });
    }

    /// Calls `each` for the regions that reach into the chunks of a range, until `each` returns
    /// false: first for those that overlap `first`. `each` must not change the index. Under the
    /// lock.
    ///
    /// A chunk has hundreds of granules, each a cache miss or two. The filter tells when the
    /// regions in `first` are all that there are.
    pub(super) fn near(
        &self,
        range: PageRange,
        first: PageRange,
        each: &mut dyn FnMut(Id, &CachedRegion) -> bool,
    ) {
        let chunks = range.extended(CHUNK);
        if chunks.bytes() > FEW {
            return self.overlapping(chunks, each);
        }
        // What is found must be among what the filter has counted.
        let first = first.common(chunks).unwrap_or(range);
        let (mut found, mut goes_on) = (0, true);
        self.overlapping(first, &mut |id, region| {
            found += 1;
            goes_on = each(id, region);
            goes_on
        });
        if goes_on && found < self.filter.at_most(chunks) {
            self.overlapping(chunks, &mut |id, region| {
                region.page_range().overlaps(first) || each(id, region)
            });
        }
    }
}
