// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranges that were registered and released, and so may come back. The first registration of a
//! range is plain: most programs register their memory once, and must not pay for a cache from
//! which they gain nothing.
//!
//! The table is only a hint: an entry that is lost, or that two ranges share, costs time, but never
//! correctness. So it takes no lock, allocates nothing, and may be used in a signal handler. It has
//! 8192 entries of 8 bytes, in sets of half a cache line: a look touches one line.
//!
//! A range comes back if a range of the same domain, access and first page, and of at least the
//! same length, was released before. malloc gives buffers of many lengths from the same page:
//! `bench/rpc.c` makes 2 100 registrations, of which 350 would be the first of their pages, but
//! only 200 are the first of their start. A range with other access does not count, and neither
//! does an earlier range that begins elsewhere and contains this one: an entry is found by its
//! first page. (An entry does not show a difference in length of less than a fourth.)

use crate::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The number of sets, and the number of entries of a set.
const SETS: usize = 2048;
const WAYS: usize = 4;

/// A bit for each 2 MiB of memory, hashed, says whether ranges were released there. A bit is never
/// cleared.
const CHUNK: u64 = 2 << 20;
const CHUNKS: u64 = 4096;

/// The kernel's smallest page. With larger pages the numbers are just less dense.
const PAGE: u64 = 4096;

// An entry: the number of the first page, a hash of domain and access, the length of the longest
// range there, and how many more registrations are plain. 0 is no entry: no range begins at page 0.
const PAGE_BITS: u32 = 40;
const LENGTH_BITS: u32 = 8;
const PLAIN_BITS: u32 = 4;
const PLAIN: u64 = (1 << PLAIN_BITS) - 1;
const LENGTH: u64 = ((1 << LENGTH_BITS) - 1) << PLAIN_BITS;
/// The bits that two entries for one start share.
const START: u64 = !(LENGTH | PLAIN);

/// After the cache could not keep a range, this many of its registrations are plain before the
/// cache tries again.
const PLAIN_AFTER_REFUSAL: u64 = PLAIN;

#[repr(C, align(32))]
struct Set([AtomicU64; WAYS]);

/// The ranges that were registered and released. Zeroed memory is an empty table.
#[repr(C, align(4096))]
pub struct Released {
    /// The number of entries that had no free place.
    overflow: AtomicU32,
    chunks: [AtomicU64; (CHUNKS / 64) as usize],
    sets: [Set; SETS],
}

const fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The number of a page, as an entry stores it.
const fn page(address: u64) -> u64 {
    (address / PAGE) & ((1 << PAGE_BITS) - 1)
}

/// The length of a range as an entry stores it: its pages up to 7, then rounded down to one of four
/// steps between two powers of 2. Longer ranges have greater lengths, or the same.
#[inline(always)]
const fn length(range: &Range) -> u64 {
    let pages = range.end.wrapping_sub(range.start) / PAGE;
    let power = if pages == 0 { 0 } else { pages.ilog2() };
    let steps = if power < 2 {
        pages
    } else {
        pages >> (power - 2) & 3
    };
    ((power as u64) << 2 | steps) << PLAIN_BITS
}

/// The entry of a range whose next registration need not be plain.
#[inline(always)]
fn entry(range: &Range) -> u64 {
    let others = mixed(range.pd ^ u64::from(range.access).rotate_left(52));
    // The upper bits of the product depend on all bits of its factor.
    page(range.start) << (64 - PAGE_BITS) | others >> PAGE_BITS & START | length(range)
}

/// The word and the bit of a chunk.
const fn bit(chunk: u64) -> (usize, u64) {
    let hashed = mixed(chunk) >> 40 & (CHUNKS - 1);
    ((hashed / 64) as usize, 1 << (hashed % 64))
}

impl Released {
    /// An empty table.
    pub const fn new() -> Released {
        Released {
            overflow: AtomicU32::new(0),
            chunks: [const { AtomicU64::new(0) }; (CHUNKS / 64) as usize],
            sets: [const { Set([const { AtomicU64::new(0) }; WAYS]) }; SETS],
        }
    }

    #[inline(always)]
    fn set(&self, page: u64) -> &[AtomicU64; WAYS] {
        &self.sets[(mixed(page) >> 32) as usize & (SETS - 1)].0
    }

