// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index of the pool's regions by address: it finds those that overlap a range.
//!
//! Regions may overlap and nest in any way. A region of class k has at least 2^k pages and fewer
//! than 2^(k+1). It is on one list: that of its class and of the granule of 2^(k+1) pages in which
//! it starts. A region that overlaps a range therefore starts in one of the range's granules or in
//! the granule before them, however many regions there are. Adding and removing a region take a few
//! stores. The index allocates no memory. All of it runs under the pool's lock.

use crate::pool::region::{AtomicLink, Id, Link, PoolRegion};
use crate::sys::pages::{PageRange, page_size};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Classes of sizes: up to 2^40 pages.
const CLASSES: usize = 40;

/// The number of lists. Classes and granules share them by hashing.
const LISTS: usize = if cfg!(test) { 16 } else { 1 << 17 };

/// The index. Zeroed memory is an empty index.
#[repr(C)]
pub struct Index {
    /// The number of regions of each class, and a bit for each class that has any.
    classes: [AtomicU32; CLASSES],
    some: AtomicU64,
    /// The first region of each list.
    lists: [AtomicLink; LISTS],
}

/// The class of a range's size, and the logarithm of its granules' size in bytes.
fn class(range: PageRange) -> (usize, u32) {
    let pages = range.pages().max(1);
    let class = (pages.ilog2() as usize).min(CLASSES - 1);
    (class, granule(class))
}

fn granule(class: usize) -> u32 {
    page_size().ilog2() + class as u32 + 1
}

fn list(class: usize, granule: u64) -> usize {
    let mixed = (granule << 6 | class as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize % LISTS
}

impl Index {
    /// Adds a region.
    pub fn add(&self, regions: &[PoolRegion], new: Id) {
        let region = &regions[new.0 as usize];
        let (class, shift) = class(region.hull());
        let head = &self.lists[list(class, region.hull().start >> shift)];
        let first = head.load();
        if let Some(first) = first.id() {
            regions[first.0 as usize].preceding.store(Link::to(new));
        }
        region.following.store(first);
        region.preceding.store(Link::NONE);
        head.store(Link::to(new));
        self.count(class, 1);
    }

    /// Adds to a class's count. The caller holds the lock, so this needs no locked instruction.
    fn count(&self, class: usize, amount: u32) {
        let count = self.classes[class].load(Relaxed).wrapping_add(amount);
        self.classes[class].store(count, Relaxed);
        let others = self.some.load(Relaxed) & !(1 << class);
        self.some
            .store(others | u64::from(count > 0) << class, Relaxed);
    }

    /// Removes a region.
    pub fn remove(&self, regions: &[PoolRegion], old: Id) {
        let region = &regions[old.0 as usize];
        let (class, shift) = class(region.hull());
        let following = region.following.load();
        let preceding = region.preceding.load();
        match preceding.id() {
            Some(preceding) => &regions[preceding.0 as usize].following,
            None => &self.lists[list(class, region.hull().start >> shift)],
        }
        .store(following);
        if let Some(following) = following.id() {
            regions[following.0 as usize].preceding.store(preceding);
        }
        self.count(class, u32::MAX);
    }

    /// Calls `each` for the regions that overlap a range, until `each` returns false. `each` must
    /// not change the index. Returns whether `each` always returned true.
    pub fn overlapping(
        &self,
        regions: &[PoolRegion],
        range: PageRange,
        mut each: impl FnMut(Id, &PoolRegion) -> bool,
    ) -> bool {
        self.overlapping_of(u64::MAX, regions, range, &mut each)
    }

    /// The classes of regions that have fewer bytes than `size`, a power of two, as a set of bits.
    pub fn smaller_than(size: u64) -> u64 {
        (1 << (size / page_size()).ilog2()) - 1
    }

    /// As [`Index::overlapping`], for the regions of some classes. There is one copy of this code,
    /// not one for each caller.
    pub fn overlapping_of(
        &self,
        classes: u64,
        regions: &[PoolRegion],
        range: PageRange,
        each: &mut dyn FnMut(Id, &PoolRegion) -> bool,
    ) -> bool {
        let mut some = self.some.load(Relaxed) & classes;
        while some != 0 && range.start < range.end {
            let class = some.trailing_zeros() as usize;
            some &= some - 1;
            let shift = granule(class);
            let first = (range.start >> shift).saturating_sub(1);
            let last = (range.end - 1) >> shift;
            // A range with at least as many granules as there are lists walks each list once.
            let granules = (last - first).min(LISTS as u64 - 1);
            let everywhere = granules == LISTS as u64 - 1;
            for granule in first..=first + granules {
                let start = if everywhere {
                    (granule - first) as usize
                } else {
                    list(class, granule)
                };
                if !self.walk(regions, start, |id, region| {
                    let (its_class, its_shift) = self::class(region.hull());
                    let in_place = everywhere || region.hull().start >> its_shift == granule;
                    if its_class == class && in_place && region.hull().overlaps(range) {
                        each(id, region)
                    } else {
                        true
                    }
                }) {
                    return false;
                }
            }
        }
        true
    }

    fn walk(
        &self,
        regions: &[PoolRegion],
        list: usize,
        mut each: impl FnMut(Id, &PoolRegion) -> bool,
    ) -> bool {
        let mut next = self.lists[list].load().id();
        while let Some(here) = next {
            let region = &regions[here.0 as usize];
            next = region.following.load().id();
            if !each(here, region) {
                return false;
            }
        }
        true
    }
}
