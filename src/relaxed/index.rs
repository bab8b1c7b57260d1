// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regions of the pool by address: which of them overlap a range.
//!
//! Regions may overlap and nest at will. A region of class k has at least 2^k pages and fewer than 2^(k+1);
//! it is on one list, that of its class and of the granule of 2^(k+1) pages in which it starts. So those
//! that overlap a range start in its granules or in the one before, whatever their number, and adding and
//! removing are a few stores. No memory is allocated. Everything happens under the pool's lock.

use super::hull::{Range, page_size};
use super::region::{Id, Region};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Classes of sizes: up to 2^40 pages.
const CLASSES: usize = 40;

/// Lists, which classes and granules share by hashing.
const LISTS: usize = if cfg!(test) { 16 } else { 1 << 17 };

/// The index. All zeros is an empty one.
#[repr(C)]
pub struct Index {
    /// How many regions there are of each class, and a bit for each class that has some.
    classes: [AtomicU32; CLASSES],
    some: AtomicU64,
    /// The first region of each list, and one more.
    lists: [AtomicU32; LISTS],
}

/// The class of a range's size, and the power of two that is the size of its granules in bytes.
fn class(range: Range) -> (usize, u32) {
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

fn id(link: u32) -> Option<Id> {
    link.checked_sub(1).map(Id)
}

impl Index {
    /// Adds a region.
    pub fn add(&self, regions: &[Region], new: Id) {
        let region = &regions[new.0 as usize];
        let (class, shift) = class(region.hull());
        let head = &self.lists[list(class, region.hull().start >> shift)];
        let first = head.load(Relaxed);
        if let Some(first) = id(first) {
            regions[first.0 as usize]
                .preceding
                .store(new.0 + 1, Relaxed);
        }
        region.following.store(first, Relaxed);
        region.preceding.store(0, Relaxed);
        head.store(new.0 + 1, Relaxed);
        self.count(class, 1);
    }

    /// Adds to a class's count. Under the lock, so that it takes no locked instruction.
    fn count(&self, class: usize, amount: u32) {
        let count = self.classes[class].load(Relaxed).wrapping_add(amount);
        self.classes[class].store(count, Relaxed);
        let others = self.some.load(Relaxed) & !(1 << class);
        self.some
            .store(others | u64::from(count > 0) << class, Relaxed);
    }

    /// Removes a region.
    pub fn remove(&self, regions: &[Region], old: Id) {
        let region = &regions[old.0 as usize];
        let (class, shift) = class(region.hull());
        let following = region.following.load(Relaxed);
        let preceding = region.preceding.load(Relaxed);
        match id(preceding) {
            Some(preceding) => &regions[preceding.0 as usize].following,
            None => &self.lists[list(class, region.hull().start >> shift)],
        }
        .store(following, Relaxed);
        if let Some(following) = id(following) {
            regions[following.0 as usize]
                .preceding
                .store(preceding, Relaxed);
        }
        self.count(class, u32::MAX);
    }

    /// Calls `each` for the regions that overlap a range, until it returns false. `each` must not change
    /// the index.
    pub fn overlapping(
        &self,
        regions: &[Region],
        range: Range,
        mut each: impl FnMut(Id, &Region) -> bool,
    ) {
        let mut some = self.some.load(Relaxed);
        while some != 0 && range.start < range.end {
            let class = some.trailing_zeros() as usize;
            some &= some - 1;
            let shift = granule(class);
            let first = (range.start >> shift).saturating_sub(1);
            let last = (range.end - 1) >> shift;
            // A range of more granules than there are lists meets them all.
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
                    return;
                }
            }
        }
    }

    fn walk(
        &self,
        regions: &[Region],
        list: usize,
        mut each: impl FnMut(Id, &Region) -> bool,
    ) -> bool {
        let mut next = id(self.lists[list].load(Relaxed));
        while let Some(here) = next {
            let region = &regions[here.0 as usize];
            next = id(region.following.load(Relaxed));
            if !each(here, region) {
                return false;
            }
        }
        true
    }
}
