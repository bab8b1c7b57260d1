// SPDX-License-Identifier: MIT OR Apache-2.0
//! A quick answer to a question that every interposed memory call asks: can a region of the pool
//! lie in this range? "No" is certain. The filter counts regions per 2 MiB of address space,
//! hashed, and is read without a lock.

use crate::sys::pages::PageRange;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// The memory that one count covers. It is also the unit in which memory is watched: a huge page
/// stays whole.
pub const CHUNK: u64 = 2 << 20;

const COUNTS: usize = if cfg!(test) { 64 } else { 1 << 16 };

/// A region of more chunks than this is counted in `large`, not in each of its chunks.
const MANY: u64 = if cfg!(test) { 8 } else { 4096 };

/// A range of more chunks than this is assumed to hold a region.
const TOO_MANY_TO_LOOK: u64 = 64;

/// The counts. In zeroed memory all of them are 0.
#[repr(C)]
pub struct Filter {
    /// The number of regions of more than `MANY` chunks.
    large: AtomicU32,
    counts: [AtomicU32; COUNTS],
}

fn chunks(range: PageRange) -> core::ops::RangeInclusive<u64> {
    range.start / CHUNK..=range.end.saturating_sub(1) / CHUNK
}

fn count_of(chunks: &core::ops::RangeInclusive<u64>) -> u64 {
    chunks.end() - chunks.start() + 1
}

fn place(chunk: u64) -> usize {
    (chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % COUNTS
}

impl Filter {
    /// Counts a new region. Under the pool's lock. The kernel's mmap lock orders a hook's look at
    /// the count after this store: the region's pages are pinned after it, and a hook that changes
    /// them after that looks again.
    pub fn add(&self, range: PageRange) {
        self.each(range, 1);
    }

    /// Uncounts a region. Under the pool's lock.
    pub fn remove(&self, range: PageRange) {
        self.each(range, u32::MAX);
    }

    fn each(&self, range: PageRange, amount: u32) {
        let add = |count: &AtomicU32| {
            count.store(count.load(Relaxed).wrapping_add(amount), Release);
        };
        let chunks = chunks(range);
        if count_of(&chunks) > MANY {
            add(&self.large);
        } else {
            chunks.for_each(|chunk| add(&self.counts[place(chunk)]));
        }
    }

    /// Whether a region in this range may have many neighbours in its first chunk.
    pub fn has_many_neighbours(&self, range: PageRange) -> bool {
        self.counts[place(range.start / CHUNK)].load(Relaxed) > 16
    }

    /// Whether a region may have an address in this range.
    pub fn may_hold(&self, range: PageRange) -> bool {
        let mut chunks = chunks(range);
        range.start < range.end
            && (self.large.load(Acquire) != 0
                || count_of(&chunks) > TOO_MANY_TO_LOOK
                || chunks.any(|chunk| self.counts[place(chunk)].load(Acquire) != 0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_may_be_there() {
        let filter = Filter {
            large: AtomicU32::new(0),
            counts: [const { AtomicU32::new(0) }; COUNTS],
        };
        let range = |start, end| PageRange {
            start: start * CHUNK / 2,
            end: end * CHUNK / 2,
        };
        assert!(!filter.may_hold(range(0, 20)));
        filter.add(range(3, 4));
        assert!(filter.may_hold(range(2, 3)), "the same chunk");
        assert!(filter.may_hold(range(0, 20)));
        assert!(!filter.may_hold(range(4, 6)) && !filter.may_hold(range(3, 3)));
        filter.add(range(0, 4 * MANY));
        assert!(filter.may_hold(range(4, 6)));
        filter.remove(range(0, 4 * MANY));
        filter.remove(range(3, 4));
        assert!(!filter.may_hold(range(0, 20)));
        assert!(filter.may_hold(range(0, 1000)), "too many to look at");
    }
}