    #[inline(always)]
    fn find(&self, range: &Range) -> (&[AtomicU64; WAYS], u64, Option<&AtomicU64>) {
        let entry = entry(range);
        let set = self.set(entry >> (64 - PAGE_BITS));
        let is_same = |place: &&AtomicU64| (place.load(Relaxed) ^ entry) & START == 0;
        (set, entry, set.iter().find(is_same))
    }

    /// Whether this range was released before, so that the cache should keep a region for it. After a
    /// refusal this registration counts as one of those that stay plain.
    #[inline(always)]
    pub fn comes_back(&self, range: &Range) -> bool {
        let (_, entry, Some(place)) = self.find(range) else {
            return false;
        };
        let found = place.load(Relaxed);
        if found & LENGTH < entry & LENGTH {
            return false;
        }
        if found & PLAIN == 0 {
            return true;
        }
        // Another thread's change at this moment may be lost.
        place.store(found - 1, Relaxed);
        false
    }

    /// From now on this range comes back.
    #[inline(always)]
    pub fn add(&self, range: &Range) {
        match self.find(range) {
            (set, entry, None) => self.put(range, set, entry),
            (_, entry, Some(place)) => {
                let found = place.load(Relaxed);
                if found & LENGTH < entry & LENGTH {
                    place.store(found & !LENGTH | entry & LENGTH, Relaxed);
                }
            }
        }
    }

    #[inline(always)]
    fn put(&self, range: &Range, set: &[AtomicU64; WAYS], entry: u64) {
        let (word, bit) = bit(range.start / CHUNK);
        if self.chunks[word].load(Relaxed) & bit == 0 {
            self.chunks[word].fetch_or(bit, Relaxed);
        }
        let free = set.iter().find(|place| place.load(Relaxed) == 0);
        // In a full set an entry takes any place. So a program that goes through more ranges than
        // the table holds, always in the same order, still finds some of them each time.
        let any = || &set[self.overflow.fetch_add(1, Relaxed) as usize % WAYS];
        free.unwrap_or_else(any).store(entry, Relaxed);
    }

    /// The cache could not keep this range: its next registrations are plain.
    #[cold]
    pub fn give_up(&self, range: &Range) {
        if let (_, _, Some(place)) = self.find(range) {
            let found = place.load(Relaxed);
            // A region that ends late must not begin the count anew.
            if found & PLAIN == 0 {
                place.store(found | PLAIN_AFTER_REFUSAL, Relaxed);
            }
        }
    }

    /// A cached region of this range has ended: because its memory changed by a call that
    /// [`forget`] has not seen (`has_changed`), or for another reason. If the region was not reused
    /// (`was_used`), the cache kept it in vain. After a change the range is then plain for a while.
    /// A range whose region grew too old, or was one too many, counts as new.
    ///
    /// [`forget`]: Released::forget
    #[cold]
    pub fn ended(&self, range: &Range, was_used: bool, has_changed: bool) {
        if was_used {
            self.add(range);
        } else if has_changed {
            self.add(range);
            self.give_up(range);
        } else if let (_, _, Some(place)) = self.find(range) {
            place.store(0, Relaxed);
        }
    }

    /// The memory from `start` to `end` changes: the next registration of a range there counts as
    /// the first. Ranges that begin before `start` are not found, nor those that begin more than a
    /// chunk behind it: to look for them would cost a change of much memory more than the change.
    #[inline(always)]
    pub fn forget(&self, start: u64, end: u64) {
        let end = end.min(start.saturating_add(CHUNK));
        if start < end && (self.may_hold(start) || self.may_hold(end - 1)) {
            self.forget_there(start, end);
        }
    }

    /// Whether a range may have been released that begins in the chunk of this address.
    #[inline(always)]
    fn may_hold(&self, address: u64) -> bool {
        let (word, bit) = bit(address / CHUNK);
        self.chunks[word].load(Relaxed) & bit != 0
    }

