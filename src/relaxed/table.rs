// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way from a registration's protection domain and first page to a region, without a lock.
//!
//! An open hash table of one word per entry: a slot of the pool, its generation, and some bits of the hash.
//! Entries are hints. Who finds one looks at the slot itself, and takes the region only if it serves and
//! its generation is the entry's; so entries of regions that have ended need not be removed, and a reader
//! that meets a table just being rebuilt misses at worst, which sends it to the lock. All changes are made
//! under the pool's lock.

use super::large::Large;
use super::region::{Id, Purpose, Region};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Entries of the largest table.
const LARGEST: u32 = if cfg!(test) { 6 } else { 20 };
const SMALLEST: u32 = if cfg!(test) { 3 } else { 10 };

/// From so many entries on, a table is in huge pages.
const LARGE: usize = 1 << 18;

/// How far an entry may lie behind the place where it is looked for.
const REACH: u64 = 64;

/// An entry: generation (32), hash (10), slot and one more (22). 0 is none.
const ID_BITS: u32 = 22;
const ID: u64 = (1 << ID_BITS) - 1;
const HASH: u64 = (1 << 32) - 1 - ID;

/// Two tables, of which one is in use. All zeros is the smallest, empty.
#[repr(C)]
pub struct Table {
    /// Which of the two it is, and the logarithm of its size above the smallest.
    shape: AtomicU64,
    /// Entries that are not 0.
    used: AtomicU64,
    tables: [Large<[AtomicU64; 1 << LARGEST]>; 2],
}

#[inline(always)]
fn hash(pd: u64, start: u64) -> u64 {
    // The two differ in other bits: a domain in its low ones, a page in those above 12.
    let mixed = (start ^ pd.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

#[inline(always)]
fn entry(hash: u64, id: Id, generation: u32) -> u64 {
    u64::from(generation) << 32 | hash & HASH | (u64::from(id.0) + 1)
}

impl Table {
    #[inline(always)]
    fn table(&self, shape: u64) -> &[AtomicU64] {
        let size = 1usize << (SMALLEST + (shape >> 1) as u32).min(LARGEST);
        &self.tables[(shape & 1) as usize][..size]
    }

    /// The region that the entries lead to, if `take` takes one. It is called with candidates, and the
    /// generation that they must have.
    #[inline(always)]
    pub fn find<T>(
        &self,
        purpose: &Purpose,
        mut take: impl FnMut(Id, u32) -> Option<T>,
    ) -> Option<T> {
        let table = self.table(self.shape.load(Acquire));
        let hash = hash(purpose.pd, purpose.hull.start);
        let mask = table.len() as u64 - 1;
        for step in 0..REACH {
            let found = table[((hash >> 32).wrapping_add(step) & mask) as usize].load(Acquire);
            if found == 0 {
                return None;
            }
            if (found ^ hash) & HASH == 0
                && let Some(taken) = take(Id((found & ID) as u32 - 1), (found >> 32) as u32)
            {
                return Some(taken);
            }
        }
        None
    }

    /// Adds a way to a region, from its own first page or from another within it.
    pub fn add(&self, regions: &[Region], pd: u64, start: u64, id: Id) {
        let shape = self.shape.load(Relaxed);
        let size = self.table(shape).len() as u64;
        if self.used.load(Relaxed) * 2 >= size {
            self.rebuild(regions);
        }
        let generation = regions[id.0 as usize].word.load().generation();
        if !self.put(regions, hash(pd, start), id, generation) {
            self.rebuild(regions);
            // Without an entry the region is found under the lock.
            self.put(regions, hash(pd, start), id, generation);
        }
    }

    fn put(&self, regions: &[Region], hash: u64, id: Id, generation: u32) -> bool {
        let table = self.table(self.shape.load(Relaxed));
        let mask = table.len() as u64 - 1;
        for step in 0..REACH {
            let place = &table[((hash >> 32).wrapping_add(step) & mask) as usize];
            let old = place.load(Relaxed);
            if old == 0 {
                self.used.fetch_add(1, Relaxed);
            } else if !outdated(regions, old) {
                continue;
            }
            place.store(entry(hash, id, generation), Release);
            return true;
        }
        false
    }

    /// Makes the other table of the regions that there are, in a size that fits, and puts it to use.
    fn rebuild(&self, regions: &[Region]) {
        let shape = self.shape.load(Relaxed);
        let live = |regions: &[Region]| {
            let all = self.table(shape).iter();
            all.filter(|entry| {
                let entry = entry.load(Relaxed);
                entry != 0 && !outdated(regions, entry)
            })
            .count()
        };
        let size = self.table(shape).len();
        let larger = u64::from(live(regions) * 4 >= size && size < 1 << LARGEST);
        let next = (shape ^ 1) + 2 * larger;
        if self.table(next).len() >= LARGE {
            self.tables[(next & 1) as usize].use_huge_pages();
        }
        for place in self.table(next) {
            place.store(0, Relaxed);
        }
        self.used.store(0, Relaxed);
        let old = self.table(shape);
        self.shape.store(next, Release);
        for place in old {
            let entry = place.load(Relaxed);
            if entry == 0 || outdated(regions, entry) {
                continue;
            }
            let id = Id((entry & ID) as u32 - 1);
            let region = &regions[id.0 as usize];
            // Ways from other pages than the first are left out; they come back when they are used.
            let hash = hash(region.pd(), region.hull().start);
            if hash & HASH == entry & HASH {
                self.put(regions, hash, id, (entry >> 32) as u32);
            }
        }
    }
}

/// Whether an entry leads to a region that has ended.
fn outdated(regions: &[Region], entry: u64) -> bool {
    let seen = regions[(entry & ID) as usize - 1].word.load();
    seen.generation() != (entry >> 32) as u32 || !seen.is_registered() || seen.is_stale()
}
