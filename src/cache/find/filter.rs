// SPDX-License-Identifier: MIT OR Apache-2.0
//! A quick answer to a question that every interposed memory call asks: can a region of the cache
//! lie in this range? "No" is certain. The filter counts regions per 2 MiB of address space, and
//! per 1 GiB for large ranges, hashed, and is read without a lock.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering::*};
use rdmamr_sys::pages::PageRange;

/// The unit in which memory is watched, so that a huge page stays whole and neighbours need no further
/// mapping.
pub const CHUNK: u64 = 2 << 20;

const COUNTS: usize = tiny_or!(64, 1 << 16);

/// The memory that one count of the coarse counts covers.
const BLOCK: u64 = tiny_or!(4, 512) * CHUNK;

const BLOCK_COUNTS: usize = tiny_or!(64, 1 << 12);

/// A range of this many blocks is assumed to hold a region.
const TOO_MANY_TO_LOOK: u64 = 256;

/// The counts. In zeroed memory all of them are 0.
#[repr(C)]
pub struct Filter {
    /// For each block, the number of regions that cover all of it, and of those that cover a part.
    covered: [AtomicU32; BLOCK_COUNTS],
    blocks: [AtomicU32; BLOCK_COUNTS],
    /// For each chunk, the number of regions in it that do not cover its whole block.
    counts: [AtomicU32; COUNTS],
}

/// The numbers of the units of a size that a range reaches into.
fn units(range: PageRange, size: u64) -> RangeInclusive<u64> {
    range.start / size..=range.end.saturating_sub(1) / size
}

/// The part of a range that lies in the unit of this number and size.
fn part(range: PageRange, number: u64, size: u64) -> PageRange {
    PageRange::new(
        range.start.max(number * size),
        range.end.min((number + 1) * size),
    )
}

fn place(number: u64, places: usize) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % places
}

impl Filter {
    /// Counts a new region. Under the cache's lock. The region's memory is watched and pinned after
    /// this store. A reported call that found 0 before it does nothing more: if it changes the memory
    /// after the pin, the kernel has an event. A call that is not reported is counted, and looks here
    /// once more when it ends.
    pub fn add(&self, range: PageRange) {
        self.count(range, 1);
    }

    /// Uncounts a region. Under the cache's lock.
    pub fn remove(&self, range: PageRange) {
        self.count(range, u32::MAX);
    }

    fn count(&self, range: PageRange, amount: u32) {
        for block in units(range, BLOCK) {
            let (in_block, place) = (part(range, block, BLOCK), place(block, BLOCK_COUNTS));
            if in_block.bytes() == BLOCK {
                self.covered[place].fetch_add(amount, Release);
                continue;
            }
            self.blocks[place].fetch_add(amount, Release);
            for chunk in units(in_block, CHUNK) {
                self.in_chunk(chunk).fetch_add(amount, Release);
            }
        }
    }

    fn in_chunk(&self, chunk: u64) -> &AtomicU32 {
        &self.counts[place(chunk, COUNTS)]
    }

    /// Whether a region may have an address in one of the chunks of this range. A "no" is certain.
    pub fn may_hold(&self, range: PageRange) -> bool {
        let has_some = |count: &AtomicU32| count.load(Acquire) != 0;
        let may_hold_in_block = |block| {
            let place = place(block, BLOCK_COUNTS);
            let mut chunks = units(part(range, block, BLOCK), CHUNK);
            has_some(&self.covered[place])
                || has_some(&self.blocks[place])
                    && chunks.any(|chunk| has_some(self.in_chunk(chunk)))
        };
        range.start < range.end
            && (range.bytes() / BLOCK >= TOO_MANY_TO_LOOK
                || units(range, BLOCK).any(may_hold_in_block))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_may_be_there() {
        // SAFETY: all zeros is an empty filter.
        let filter: Filter = unsafe { core::mem::zeroed() };
        let range = |start, end| PageRange::new(start * CHUNK / 2, end * CHUNK / 2);
        assert!(!filter.may_hold(range(0, 20)));
        let small = range(3, 4);
        filter.add(small);
        assert!(filter.may_hold(range(2, 3)), "the same chunk");
        assert!(filter.may_hold(range(0, 20)));
        assert!(!filter.may_hold(range(4, 6)) && !filter.may_hold(range(3, 3)));
        // A part of a block, three whole ones, and a part again.
        let large = range(102, 144);
        filter.add(large);
        for (start, end) in [
            (102, 103),
            (104, 105),
            (120, 121),
            (136, 140),
            (143, 144),
            (0, 200),
        ] {
            assert!(filter.may_hold(range(start, end)), "{start}");
        }
        for (start, end) in [(98, 102), (144, 150), (20, 60)] {
            assert!(!filter.may_hold(range(start, end)), "{start}");
        }
        filter.remove(small);
        assert!(filter.may_hold(range(0, 200)) && !filter.may_hold(range(0, 100)));
        filter.remove(large);
        assert!(!filter.may_hold(range(0, 1000)));
        let everything = TOO_MANY_TO_LOOK * BLOCK;
        assert!(
            filter.may_hold(PageRange::new(0, everything)),
            "too many to look at"
        );
    }
}