    #[cold]
    fn forget_there(&self, start: u64, end: u64) {
        for at in (start..end).step_by(PAGE as usize) {
            for place in self.set(page(at)) {
                if place.load(Relaxed) >> (64 - PAGE_BITS) == page(at) {
                    place.store(0, Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn range(start: u64, length: u64) -> Range {
        Range {
            pd: 0x7000,
            start,
            end: start + length,
            access: 1,
        }
    }

    #[test]
    fn a_range_comes_back_once_it_was_released() {
        static TABLE: Released = Released::new();
        let one = range(0x7f12_3456_7000, 8192);
        assert!(!TABLE.comes_back(&one));
        TABLE.add(&one);
        assert!(TABLE.comes_back(&one) && TABLE.comes_back(&one));
        let others = [
            Range { pd: 0x7040, ..one },
            Range { access: 3, ..one },
            Range {
                end: one.end + PAGE,
                ..one
            },
            range(one.start + PAGE, PAGE),
        ];
        assert!(others.iter().all(|other| !TABLE.comes_back(other)));
        TABLE.ended(&one, false, false);
        assert!(!TABLE.comes_back(&one), "kept in vain");
        TABLE.ended(&one, true, true);
        assert!(TABLE.comes_back(&one));
        TABLE.ended(&one, false, true);
        assert!(!TABLE.comes_back(&one), "not for a while");
    }

    #[test]
    fn a_shorter_range_of_the_same_start_comes_back() {
        static TABLE: Released = Released::new();
        let pages = |count: u64| range(0x7f00_0000_0000, count * PAGE);
        for longest in [1, 2, 3, 4, 7, 8, 100, 1 << 20, 1 << 39] {
            TABLE.forget(0x7f00_0000_0000, 0x7f00_0000_1000);
            TABLE.add(&pages(longest));
            TABLE.add(&pages(1));
            assert!(TABLE.comes_back(&pages(longest)) && TABLE.comes_back(&pages(1)));
            assert!(TABLE.comes_back(&pages(longest.div_ceil(2))));
            let longer = longest + longest.div_ceil(4);
            assert!(!TABLE.comes_back(&pages(longer)), "{longest}");
            TABLE.add(&pages(longer));
            assert!(TABLE.comes_back(&pages(longer)));
            TABLE.give_up(&pages(1));
            assert!(!TABLE.comes_back(&pages(longer)), "one start, one answer");
        }
    }

    #[test]
    fn a_change_of_memory_makes_it_new() {
        static TABLE: Released = Released::new();
        let at = 0x7f00_0000_0000;
        for (start, end, is_seen) in [
            (at, at + PAGE, true),
            (at - MIB, at + MIB, true),
            (at, u64::MAX / 2, true),
            (at - 2 * MIB, u64::MAX / 2, false),
        ] {
            let one = range(at, 4 * MIB);
            let behind = range(at + 4096 * MIB, PAGE);
            TABLE.add(&one);
            TABLE.add(&behind);
            TABLE.forget(at + PAGE, at + 4 * MIB);
            TABLE.forget(at - PAGE, at);
            TABLE.forget(at, at);
            assert!(TABLE.comes_back(&one), "the change lies beside its start");
            TABLE.forget(start, end);
            assert_eq!(TABLE.comes_back(&one), !is_seen, "{start:x} to {end:x}");
            assert!(TABLE.comes_back(&behind));
        }
    }

    #[test]
    fn what_cannot_be_kept_is_tried_again_later() {
        static TABLE: Released = Released::new();
        let one = range(0x7f00_0000_0000, PAGE);
        TABLE.give_up(&one);
        assert!(!TABLE.comes_back(&one), "it was never there");
        TABLE.add(&one);
        TABLE.give_up(&one);
        for _ in 0..PLAIN_AFTER_REFUSAL {
            assert!(!TABLE.comes_back(&one));
            TABLE.add(&one);
        }
        assert!(TABLE.comes_back(&one));
    }

    #[test]
    fn thousands_of_ranges_are_known() {
        static TABLE: Released = Released::new();
        let all = |n: u64| range(0x7f00_0000_0000 + n * 3 * PAGE, 2 * PAGE);
        (0..4096).for_each(|n| TABLE.add(&all(n)));
        let known = (0..4096).filter(|&n| TABLE.comes_back(&all(n))).count();
        assert!(known > 4000, "{known}");
        // More ranges than places, again and again in the same order. Ranges that are kept no
        // longer need their places.
        let mut kept = std::collections::HashSet::new();
        for _ in 0..40 {
            for n in 0..16384 {
                let range = all(n);
                if kept.contains(&n) {
                    continue;
                }
                if TABLE.comes_back(&range) {
                    kept.insert(n);
                } else {
                    TABLE.add(&range);
                }
            }
        }
        assert!(kept.len() > 16000, "{}", kept.len());
    }
}
