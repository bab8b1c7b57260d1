// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that the program has registered so far, roughly: which changes of memory may matter
//! to a cache. A change that touches none of it is not recorded, nor one that repeats another.
//!
//! A bit stands for 64 KiB of addresses. Addresses 4 GiB apart share their bits, so the filter has
//! false positives, but no false negatives.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const GRANULE: u32 = 16;
const WORDS: usize = 1024;
const BITS: u64 = WORDS as u64 * 64;

pub struct Touched([AtomicU64; WORDS]);

impl Touched {
    pub const fn new() -> Touched {
        Touched([const { AtomicU64::new(0) }; WORDS])
    }

    /// The words with the bits of a range, and the bits in each.
    fn words(granules: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
        let mut at = granules.start;
        let end = granules.end.min(at.saturating_add(BITS));
        core::iter::from_fn(move || {
            let bits = (64 - at % 64).min(end.checked_sub(at).filter(|&left| left > 0)?);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            let word = (at / 64) as usize % WORDS;
            at += bits;
            Some((word, mask))
        })
    }

    /// The program has registered this memory.
    pub fn registered(&self, addr: u64, length: u64) {
        for (word, mask) in Self::words(addr >> GRANULE..(last(addr, length) >> GRANULE) + 1) {
            if self.0[word].load(Relaxed) & mask != mask {
                self.0[word].fetch_or(mask, Relaxed);
            }
        }
    }

    /// The program changes this memory. Returns whether it may have registered some of it since the
    /// last such change.
    pub fn changes(&self, addr: u64, length: u64) -> bool {
        if length == 0 {
            return false;
        }
        let end = last(addr, length);
        let outer = addr >> GRANULE..(end >> GRANULE) + 1;
        let found = Self::words(outer).fold(false, |found, (word, mask)| {
            found | (self.0[word].load(Relaxed) & mask != 0)
        });
        if found {
            // Memory beside the change in the same granule may still be registered.
            let size = 1 << GRANULE;
            let first = addr.saturating_add(size - 1) >> GRANULE;
            for (word, mask) in Self::words(first..end.saturating_add(1) >> GRANULE) {
                self.0[word].fetch_and(!mask, Relaxed);
            }
        }
        found
    }
}

fn last(addr: u64, length: u64) -> u64 {
    addr.saturating_add(length.max(1) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    #[test]
    fn a_change_matters_once() {
        let touched = Touched::new();
        assert!(!touched.changes(0, u64::MAX));
        touched.registered(64 * K, 128 * K);
        assert!(!touched.changes(0, 64 * K));
        assert!(!touched.changes(192 * K, 64 * K));
        assert!(touched.changes(191 * K, 64 * K));
        assert!(touched.changes(64 * K, 128 * K));
        assert!(!touched.changes(64 * K, 128 * K));
        touched.registered(u64::MAX - 5, 100);
        assert!(touched.changes(u64::MAX - 7, 7));
    }

    #[test]
    fn the_rest_of_a_granule_stays() {
        let touched = Touched::new();
        touched.registered(0, 128 * K);
        assert!(touched.changes(4 * K, 4 * K));
        assert!(touched.changes(4 * K, 4 * K));
        assert!(touched.changes(4 * K, 124 * K));
        assert!(touched.changes(0, 64 * K));
        assert!(!touched.changes(64 * K, 64 * K));
    }

    #[test]
    fn more_than_the_filter_holds() {
        let touched = Touched::new();
        touched.registered(12 * K, 1 << 40);
        assert!(touched.0.iter().all(|word| word.load(Relaxed) == u64::MAX));
        assert!(touched.changes(0, u64::MAX));
        assert!(!touched.changes(0, u64::MAX));
    }
}
