// SPDX-License-Identifier: MIT OR Apache-2.0
//! A quick answer to a question that every interposed memory call asks: can a region of the cache
//! lie in this range? "No" is certain. The filter counts regions per 2 MiB of address space, and
//! per 1 GiB for large ranges, hashed, and is read without a lock.

use crate::watch::extent::CHUNK;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use rdmamr_sys::pages::{PageRange, page_size};

const COUNTS: usize = tiny_or!(64, 1 << 16);

/// The memory that one count of the coarse counts covers.
const BLOCK: u64 = tiny_or!(4, 512) * CHUNK;

const BLOCK_COUNTS: usize = tiny_or!(64, 1 << 12);

/// A range of more blocks than this is assumed to hold a region.
const TOO_MANY_TO_LOOK: u64 = 256;

/// The number of chunks for which a clear part can be noted.
const CLEAR: usize = tiny_or!(4, 256);

/// A range of more chunks than this is not looked up among the clear parts.
const FEW_CHUNKS: u64 = 4;

/// The counts. In zeroed memory all of them are 0.
#[repr(C)]
pub struct Filter {
    /// For each block, the number of regions that cover all of it, and of those that cover a part.
    covered: [AtomicU32; BLOCK_COUNTS],
    blocks: [AtomicU32; BLOCK_COUNTS],
    /// For each chunk, the number of regions in it that do not cover its whole block.
    counts: [AtomicU32; COUNTS],
    /// For some chunks that hold regions: a part that holds neither a region nor watched memory, as
    /// [`word`] gives it.
    clear: [AtomicU64; CLEAR],
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

/// The bits of a page's number in its chunk.
const PAGE_BITS: u32 = 10;

/// A part of a chunk: the chunk's number, then those of the part's first page and of the page after
/// it.
fn word(chunk: u64, part: PageRange) -> u64 {
    let page = |address| (address - chunk * CHUNK) / page_size();
    (chunk << PAGE_BITS | page(part.start)) << PAGE_BITS | page(part.end)
}

fn place(number: u64, places: usize) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % places
}

impl Filter {
    /// Counts a new region. Under the cache's lock. The kernel's mmap lock orders a hook's check of
    /// the count after this store: the region's pages are pinned after it, and a hook that changes
    /// them after that checks again.
    pub fn add(&self, range: PageRange) {
        self.count(range, 1);
        let end = |noted: &AtomicU64| noted.store(0, Release);
        if range.bytes() > BLOCK {
            self.clear.iter().for_each(end);
        } else {
            units(range, CHUNK).for_each(|chunk| end(self.clear_part(chunk)));
        }
    }

    /// Uncounts a region. Under the cache's lock.
    pub fn remove(&self, range: PageRange) {
        self.count(range, u32::MAX);
    }

    fn count(&self, range: PageRange, amount: u32) {
        for block in units(range, BLOCK) {
            let (in_block, place) = (part(range, block, BLOCK), place(block, BLOCK_COUNTS));
            if in_block.bytes() == BLOCK {
                add(&self.covered[place], amount);
                continue;
            }
            add(&self.blocks[place], amount);
            for chunk in units(in_block, CHUNK) {
                add(self.in_chunk(chunk), amount);
            }
        }
    }

    fn in_chunk(&self, chunk: u64) -> &AtomicU32 {
        &self.counts[place(chunk, COUNTS)]
    }

    /// Whether a region in this range may have many neighbours in its first chunk.
    pub fn has_many_neighbours(&self, range: PageRange) -> bool {
        self.in_chunk(range.start / CHUNK).load(Relaxed) > 16
    }

    fn clear_part(&self, chunk: u64) -> &AtomicU64 {
        &self.clear[place(chunk, CLEAR)]
    }

    /// Notes that a part of a chunk holds neither a region nor watched memory. The note lasts until
    /// a region is added in the chunk. Under the cache's lock.
    pub fn note_clear(&self, part: PageRange) {
        let chunk = part.start / CHUNK;
        self.clear_part(chunk).store(word(chunk, part), Release);
    }

    /// Whether a range is known to lie in clear parts: the cache has nothing there.
    fn is_clear(&self, range: PageRange) -> bool {
        let is_noted = |chunk| {
            let page = |word: u64| word & ((1 << PAGE_BITS) - 1);
            let noted = self.clear_part(chunk).load(Acquire);
            let asked = word(chunk, part(range, chunk, CHUNK));
            noted >> PAGE_BITS <= asked >> PAGE_BITS
                && noted >> (2 * PAGE_BITS) == chunk
                && page(asked) <= page(noted)
        };
        range.bytes() <= FEW_CHUNKS * CHUNK && units(range, CHUNK).all(is_noted)
    }

    /// Whether a change of a range may touch a region, or watched memory around one. As with
    /// [`Filter::may_hold`], a "no" is certain.
    pub fn may_touch(&self, range: PageRange) -> bool {
        self.may_hold(range) && !self.is_clear(range)
    }

    /// Whether a region may have an address in one of the chunks of this range.
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

/// Adds to a count. Under the cache's lock, so it needs no locked instruction.
fn add(count: &AtomicU32, amount: u32) {
    count.store(count.load(Relaxed).wrapping_add(amount), Release);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_clear_part_stays_clear_until_a_region_is_added() {
        // SAFETY: all zeros is an empty filter.
        let filter: Filter = unsafe { core::mem::zeroed() };
        let page = 4096;
        let in_chunk = |chunk: u64, from: u64, to: u64| {
            PageRange::new(chunk * CHUNK + from * page, chunk * CHUNK + to * page)
        };
        filter.add(in_chunk(7, 0, 1));
        assert!(filter.may_touch(in_chunk(7, 20, 30)));
        filter.note_clear(in_chunk(7, 10, 512));
        assert!(!filter.may_touch(in_chunk(7, 20, 30)) && !filter.may_touch(in_chunk(7, 10, 512)));
        assert!(filter.may_touch(in_chunk(7, 9, 30)) && filter.may_hold(in_chunk(7, 20, 30)));
        let over_the_end = PageRange::new(7 * CHUNK + 20 * page, 8 * CHUNK + page);
        assert!(filter.may_touch(over_the_end));
        filter.note_clear(in_chunk(8, 0, 512));
        assert!(!filter.may_touch(over_the_end));
        filter.add(in_chunk(8, 511, 513));
        assert!(filter.may_touch(over_the_end) && !filter.may_touch(in_chunk(7, 20, 30)));
        filter.add(in_chunk(7, 40, 41));
        assert!(filter.may_touch(in_chunk(7, 20, 30)));
        filter.note_clear(in_chunk(7, 10, 40));
        assert!(!filter.may_touch(in_chunk(7, 20, 30)) && filter.may_touch(in_chunk(7, 20, 41)));
        filter.add(in_chunk(2, 0, 512 * 6));
        assert!(filter.may_touch(in_chunk(7, 20, 30)), "a large one");
    }

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
