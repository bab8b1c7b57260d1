// SPDX-License-Identifier: MIT OR Apache-2.0
//! A quick answer to a question that every interposed memory call asks: can a region of the cache
//! lie in this range? "No" is certain. The filter counts regions per 2 MiB of address space, and
//! per 1 GiB for large ranges, hashed, and is read without a lock.

use crate::watch::extent::CHUNK;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use rdmamr_sys::pages::PageRange;

const COUNTS: usize = tiny_or!(64, 1 << 16);

/// The memory that one count of the coarse counts covers.
const BLOCK: u64 = 512 * CHUNK;

const BLOCK_COUNTS: usize = tiny_or!(64, 1 << 12);

/// A region of more chunks than this is noted in `large`, not in each of its chunks.
const MANY: u64 = tiny_or!(8, 512);

/// How many large regions are noted with their ranges. Once there are more, every range is assumed
/// to hold a region.
const LARGE: usize = tiny_or!(2, 64);

/// A range of more blocks than this is assumed to hold a region.
const TOO_MANY_TO_LOOK: u64 = 256;

/// The number of chunks for which a clear part can be noted.
const CLEAR: usize = tiny_or!(4, 256);

/// A range of more chunks than this is not looked up among the clear parts.
const FEW_CHUNKS: u64 = 4;

/// A noted range: of a large region, or a clear part of a chunk. An empty range notes nothing.
#[repr(C)]
struct NotedRange {
    /// Grows before and after each change of the range.
    turn: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

impl NotedRange {
    /// The range, or `None` if a thread is changing it.
    fn get(&self) -> Option<PageRange> {
        let turn = self.turn.load(Acquire);
        let range = PageRange::new(self.start.load(Relaxed), self.end.load(Relaxed));
        fence(Acquire);
        (turn % 2 == 0 && self.turn.load(Relaxed) == turn).then_some(range)
    }

    /// Under the cache's lock.
    fn set(&self, range: PageRange) {
        let turn = self.turn.load(Relaxed);
        self.turn.store(turn + 1, Relaxed);
        fence(Release);
        self.start.store(range.start, Relaxed);
        self.end.store(range.end, Relaxed);
        self.turn.store(turn + 2, Release);
    }
}

const EMPTY: PageRange = PageRange { start: 0, end: 0 };

/// The counts. In zeroed memory all of them are 0.
#[repr(C)]
pub struct Filter {
    /// The number of large regions, and of those for which no range was free.
    large: AtomicU32,
    unnoted: AtomicU32,
    ranges: [NotedRange; LARGE],
    blocks: [AtomicU32; BLOCK_COUNTS],
    counts: [AtomicU32; COUNTS],
    /// For some chunks that hold regions: a part that holds neither a region nor watched memory.
    clear: [NotedRange; CLEAR],
}

fn chunks(range: PageRange) -> core::ops::RangeInclusive<u64> {
    range.start / CHUNK..=range.end.saturating_sub(1) / CHUNK
}

fn blocks(range: PageRange) -> core::ops::RangeInclusive<u64> {
    range.start / BLOCK..=range.end.saturating_sub(1) / BLOCK
}

/// The part of a range that lies in the unit of this number and size.
fn part(range: PageRange, number: u64, size: u64) -> PageRange {
    PageRange::new(
        range.start.max(number * size),
        range.end.min((number + 1) * size),
    )
}

fn count_of(chunks: &core::ops::RangeInclusive<u64>) -> u64 {
    chunks.end() - chunks.start() + 1
}

fn place(number: u64, places: usize) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % places
}

impl Filter {
    /// Counts a new region. Under the cache's lock. The kernel's mmap lock orders a hook's check of
    /// the count after this store: the region's pages are pinned after it, and a hook that changes
    /// them after that checks again.
    pub fn add(&self, range: PageRange) {
        if count_of(&chunks(range)) > MANY {
            let free = self.ranges.iter().find(|noted| noted.get() == Some(EMPTY));
            match free {
                Some(free) => free.set(range),
                None => add(&self.unnoted, 1),
            }
            add(&self.large, 1);
            self.clear
                .iter()
                .filter(|part| part.get() != Some(EMPTY))
                .for_each(|part| part.set(EMPTY));
        } else {
            self.each(range, 1);
            for chunk in chunks(range) {
                let part = self.clear_part(chunk);
                if part.get() != Some(EMPTY) {
                    part.set(EMPTY);
                }
            }
        }
    }

    /// Uncounts a region. Under the cache's lock.
    pub fn remove(&self, range: PageRange) {
        if count_of(&chunks(range)) > MANY {
            let noted = self.ranges.iter().find(|noted| noted.get() == Some(range));
            match noted {
                Some(noted) => noted.set(EMPTY),
                None => add(&self.unnoted, u32::MAX),
            }
            add(&self.large, u32::MAX);
        } else {
            self.each(range, u32::MAX);
        }
    }

    fn each(&self, range: PageRange, amount: u32) {
        for block in blocks(range) {
            add(&self.blocks[place(block, BLOCK_COUNTS)], amount);
        }
        for chunk in chunks(range) {
            add(&self.counts[place(chunk, COUNTS)], amount);
        }
    }

