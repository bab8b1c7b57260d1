// SPDX-License-Identifier: MIT OR Apache-2.0
//! The look-up, without a lock, of a region by a registration's protection domain and first page.
//!
//! The table is an open hash table with four bytes per entry: the number of a slot and some bits of
//! the hash. It is small enough to stay in the processor's cache with many regions. Entries are
//! hints. A reader that finds an entry checks the slot itself, and takes the region only if it
//! serves. So an entry may outlive its region. But a hit that finds such an entry asks the fence in
//! vain; therefore the entry is removed when its region ends. A late reader that meets a table that
//! is being filled anew misses at worst, and then looks under the lock. All changes are made under
//! the cache's lock.

use crate::mapping::{self, HUGE_PAGE, Large, Paged};
use crate::region::key::LookupKey;
use crate::region::link::{Id, Link};
use crate::region::slot::CachedRegion;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use rdmamr_sys::process::PAGE_SIZE;

/// The binary logarithm of the largest table's number of entries; below it, of the smallest
/// table's.
const LARGEST: u32 = tiny_or!(6, 20);
const SMALLEST: u32 = tiny_or!(3, 10);

/// The logarithm of the largest table in small pages. Larger tables lie elsewhere, so that no small
/// page occupies the place of their huge pages.
const SMALL: u32 = tiny_or!(5, 17);

/// Filling of the other table begins once only this fraction of the table's places is free below
/// its [`fill`].
const EARLY: u64 = tiny_or!(4, 16);

/// Filling of a large table pauses for this many additions, so that the cleaner can touch its huge
/// pages.
const PAUSE: u64 = tiny_or!(2, 2048);

/// The number of entries in a page.
const PAGE: usize = 1024;

/// The number of places that a search looks at. An entry lies in one of them.
const REACH: u64 = 64;

/// An entry: 12 bits of hash, 20 bits of link to the slot. 0 is no entry.
const ID_BITS: u32 = 20;
const ID: u32 = (1 << ID_BITS) - 1;
const HASH: u32 = !ID;

/// Stands in place of a removed entry. A search continues past it.
const REMOVED: u32 = HASH;

/// Once the kernel has refused memory for a larger table, none is tried for this many additions.
const REFUSED: u64 = 1024;

/// Two tables; one is in use. Zeroed memory is the smallest table, empty. Each array is mapped from
/// its start, as far as its table has needed it.
#[repr(C)]
pub struct Table {
    /// Bit 0: the table that is in use. The other bits: the logarithm of its size relative to the
    /// smallest.
    shape: AtomicU64,
    /// The number of entries that are not 0.
    used: AtomicU64,
    /// The shape of the table that is being filled, plus 1; 0 if none is. Then the progress of that
    /// filling, and the number of entries that are not 0 in that table.
    next: AtomicU64,
    steps: AtomicU64,
    next_used: AtomicU64,
    /// The number of mapped bytes of each of the arrays below, in their order.
    mapped: [AtomicU64; 4],
    /// The number of additions for which no new table is begun.
    refused: AtomicU64,
    small: Paged<[[AtomicU32; 1 << SMALL]; 2]>,
    large: [Large<[AtomicU32; 1 << LARGEST]>; 2],
}

/// The most entries that a table of this size holds. A small table fits into the first-level cache
/// anyway, and is sparse: most searches end at the first entry. A large table is dense, to stay in
/// the second-level cache.
fn fill(size: u64) -> u64 {
    if size > 1 << 14 {
        size / 5 * 4
    } else {
        size / 2
    }
}

