// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way from a registration's protection domain and first page to a region, without a lock.
//!
//! An open hash table of half a word per entry: a slot of the pool, and some bits of the hash. It is small, so
//! that with many regions it stays in the processor's cache.
//! Entries are hints. Who finds one looks at the slot itself, and takes the region only if it serves; so
//! entries of regions that have ended need not be removed, and a reader that meets a table just being rebuilt
//! misses at worst, which sends it to the lock. All changes are made under the pool's lock.

use super::large::Large;
use super::region::{Id, Purpose, Region};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Entries of the largest table.
const LARGEST: u32 = if cfg!(test) { 6 } else { 20 };
const SMALLEST: u32 = if cfg!(test) { 3 } else { 10 };

/// The largest table in small pages. Larger ones are elsewhere, so that no small page is where their huge ones
/// are to be.
const SMALL: u32 = if cfg!(test) { 5 } else { 17 };

/// How far an entry may lie behind the place where it is looked for.
const REACH: u64 = 64;

/// An entry: hash (12), slot and one more (20). 0 is none.
const ID_BITS: u32 = 20;
const ID: u32 = (1 << ID_BITS) - 1;
const HASH: u32 = !ID;

/// Two tables, of which one is in use. All zeros is the smallest, empty.
#[repr(C)]
pub struct Table {
    /// Which of the two it is, and the logarithm of its size above the smallest.
    shape: AtomicU64,
    /// Entries that are not 0.
    used: AtomicU64,
    small: [[AtomicU32; 1 << SMALL]; 2],
    large: [Large<[AtomicU32; 1 << LARGEST]>; 2],
}

/// How many entries a table of a size holds at most. A small one is in the first cache anyhow, and is sparse, so
/// that the first look is mostly the last; a large one is dense, to stay in the second.
fn fill(size: u64) -> u64 {
    if size > 1 << 14 {
        size / 5 * 4
    } else {
        size / 2
    }
}

#[inline(always)]
fn hash(pd: u64, start: u64) -> u64 {
    // The two differ in other bits: a domain in its low ones, a page in those above 12.
    let mixed = (start ^ pd.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// The place where the search begins, before it is cut to the table's size.
#[inline(always)]
fn first_place(hash: u64) -> u64 {
    hash >> 32
}

#[inline(always)]
fn entry(hash: u64, id: Id) -> u32 {
    hash as u32 & HASH | (id.0 + 1)
}

impl Table {
    #[inline(always)]
    fn table(&self, shape: u64) -> &[AtomicU32] {
        let log = (SMALLEST + (shape >> 1) as u32).min(LARGEST);
        let which = (shape & 1) as usize;
        if log <= SMALL {
            &self.small[which][..1 << log]
        } else {
            &self.large[which][..1 << log]
        }
    }

    /// The region that the entries lead to, if `take` takes one. It is called with candidates.
    #[inline(always)]
    pub fn find<T>(&self, purpose: &Purpose, mut take: impl FnMut(Id) -> Option<T>) -> Option<T> {
        let table = self.table(self.shape.load(Acquire));
        let hash = hash(purpose.pd, purpose.hull.start);
        let mask = table.len() as u64 - 1;
        for step in 0..REACH {
            let place = first_place(hash).wrapping_add(step) & mask;
            let found = table[place as usize].load(Acquire);
            if found == 0 {
                return None;
            }
            if (found ^ hash as u32) & HASH == 0
                && let Some(taken) = take(Id((found & ID) - 1))
            {
                return Some(taken);
            }
        }
        None
    }

    /// Adds a way to a region, from its own first page or from another within it.
    pub fn add(&self, regions: &[Region], pd: u64, start: u64, id: Id) {
        let size = self.table(self.shape.load(Relaxed)).len() as u64;
        if self.used.load(Relaxed) >= fill(size) {
            self.rebuild(regions);
        }
        let hash = hash(pd, start);
        if !self.put(regions, hash, id) {
            self.rebuild(regions);
            if !self.put(regions, hash, id) {
                self.put_over(hash, id);
            }
        }
    }

    fn put(&self, regions: &[Region], hash: u64, id: Id) -> bool {
        let table = self.table(self.shape.load(Relaxed));
        let mask = table.len() as u64 - 1;
        let new = entry(hash, id);
        for step in 0..REACH {
            let place = &table[(first_place(hash).wrapping_add(step) & mask) as usize];
            let old = place.load(Relaxed);
            if old == new {
                return true;
            }
            if old == 0 {
                self.used.store(self.used.load(Relaxed) + 1, Relaxed);
            } else if of_live(regions, old).is_some() {
                continue;
            }
            place.store(new, Release);
            return true;
        }
        false
    }

    /// Adds an entry where so many regions begin at one page that all places in reach are taken: over another's, which
    /// is found under the lock, or not.
    fn put_over(&self, hash: u64, id: Id) {
        let table = self.table(self.shape.load(Relaxed));
        let place =
            first_place(hash).wrapping_add(u64::from(id.0) % REACH) & (table.len() as u64 - 1);
        table[place as usize].store(entry(hash, id), Release);
    }

    /// Makes the other table of the regions that there are, in a size that fits, and puts it to use.
    fn rebuild(&self, regions: &[Region]) {
        let shape = self.shape.load(Relaxed);
        let old = self.table(shape);
        let live = || {
            old.iter()
                .filter_map(|entry| of_live(regions, entry.load(Relaxed)))
        };
        // Otherwise it was full of what has ended.
        let full = live().count() as u64 >= fill(old.len() as u64) / 2;
        let larger = u64::from(full && old.len() < 1 << LARGEST);
        let next = (shape ^ 1) + 2 * larger;
        if self.table(next).len() > 1 << SMALL {
            self.large[(next & 1) as usize].use_huge_pages();
        }
        for place in self.table(next) {
            place.store(0, Relaxed);
        }
        self.used.store(0, Relaxed);
        self.shape.store(next, Release);
        for (id, hash) in live() {
            self.put(regions, hash, id);
        }
    }
}

/// The region that an entry leads to, and its hash. `None` where it has ended, or the entry is for another of
/// its pages than the first: those may be overwritten, and come back when they are used.
fn of_live(regions: &[Region], entry: u32) -> Option<(Id, u64)> {
    let id = Id((entry & ID).checked_sub(1)?);
    let region = &regions[id.0 as usize];
    let seen = region.word.load();
    let hash = hash(region.pd(), region.hull().start);
    let own = (entry ^ hash as u32) & HASH == 0;
    (own && seen.is_registered() && !seen.is_stale()).then_some((id, hash))
}