    /// Whether a region in this range may have many neighbours in its first chunk.
    pub fn has_many_neighbours(&self, range: PageRange) -> bool {
        self.counts[place(range.start / CHUNK, COUNTS)].load(Relaxed) > 16
    }

    fn clear_part(&self, chunk: u64) -> &NotedRange {
        &self.clear[place(chunk, CLEAR)]
    }

    /// Notes that a part of a chunk holds neither a region nor watched memory. The note lasts until
    /// a region is added in the chunk. Under the cache's lock.
    pub fn note_clear(&self, part: PageRange) {
        self.clear_part(part.start / CHUNK).set(part);
    }

    /// Whether a range is known to lie in clear parts: the cache has nothing there.
    fn is_clear(&self, range: PageRange) -> bool {
        let chunks = chunks(range);
        count_of(&chunks) <= FEW_CHUNKS
            && chunks.into_iter().all(|chunk| {
                let noted = self.clear_part(chunk).get();
                noted.is_some_and(|noted| noted.contains(part(range, chunk, CHUNK)))
            })
    }

    /// Whether a change of a range may touch a region, or watched memory around one. As with
    /// [`Filter::may_hold`], a "no" is certain.
    pub fn may_touch(&self, range: PageRange) -> bool {
        self.may_hold(range) && !self.is_clear(range)
    }

    /// Whether a region may have an address in one of the chunks of this range.
    pub fn may_hold(&self, range: PageRange) -> bool {
        if range.start >= range.end {
            return false;
        }
        if self.large.load(Acquire) != 0 && self.may_hold_large(range) {
            return true;
        }
        Filter::is_too_large_to_look(range)
            || blocks(range)
                .filter(|&block| self.may_hold_in_block(block))
                .any(|block| {
                    chunks(part(range, block, BLOCK)).any(|chunk| self.may_hold_in_chunk(chunk))
                })
    }

    /// An upper bound on the number of regions that reach into the chunks of a range. The range
    /// must have few chunks. Under the cache's lock.
    pub fn at_most(&self, range: PageRange) -> u64 {
        let count = |chunk| u64::from(self.counts[place(chunk, COUNTS)].load(Relaxed));
        let small: u64 = chunks(range).map(count).sum();
        small + u64::from(self.large.load(Relaxed))
    }

    /// Whether a range has so many blocks that [`Filter::each_chunk`] takes long.
    pub fn is_too_large_to_look(range: PageRange) -> bool {
        range.bytes() / BLOCK >= TOO_MANY_TO_LOOK
    }

    /// Calls `each` with the parts of a range that lie in chunks that may hold small regions, until
    /// `each` returns false.
    pub fn each_chunk(&self, range: PageRange, mut each: impl FnMut(PageRange) -> bool) {
        for block in blocks(range).filter(|&block| self.may_hold_in_block(block)) {
            let in_block = part(range, block, BLOCK);
            let mut chunks = chunks(in_block).filter(|&chunk| self.may_hold_in_chunk(chunk));
            if !chunks.all(|chunk| each(part(in_block, chunk, CHUNK))) {
                return;
            }
        }
    }

    fn may_hold_in_block(&self, block: u64) -> bool {
        self.blocks[place(block, BLOCK_COUNTS)].load(Acquire) != 0
    }

    fn may_hold_in_chunk(&self, chunk: u64) -> bool {
        self.counts[place(chunk, COUNTS)].load(Acquire) != 0
    }

    #[cold]
    fn may_hold_large(&self, range: PageRange) -> bool {
        // The memory that is watched for a region reaches to the ends of its chunks.
        let near = range.extended(CHUNK);
        self.unnoted.load(Acquire) != 0
            || self
                .ranges
                .iter()
                .any(|noted| noted.get().is_none_or(|noted| noted.overlaps(near)))
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
        filter.add(in_chunk(2, 0, 512 * MANY + 1));
        assert!(filter.may_touch(in_chunk(7, 20, 30)), "a large one");
    }

    #[test]
    fn what_is_there_may_be_there() {
        // SAFETY: all zeros is an empty filter.
        let filter: Filter = unsafe { core::mem::zeroed() };
        let range = |start, end| PageRange::new(start * CHUNK / 2, end * CHUNK / 2);
        assert!(!filter.may_hold(range(0, 20)));
        filter.add(range(3, 4));
        assert!(filter.may_hold(range(2, 3)), "the same chunk");
        assert!(filter.may_hold(range(0, 20)));
        assert!(!filter.may_hold(range(4, 6)) && !filter.may_hold(range(3, 3)));
        assert_eq!(
            (filter.at_most(range(0, 2)), filter.at_most(range(2, 3))),
            (0, 1)
        );
        for start in [100, 200, 300] {
            filter.add(range(start, start + 4 * MANY));
            assert!(filter.may_hold(range(start + 4, start + 6)));
            let unsure = start == 300;
            assert_eq!(
                filter.may_hold(range(20, 60)),
                unsure,
                "more than are noted"
            );
        }
        for start in [100, 200, 300] {
            assert!(filter.may_hold(range(start + 4, start + 6)));
            filter.remove(range(start, start + 4 * MANY));
        }
        filter.remove(range(3, 4));
        assert!(!filter.may_hold(range(0, 2000)));
        let everything = TOO_MANY_TO_LOOK * 2 * 512 + 2;
        assert!(filter.may_hold(range(0, everything)), "too many to look at");
    }
}
