// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the process has shared mappings, whose pages others can change unseen: cut the file, punch a hole,
//! detach the segment. What is registered there is not kept after its release.
//!
//! Known from /proc/self/maps when the pool is first used, and from the interposed mmap and shmat after
//! that. A range that is unmapped stays known until the maps are read anew. When there is no room for
//! more ranges, the two nearest become one: too much is taken for shared, never too little. Everything
//! happens under the pool's lock.

use super::hull::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

const MOST: usize = if cfg!(test) { 4 } else { 512 };

/// How memory is shared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sharing {
    /// A System V segment: its pages change only with its attachment.
    Segment,
    /// Anything else.
    Shared,
}

#[repr(C)]
struct Known {
    start: AtomicU64,
    end: AtomicU64,
    shared: AtomicU64,
}

/// The ranges, in ascending order. All zeros is none.
#[repr(C)]
pub struct SharedMemory {
    count: AtomicU32,
    /// How often a range was added.
    added: AtomicU32,
    /// Whether some of it may be gone.
    doubtful: AtomicU32,
    known: [Known; MOST],
}

type Entry = (Range, Sharing);

impl SharedMemory {
    fn entry(&self, n: usize) -> Entry {
        let known = &self.known[n];
        let (start, end) = (known.start.load(Relaxed), known.end.load(Relaxed));
        let sharing = match known.shared.load(Relaxed) {
            0 => Sharing::Segment,
            _ => Sharing::Shared,
        };
        (Range { start, end }, sharing)
    }

    fn set(&self, n: usize, (range, sharing): Entry) {
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
    pub fn add(&self, range: Range, sharing: Sharing) {
        self.added.fetch_add(1, Relaxed);
        let mut new = (range, sharing);
        // What it touches becomes one with it.
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
            // Again, since both together may touch the new one.
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

    fn insert(&self, new: Entry) {
        let count = self.count();
        let mut n = count;
        while n > 0 && self.entry(n - 1).0.start > new.0.start {
            self.set(n, self.entry(n - 1));
            n -= 1;
        }
        self.set(n, new);
        self.count.store(count as u32 + 1, Relaxed);
    }

    /// What is known of a range.
    pub fn at(&self, range: Range) -> Option<Sharing> {
        let known = (0..self.count()).map(|n| self.entry(n));
        let there = known.filter(|(known, _)| known.overlaps(range));
        there.map(|(_, sharing)| sharing).max()
    }

    /// Where the shared memory that begins at an address ends; the end of all addresses if it is not known.
    pub fn end_of(&self, start: u64) -> u64 {
        let known = (0..self.count()).map(|n| self.entry(n).0);
        let mut there = known.filter(|known| known.start <= start && start < known.end);
        there.next().map_or(u64::MAX, |known| known.end)
    }

    /// How often a range was added: if it is the same after the maps have been read, they say it all.
    pub fn added(&self) -> u32 {
        self.added.load(Relaxed)
    }

    /// Something happened to the memory of a range: shared memory there may be gone.
    pub fn doubt(&self, range: Range) {
        if self.at(range).is_some() {
            self.doubtful.store(1, Relaxed);
        }
    }

    /// Whether what is known may be more than there is.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Relaxed) != 0
    }

    /// Forgets all ranges, since the maps have been read anew.
    pub fn clear(&self) {
        self.count.store(0, Relaxed);
        self.doubtful.store(0, Relaxed);
    }
}

fn joined(a: Entry, b: Entry) -> Entry {
    let range = Range {
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
            known: core::array::from_fn(|_| Known {
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                shared: AtomicU64::new(0),
            }),
        }
    }

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
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
