// SPDX-License-Identifier: MIT OR Apache-2.0
//! A quick answer to the question of every interposed memory call: can a region of the pool be there?
//! "No" is certain. Counts of regions by 2 MiB of address space, hashed, without a lock.

use super::hull::Range;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// What one count is for. Also the unit in which memory is watched: a huge page stays whole.
pub const CHUNK: u64 = 2 << 20;

const COUNTS: usize = if cfg!(test) { 64 } else { 1 << 16 };

/// More chunks than this are not counted one by one.
const MANY: u64 = if cfg!(test) { 8 } else { 4096 };

/// A range of more chunks than this may hold a region, without a look.
const TOO_MANY_TO_LOOK: u64 = 64;

/// The counts. All zeros is none.
#[repr(C)]
pub struct Filter {
    /// Regions of many chunks.
    large: AtomicU32,
    counts: [AtomicU32; COUNTS],
}

fn chunks(range: Range) -> core::ops::RangeInclusive<u64> {
    range.start / CHUNK..=range.end.saturating_sub(1) / CHUNK
}

fn count_of(chunks: &core::ops::RangeInclusive<u64>) -> u64 {
    chunks.end() - chunks.start() + 1
}

fn place(chunk: u64) -> usize {
    (chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % COUNTS
}

impl Filter {
    /// A region comes. Under the pool's lock. That a hook sees it is by the kernel's lock of the address
    /// space: the region's pages are pinned after this, and a hook that changes them after that looks again.
    pub fn add(&self, range: Range) {
        self.each(range, 1);
    }

    /// A region goes. Under the pool's lock.
    pub fn remove(&self, range: Range) {
        self.each(range, u32::MAX);
    }

    fn each(&self, range: Range, amount: u32) {
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

    /// Whether a region that is there may have many neighbours in its first chunk.
    pub fn has_many_neighbours(&self, range: Range) -> bool {
        self.counts[place(range.start / CHUNK)].load(Relaxed) > 16
    }

    /// Whether a region may have an address in that range.
    pub fn may_hold(&self, range: Range) -> bool {
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
        let range = |start, end| Range {
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