#[inline(always)]
fn hash(pd: u64, start: u64) -> u64 {
    // The two arguments differ in different bits: domains in the low ones, pages in those above 12.
    let mixed = (start ^ pd.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// The place where the search begins, before it is reduced to the table's size.
#[inline(always)]
fn first_place(hash: u64) -> u64 {
    hash >> 32
}

#[inline(always)]
fn entry(hash: u64, id: Id) -> u32 {
    hash as u32 & HASH | Link::to(id).bits()
}

impl Table {
    /// The number of bytes, from its start on, that an empty table needs mapped.
    pub const FIRST: usize = core::mem::offset_of!(Table, small) + Table::SMALLEST;
    const SMALLEST: usize = (4usize << SMALLEST).next_multiple_of(PAGE_SIZE);

    /// Records that the smallest table is mapped.
    pub fn has_first(&self) {
        self.mapped[0].store(Table::SMALLEST as u64, Relaxed);
    }

    /// Maps the memory of a table. False if it cannot be mapped.
    fn map(&self, shape: u64) -> bool {
        let log = (SMALLEST + (shape >> 1) as u32).min(LARGEST);
        let (which, is_large) = ((shape & 1) as usize, log > SMALL);
        let mapped = &self.mapped[which + 2 * usize::from(is_large)];
        let (from, to) = (mapped.load(Relaxed), 4u64 << log);
        let unit = if is_large { HUGE_PAGE } else { PAGE_SIZE };
        let to = to.next_multiple_of(unit as u64);
        let map = || {
            if is_large {
                self.large[which].map(from as usize, to as usize)
            } else {
                mapping::map(&self.small[which], from as usize, to as usize, false)
            }
        };
        let there = from >= to || map();
        if there && from < to {
            mapped.store(to, Relaxed);
        }
        there
    }

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

    /// The table that is in use, for [`Table::find`].
    pub fn shape(&self) -> u32 {
        self.shape.load(Relaxed) as u32
    }

    /// Calls `take` with the regions that the matching entries lead to, until `take` takes one.
    /// `shape` is this table's shape, or an earlier one.
    #[inline(always)]
    pub fn find<T>(
        &self,
        shape: u32,
        lookup_key: &LookupKey,
        mut take: impl FnMut(Id) -> Option<T>,
    ) -> Option<T> {
        let table = self.table(shape.into());
        let hash = hash(lookup_key.domain.pd, lookup_key.page_range.start);
        let mask = table.len() as u64 - 1;
        for step in 0..REACH {
            let place = first_place(hash).wrapping_add(step) & mask;
            let found = table[place as usize].load(Acquire);
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

    /// Adds an entry that leads to a region from its own first page, or from another page within
    /// it.
    pub fn add(&self, regions: &[CachedRegion], pd: u64, start: u64, id: Id) {
        let size = self.table(self.shape.load(Relaxed)).len() as u64;
        let used = self.used.load(Relaxed);
        if self.filling().is_none() && used >= fill(size) - size / EARLY {
            self.begin_to_fill(regions);
        }
        self.go_on(regions);
        if used >= fill(size) {
            self.fill_to_the_end(regions);
        }
        let hash = hash(pd, start);
        if !put(self.in_use(), &self.used, regions, hash, id) {
            self.begin_to_fill(regions);
            self.fill_to_the_end(regions);
            if !put(self.in_use(), &self.used, regions, hash, id) {
                self.put_over(hash, id);
            }
        }
        if let Some((_, next)) = self.filling() {
            if self.steps.load(Relaxed) > PAUSE + next.len() as u64 {
                put(next, &self.next_used, regions, hash, id);
            }
        }
    }

    /// Removes the entry that leads to a region from its own first page.
    pub fn remove(&self, pd: u64, start: u64, id: Id) {
        let hash = hash(pd, start);
        let (found, first) = (entry(hash, id), first_place(hash));
        let filling = self.filling().map(|(_, next)| next);
        for table in [Some(self.in_use()), filling].into_iter().flatten() {
            let mask = table.len() as u64 - 1;
            for step in 0..REACH {
                let place = &table[(first.wrapping_add(step) & mask) as usize];
                match place.load(Relaxed) {
                    0 => break,
                    old if old == found => place.store(REMOVED, Release),
                    _ => {}
                }
            }
        }
    }

    fn in_use(&self) -> &[AtomicU32] {
        self.table(self.shape.load(Relaxed))
    }

    /// Adds an entry if so many regions begin at one page that every place within reach is taken.
    /// The entry overwrites another region's. That region is then found under the lock, or not at
    /// all.
    fn put_over(&self, hash: u64, id: Id) {
        let table = self.in_use();
        let place =
            first_place(hash).wrapping_add(u64::from(id.0) % REACH) & (table.len() as u64 - 1);
        table[place as usize].store(entry(hash, id), Release);
    }

    /// The table that is being filled, and its shape.
    fn filling(&self) -> Option<(u64, &[AtomicU32])> {
        let next = self.next.load(Relaxed).checked_sub(1)?;
        Some((next, self.table(next)))
    }

    /// Begins to fill the other table, in a suitable size, with the live regions. Each later
    /// addition does a part of the filling, so that no registration waits for all of it.
    fn begin_to_fill(&self, regions: &[CachedRegion]) {
        const SAMPLE: usize = 4096;
        if self.filling().is_some() {
            return;
        }
        if let Some(left) = self.refused.load(Relaxed).checked_sub(1) {
            self.refused.store(left, Relaxed);
            return;
        }
        let shape = self.shape.load(Relaxed);
        let old = self.table(shape);
        // If few entries lead to live regions, the table was full of ended ones, and it keeps its
        // size. The hash puts entries in random order, so the first ones are a fair sample.
        let sample = &old[..old.len().min(SAMPLE)];
        let live = sample
            .iter()
            .filter(|entry| of_live(regions, entry.load(Relaxed)).is_some());
        let full = live.count() as u64
            >= fill(old.len() as u64) / 2 * sample.len() as u64 / old.len() as u64;
        let larger = u64::from(full && old.len() < 1 << LARGEST);
        // If the larger table cannot be mapped, a table of the same size suffices as long as the
        // number of live regions does not grow.
        let other = shape ^ 1;
        let mut sizes = [other + 2 * larger, other].into_iter();
        let Some(next) = sizes.find(|&shape| self.map(shape)) else {
            self.refused.store(REFUSED, Relaxed);
            return;
        };
        self.steps.store(0, Relaxed);
        self.next_used.store(0, Relaxed);
        self.next.store(next + 1, Relaxed);
    }

    /// Does a part of the filling. It first pauses while the cleaner touches a large table, then
    /// clears the table, then reads the regions, and finally puts the table to use.
    ///
    /// The regions are read in the order of their slots: in the order of the old table each read
    /// would be a cache miss. A region that is not kept yet, or that is being invalidated, gets an
    /// entry that is of no use. A region that is kept while the slots are read gets its entry in
    /// both tables.
    fn go_on(&self, regions: &[CachedRegion]) {
        const CLEARED: u64 = tiny_or!(16, 256);
        const READ: u64 = tiny_or!(8, 64);
        let Some((shape, next)) = self.filling() else {
            return;
        };
        let steps = self.steps.load(Relaxed);
        let size = next.len() as u64;
        if steps < PAUSE {
            let pause = if size > 1 << SMALL { 1 } else { PAUSE };
            self.steps.store(steps + pause, Relaxed);
        } else if steps < PAUSE + size {
            let from = (steps - PAUSE) as usize;
            let part = next.iter().skip(from).take(CLEARED as usize);
            part.for_each(|place| place.store(0, Relaxed));
            let to = (steps + CLEARED).min(PAUSE + size);
            self.steps.store(to, Relaxed);
        } else {
            let from = steps - PAUSE - size;
            let part = regions.iter().enumerate().skip(from as usize);
            for (number, region) in part.take(READ as usize) {
                if is_live(region) {
                    let hash = hash(region.pd(), region.page_range().start);
                    put(next, &self.next_used, regions, hash, Id(number as u32));
                }
            }
            self.steps.store(steps + READ, Relaxed);
            if from + READ >= regions.len() as u64 {
                self.used.store(self.next_used.load(Relaxed), Relaxed);
                self.shape.store(shape, Release);
                self.next.store(0, Relaxed);
            }
        }
    }

    fn fill_to_the_end(&self, regions: &[CachedRegion]) {
        while self.filling().is_some() {
            self.go_on(regions);
        }
    }

    /// Calls `touch` for each page of a large table that is to be filled.
    pub fn each_page_to_fill(&self, touch: impl FnMut(&AtomicU32)) {
        if let Some((_, next)) = self.filling() {
            if next.len() > 1 << SMALL {
                next.iter().step_by(PAGE).for_each(touch);
            }
        }
    }

    /// Whether a large table that is to be filled has not been touched yet.
    pub fn is_to_be_touched(&self) -> bool {
        let large = |(_, next): (u64, &[AtomicU32])| next.len() > 1 << SMALL;
        self.steps.load(Relaxed) == 1 && self.filling().is_some_and(large)
    }
}

/// Puts an entry into a table that has `used` entries other than 0. False if every place within
/// reach is taken.
fn put(table: &[AtomicU32], used: &AtomicU64, regions: &[CachedRegion], hash: u64, id: Id) -> bool {
    let mask = table.len() as u64 - 1;
    let new = entry(hash, id);
    for step in 0..REACH {
        let place = &table[(first_place(hash).wrapping_add(step) & mask) as usize];
        let old = place.load(Relaxed);
        if old == new {
            return true;
        }
        if old == 0 {
            used.store(used.load(Relaxed) + 1, Relaxed);
        } else if of_live(regions, old).is_some() {
            continue;
        }
        place.store(new, Release);
        return true;
    }
    false
}

/// Whether an entry for the slot may be of use.
fn is_live(region: &CachedRegion) -> bool {
    let seen = region.state.load();
    seen.is_registered() && !seen.is_stale()
}

/// The region that an entry leads to, and its hash. `None` if the region has ended, or if the entry
/// is for another of its pages than the first. Such entries may be overwritten; an entry for
/// another page is added again when it is next used.
fn of_live(regions: &[CachedRegion], entry: u32) -> Option<(Id, u64)> {
    let id = Link::from_bits(entry & ID).id()?;
    let region = &regions[id.0 as usize];
    let hash = hash(region.pd(), region.page_range().start);
    let own = (entry ^ hash as u32) & HASH == 0;
    (own && is_live(region)).then_some((id, hash))
}
