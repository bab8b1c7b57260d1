// SPDX-License-Identifier: MIT OR Apache-2.0
//! The look-up, without a lock, of a region by a registration's protection domain and first page.
//!
//! The table is an open hash table with four bytes per entry: the number of a slot and some bits of
//! the hash. It is small enough to stay in the processor's cache with many regions. Entries are
//! hints. A reader that finds an entry checks the slot itself, and takes the region only if it
//! serves. So an entry may outlive its region. But a hit that finds such an entry asks the fence in
//! vain; therefore the entry is removed when its region ends. All changes are made under the
//! cache's lock.
//!
//! If the table is full, another table is filled with the live regions, at once, and put to use.
//! The table before it stays as it is until a table is filled again. A reader that still searches
//! it then misses at worst, and its registration makes a second region of the same pages.

use crate::mapping::{self, Paged};
use crate::region::slot::{Id, Link, LookupKey, Slot};
use core::sync::atomic::{AtomicU32, Ordering::*};
use rdmamr_sys::pages::LARGEST_PAGE;

/// The binary logarithm of the number of entries of the largest table, and of the smallest one.
const LARGEST: u32 = tiny_or!(6, 20);
const SMALLEST: u32 = tiny_or!(3, (LARGEST_PAGE / 4).ilog2());

/// The number of places that a search looks at. An entry lies in one of them.
const REACH: usize = 64;

/// An entry: 12 bits of hash, 20 bits of link to the slot. 0 is no entry.
const ID_BITS: u32 = 20;
const ID: u32 = (1 << ID_BITS) - 1;
const HASH: u32 = !ID;

/// Stands in place of a removed entry. A search continues past it.
const REMOVED: u32 = HASH;

/// The tables, two of each size; one of all is in use. Its shape tells which: the array is bit 0,
/// and the other bits are the logarithm of the size relative to the smallest. The table of 2^n
/// entries begins at the entry 2^n of its array. Zeroed memory is the smallest table, empty.
#[repr(C)]
pub struct Table {
    /// The number of entries of the table in use that are not 0.
    used: AtomicU32,
    /// A bit for each shape whose table is mapped. The first table always is.
    mapped: AtomicU32,
    arrays: Paged<[[AtomicU32; 2 << LARGEST]; 2]>,
}

/// The most entries that a table of this size holds. A small table fits into the first-level cache
/// anyway, and is sparse: most searches end at the first entry. A large table is dense, to stay in
/// the second-level cache.
fn fill(size: usize) -> usize {
    if size > 1 << 14 {
        size / 4 * 3
    } else {
        size / 8 * 3
    }
}

