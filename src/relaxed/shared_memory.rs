// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process's shared mappings. Other processes can change their pages unseen: truncate the file,
//! punch a hole, detach the segment. A region in a shared mapping is therefore not kept after its
//! release.
//!
//! The pool learns of shared mappings from /proc/self/maps at its first use, and from the
//! interposed mmap and shmat after that. An unmapped range stays known until the maps are read
//! anew. When the list of ranges is full, the two nearest become one: too much memory is then taken
//! for shared, never too little. Everything here runs under the pool's lock.

use crate::sys::pages::PageRange;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

const MOST: usize = if cfg!(test) { 4 } else { 512 };

/// How memory is shared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sharing {
    /// A System V segment. Its pages change only when it is attached or detached.
    Segment,
    /// Any other shared mapping.
    Shared,
}

#[repr(C)]
struct KnownMemory {
    start: AtomicU64,
    end: AtomicU64,
    shared: AtomicU64,
}

/// The ranges, in ascending order. Zeroed memory holds none.
#[repr(C)]
pub struct SharedMemory {
    count: AtomicU32,
    /// How often a range was added.
    added: AtomicU32,
    /// Whether some of the known ranges may be gone.
    doubtful: AtomicU32,
    known: [KnownMemory; MOST],
}

type SharedEntry = (PageRange, Sharing);

impl SharedMemory {
    fn entry(&self, n: usize) -> SharedEntry {
        let known = &self.known[n];
        let (start, end) = (known.start.load(Relaxed), known.end.load(Relaxed));
        let sharing = match known.shared.load(Relaxed) {
            0 => Sharing::Segment,
            _ => Sharing::Shared,
        };
        (PageRange { start, end }, sharing)
    }

    fn set(&self, n: usize, (range, sharing): SharedEntry) {
        let known = &self.known[n];
        known.start.store(range.start, Relaxed);
        known.end.store(range.end, Relaxed);
        known
            .shared
            .store((sharing == Sharing::Shared).into(), Relaxed);
    }

    fn count(&self) -> usize {
        self.count.load(Relaxed) as usize
    }

    /// Adds a range.
    pub fn add(&self, range: PageRange, sharing: Sharing) {
        self.added.fetch_add(1, Relaxed);
        let mut new = (range, sharing);
        // A range that overlaps the new one merges with it.
        let mut kept = 0;
        for n in 0..self.count() {
            let old = self.entry(n);
            if old.0.overlaps(new.0) {
                new = joined(old, new);
            } else {
                self.set(kept, old);
                kept += 1;
            }
        }
        self.count.store(kept as u32, Relaxed);
        if kept == MOST {
            let nearest =
                (0..MOST - 1).min_by_key(|&n| self.entry(n + 1).0.start - self.entry(n).0.end);
            let n = nearest.unwrap_or(0);
            let both = joined(self.entry(n), self.entry(n + 1));
            self.remove(n);
            self.remove(n);
            // Added again from the start, since the joined range may overlap the new one.
            self.insert(both);
            return self.add(new.0, new.1);
        }
        self.insert(new);
    }

    fn remove(&self, n: usize) {
        let count = self.count();
        (n + 1..count).for_each(|n| self.set(n - 1, self.entry(n)));
        self.count.store(count as u32 - 1, Relaxed);
    }

    fn insert(&self, new: SharedEntry) {
        let count = self.count();
        let mut n = count;
        while n > 0 && self.entry(n - 1).0.start > new.0.start {
            self.set(n, self.entry(n - 1));
            n -= 1;
        }
        self.set(n, new);
        self.count.store(count as u32 + 1, Relaxed);
    }

    /// How the memory in a range is shared, as far as is known.
    pub fn at(&self, range: PageRange) -> Option<Sharing> {
        let known = (0..self.count()).map(|n| self.entry(n));
        let there = known.filter(|(known, _)| known.overlaps(range));
        there.map(|(_, sharing)| sharing).max()
    }

    /// The end of the shared memory that contains an address; the end of the address space if none
    /// is known there.
    pub fn end_of(&self, start: u64) -> u64 {
        let known = (0..self.count()).map(|n| self.entry(n).0);
        let mut there = known.filter(|known| known.start <= start && start < known.end);
        there.next().map_or(u64::MAX, |known| known.end)
    }

    /// How often a range was added. If this number is the same after the maps have been read, the
    /// maps show every range.
    pub fn added(&self) -> u32 {
        self.added.load(Relaxed)
    }

    /// Records a change of a range: shared memory in it may be gone.
    pub fn doubt(&self, range: PageRange) {
        if self.at(range).is_some() {
            self.doubtful.store(1, Relaxed);
        }
    }

    /// Whether ranges may be known that are gone.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Relaxed) != 0
    }

    /// Forgets all ranges, since the maps have been read anew.
    pub fn clear(&self) {
        self.count.store(0, Relaxed);
        self.doubtful.store(0, Relaxed);
    }
}

fn joined(a: SharedEntry, b: SharedEntry) -> SharedEntry {
    let range = PageRange {
        start: a.0.start.min(b.0.start),
        end: a.0.end.max(b.0.end),
    };
    (range, a.1.max(b.1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn none() -> SharedMemory {
        SharedMemory {
            count: AtomicU32::new(0),
            added: AtomicU32::new(0),
            doubtful: AtomicU32::new(0),
            known: core::array::from_fn(|_| KnownMemory {
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                shared: AtomicU64::new(0),
            }),
        }
    }

    fn range(start: u64, end: u64) -> PageRange {
        PageRange { start, end }
    }

    #[test]
    fn ranges_are_found_and_joined() {
        let memory = none();
        assert_eq!(memory.at(range(0, 100)), None);
        memory.add(range(50, 60), Sharing::Shared);
        memory.add(range(10, 20), Sharing::Segment);
        memory.add(range(30, 40), Sharing::Segment);
        assert_eq!(memory.at(range(0, 10)), None);
        assert_eq!(memory.at(range(19, 31)), Some(Sharing::Segment));
        assert_eq!(memory.at(range(0, 100)), Some(Sharing::Shared));
        assert_eq!((memory.end_of(12), memory.end_of(20)), (20, u64::MAX));
        memory.add(range(15, 35), Sharing::Segment);
        assert_eq!((memory.count(), memory.end_of(10)), (2, 40));
        assert_eq!(memory.added(), 4);
    }

    #[test]
    fn where_there_is_no_room_the_nearest_are_joined() {
        let memory = none();
        for n in [0, 100, 110, 300] {
            memory.add(range(n, n + 5), Sharing::Segment);
        }
        memory.add(range(200, 205), Sharing::Shared);
        assert_eq!(memory.count(), MOST);
        assert_eq!(
            memory.at(range(106, 108)),
            Some(Sharing::Segment),
            "between the nearest"
        );
        for n in [0, 100, 110, 300] {
            assert_eq!(memory.at(range(n, n + 1)), Some(Sharing::Segment));
        }
        assert_eq!(memory.at(range(204, 210)), Some(Sharing::Shared));
        assert_eq!(memory.at(range(220, 230)), None);
        memory.clear();
        assert_eq!(memory.at(range(0, 1000)), None);
    }
}