#[inline(always)]
fn hash(pd: u64, start: u64) -> u64 {
    // The two arguments differ in different bits: domains in the low ones, pages in those above 12.
    let mixed = (start ^ pd.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

#[inline(always)]
fn entry(hash: u64, id: Id) -> u32 {
    hash as u32 & HASH | Link::to(id).bits()
}

/// The places of a table in which the entries of this hash lie.
#[inline(always)]
fn places(table: &[AtomicU32], hash: u64) -> impl Iterator<Item = &AtomicU32> {
    let (first, mask) = ((hash >> 32) as usize, table.len() - 1);
    (first..first + REACH).map(move |place| &table[place & mask])
}

impl Table {
    /// The number of bytes, from its start on, that an empty table needs mapped.
    pub const FIRST: usize = core::mem::offset_of!(Table, arrays) + (8 << SMALLEST);

    #[inline(always)]
    fn table(&self, shape: u32) -> &[AtomicU32] {
        let size = 1 << (SMALLEST + (shape >> 1)).min(LARGEST);
        &self.arrays.0[shape as usize & 1][size..2 * size]
    }

    /// Calls `take` with the regions that the matching entries lead to, until `take` takes one.
    /// `shape` is that of the table in use, or an earlier one.
    #[inline(always)]
    pub fn find<T>(
        &self,
        shape: u32,
        lookup_key: &LookupKey,
        mut take: impl FnMut(Id) -> Option<T>,
    ) -> Option<T> {
        let hash = hash(lookup_key.domain.pd, lookup_key.page_range.start);
        for place in places(self.table(shape), hash) {
            let found = place.load(Acquire);
            if found == 0 {
                return None;
            }
            if (found ^ hash as u32) & HASH == 0 {
                if let Some(taken) = Link::from_bits(found & ID).id().and_then(&mut take) {
                    return Some(taken);
                }
            }
        }
        None
    }

    /// Adds an entry that leads to a region. Puts another table to use if the table is full. A table
    /// that is half full counts as full if the entry finds no place.
    pub fn add(&self, shape: &AtomicU32, regions: &[Slot], pd: u64, start: u64, id: Id) {
        let (hash, table) = (hash(pd, start), self.table(shape.load(Relaxed)));
        let is_in = self.put(table, hash, id);
        if self.used.load(Relaxed) as usize >= fill(table.len()) >> u32::from(!is_in) {
            self.fill_another(shape, regions);
        }
        if !is_in {
            // If many regions begin at one page, a further one may find no place, and no hit finds it.
            self.put(self.table(shape.load(Relaxed)), hash, id);
        }
    }

    /// Removes the entry that leads to a region.
    pub fn remove(&self, shape: u32, pd: u64, start: u64, id: Id) {
        let hash = hash(pd, start);
        for place in places(self.table(shape), hash) {
            match place.load(Relaxed) {
                0 => break,
                found if found == entry(hash, id) => place.store(REMOVED, Release),
                _ => {}
            }
        }
    }

    /// Puts an entry into a table. False if every place within reach is taken.
    fn put(&self, table: &[AtomicU32], hash: u64, id: Id) -> bool {
        let new = entry(hash, id);
        let is_free = |place: &&AtomicU32| [0, new, REMOVED].contains(&place.load(Relaxed));
        let Some(place) = places(table, hash).find(is_free) else {
            return false;
        };
        if place.load(Relaxed) == 0 {
            self.used.store(self.used.load(Relaxed) + 1, Relaxed);
        }
        place.store(new, Release);
        true
    }

    /// Fills another table with the live regions, and puts it to use. It is larger than the present
    /// one, unless that is full of entries of ended regions. A region that is not kept yet, or is
    /// being invalidated, gets an entry that is of no use.
    #[cold]
    fn fill_another(&self, shape: &AtomicU32, regions: &[Slot]) {
        let live = || {
            let regions = regions.iter().enumerate();
            regions.filter(|(_, region)| {
                let seen = region.state.load();
                seen.is_live() && !seen.is_stale()
            })
        };
        let before = shape.load(Relaxed);
        let size = self.table(before).len();
        let is_full = size < 1 << LARGEST && live().count() >= fill(size) / 2;
        let next = if is_full { before + 2 } else { before ^ 1 };
        if !self.map(next) {
            return;
        }
        let table = self.table(next);
        table.iter().for_each(|place| place.store(0, Relaxed));
        self.used.store(0, Relaxed);
        // In the order of the slots: in that of the entries each read would be a cache miss.
        for (number, region) in live() {
            let hash = hash(region.pd(), region.page_range().start);
            self.put(table, hash, Id(number as u32));
        }
        shape.store(next, Release);
    }

    /// Maps the memory of a table. False if it cannot be mapped.
    fn map(&self, shape: u32) -> bool {
        let bytes = 4 * self.table(shape).len();
        let array = &self.arrays.0[shape as usize & 1];
        let mapped = self.mapped.load(Relaxed) | 1;
        let there = mapped >> shape & 1 != 0 || mapping::map(array, bytes, 2 * bytes);
        self.mapped
            .store(mapped | u32::from(there) << shape, Relaxed);
        there
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use crate::region::slot::Domain;
    use proptest::prelude::*;
    use rdmamr_sys::pages::{PageRange, page_size};
    use std::collections::BTreeSet;

    const SLOTS: usize = 48;

    fn key(slot: u32, pd: usize) -> LookupKey {
        let start = 0x7000_0000_0000 + u64::from(slot) / 3 * page_size();
        LookupKey {
            domain: Domain::new(pd, 0, 0),
            page_range: PageRange::new(start, start + page_size()),
            access: 0,
            spare: 0,
            exclusive: false,
            allocation: 0,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Each step makes the region of a slot, with one of two domains, or ends it. A search
        /// finds each live region, in the table before the present one too, and no ended one.
        #[test]
        fn the_table_is_the_naive_map(
            steps in prop::collection::vec((0..SLOTS as u32, 0..2usize), 1..400),
        ) {
            // SAFETY: all zeros is an empty table.
            let table: Table = unsafe { core::mem::zeroed() };
            // SAFETY: all zeros is a slot that was never used.
            let regions: [Slot; SLOTS] = unsafe { core::mem::zeroed() };
            let (shape, mut live) = (AtomicU32::new(0), BTreeSet::new());
            for (slot, pd) in steps {
                let (region, id, earlier) = (&regions[slot as usize], Id(slot), live.clone());
                let before = shape.load(Relaxed);
                if region.state.load().is_live() {
                    let (pd, start) = (region.pd(), region.page_range().start);
                    region.state.invalidate();
                    live.remove(&(id, pd as usize));
                    table.remove(before, pd, start, id);
                    region.state.free();
                } else {
                    let key = key(slot, pd);
                    region.set(key.page_range, key.domain, 0);
                    region.state.make();
                    region.state.keep();
                    live.insert((id, pd));
                    table.add(&shape, &regions, key.domain.pd, key.page_range.start, id);
                }
                let found = |shape, (id, pd): (Id, usize)| {
                    let mut found = BTreeSet::new();
                    table.find(shape, &key(id.0, pd), |id| {
                        found.insert(id);
                        None::<()>
                    });
                    found
                };
                let present = shape.load(Relaxed);
                for &known in &live {
                    let found = found(present, known);
                    prop_assert!(found.contains(&known.0));
                    prop_assert!(found.iter().all(|&found| live.iter().any(|it| it.0 == found)));
                }
                for &known in earlier.intersection(&live) {
                    prop_assert!(found(before, known).contains(&known.0), "the table before");
                }
            }
        }
    }
}
