// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index of the cache's regions by address: it finds those that overlap a range.
//!
//! Regions may overlap and nest in any way. A region of class k has at least 2^k pages and fewer
//! than 2^(k+1). It is on one list: that of its class and of the granule of 2^(k+1) pages in which
//! it starts. A region that overlaps a range therefore starts in one of the range's granules or in
//! the granule before them, however many regions there are. Adding and removing a region take a few
//! stores. The index allocates no memory but for its lists. All of it runs under the cache's lock.

use crate::mapping::{self, Paged};
use crate::region::link::{AtomicLink, Id, Link};
use crate::region::slot::CachedRegion;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use rdmamr_sys::pages::{PageRange, page_size};
use rdmamr_sys::process::PAGE_SIZE;

/// Classes of sizes: up to 2^40 pages.
const CLASSES: usize = 40;

/// The most lists, and the number of lists of an empty index. Classes and granules share the lists
/// by hashing.
const LISTS: usize = tiny_or!(16, 1 << 17);
const FIRST: usize = tiny_or!(4, 1 << 10);

/// Once the kernel has refused memory, the index adds no list for this many additions.
const REFUSED: u32 = 1024;

/// The index. Zeroed memory is an empty index.
///
/// Beyond the first lists there are as many lists as regions: the index grows by one list at a time
/// (linear hashing). With 2^n + k lists, n + 1 bits of the hash select one of the first k or the
/// last k lists, and n bits select one of the others. So a new list takes its regions from one
/// other list.
#[repr(C)]
pub struct Index {
    /// The number of lists besides the first ones, and the number of regions on all lists.
    added: AtomicU32,
    regions: AtomicU32,
    /// The number of mapped bytes of `lists`, if more than the first ones are mapped, and the
    /// number of additions for which no more are asked for.
    mapped: AtomicU32,
    refused: AtomicU32,
    /// The number of regions of each class, and a bit for each class that has any.
    classes: [AtomicU32; CLASSES],
    some: AtomicU64,
    /// The first region of each list.
    lists: Paged<[AtomicLink; LISTS]>,
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

fn hash(class: usize, granule: u64) -> usize {
    let mixed = (granule << 6 | class as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize
}

/// The list that a hash selects among `lists` lists.
fn list_of(hash: usize, lists: usize) -> usize {
    let all = 1 << lists.ilog2();
    let list = hash & (2 * all - 1);
    if list < lists { list } else { list & (all - 1) }
}

/// Links a region as the first of a list.
fn link(regions: &[CachedRegion], new: Id, head: &AtomicLink) {
    let region = &regions[new.0 as usize];
    let first = head.load();
    if let Some(first) = first.id() {
        regions[first.0 as usize].preceding.store(Link::to(new));
    }
    region.following.store(first);
    region.preceding.store(Link::NONE);
    head.store(Link::to(new));
}

fn unlink(regions: &[CachedRegion], region: &CachedRegion, head: &AtomicLink) {
    let following = region.following.load();
    let preceding = region.preceding.load();
    match preceding.id() {
        Some(preceding) => &regions[preceding.0 as usize].following,
        None => head,
    }
    .store(following);
    if let Some(following) = following.id() {
        regions[following.0 as usize].preceding.store(preceding);
    }
}

impl Index {
    /// The number of bytes, from its start on, that an empty index needs mapped.
    pub const FIRST: usize = core::mem::offset_of!(Index, lists) + Index::FIRST_LISTS;
    const FIRST_LISTS: usize = (FIRST * size_of::<AtomicLink>()).next_multiple_of(PAGE_SIZE);

    /// Maps the memory of this many lists. False if it cannot be mapped.
    fn map(&self, lists: usize) -> bool {
        let from = (self.mapped.load(Relaxed) as usize).max(Index::FIRST_LISTS);
        if lists * size_of::<AtomicLink>() <= from {
            return true;
        }
        const MOST: usize = 64 << 10;
        let to = from + from.min(MOST);
        let there = mapping::map(&raw const *self.lists, from, to, false);
        if there {
            self.mapped.store(to as u32, Relaxed);
        }
        there
    }

    fn lists(&self) -> usize {
        FIRST + self.added.load(Relaxed) as usize
    }

    /// The head of the list of a class's granule.
    fn head(&self, class: usize, granule: u64) -> &AtomicLink {
        &self.lists[list_of(hash(class, granule), self.lists())]
    }

    /// If there are more regions than lists, adds a list, and moves to it the regions whose hash
    /// selects it from now on.
    fn add_a_list(&self, regions: &[CachedRegion]) {
        let lists = self.lists();
        if lists == LISTS || (self.regions.load(Relaxed) as usize) < lists {
            return;
        }
        if let Some(left) = self.refused.load(Relaxed).checked_sub(1) {
            self.refused.store(left, Relaxed);
            return;
        }
        if !self.map(lists + 1) {
            // The existing lists grow longer instead.
            self.refused.store(REFUSED, Relaxed);
            return;
        }
        let mut next = self.lists[list_of(lists, lists)].load().id();
        self.added.store(self.added.load(Relaxed) + 1, Relaxed);
        while let Some(here) = next {
            let region = &regions[here.0 as usize];
            next = region.following.load().id();
            let (class, shift) = class(region.page_range());
            let hash = hash(class, region.page_range().start >> shift);
            if list_of(hash, lists + 1) == lists {
                unlink(regions, region, &self.lists[list_of(hash, lists)]);
                link(regions, here, &self.lists[lists]);
            }
        }
    }

    pub fn add(&self, regions: &[CachedRegion], new: Id) {
        self.add_a_list(regions);
        let region = &regions[new.0 as usize];
        let (class, shift) = class(region.page_range());
        link(
            regions,
            new,
            self.head(class, region.page_range().start >> shift),
        );
        self.count(class, 1);
    }

    /// Adds to a class's count. The caller holds the lock, so this needs no locked instruction.
    fn count(&self, class: usize, amount: u32) {
        let regions = self.regions.load(Relaxed).wrapping_add(amount);
        self.regions.store(regions, Relaxed);
        let count = self.classes[class].load(Relaxed).wrapping_add(amount);
        self.classes[class].store(count, Relaxed);
        let others = self.some.load(Relaxed) & !(1 << class);
        self.some
            .store(others | u64::from(count > 0) << class, Relaxed);
    }

    pub fn remove(&self, regions: &[CachedRegion], old: Id) {
        let region = &regions[old.0 as usize];
        let (class, shift) = class(region.page_range());
        unlink(
            regions,
            region,
            self.head(class, region.page_range().start >> shift),
        );
        self.count(class, u32::MAX);
    }

    /// The classes of regions that have fewer bytes than `size`, a power of two, as a set of bits.
    pub fn smaller_than(size: u64) -> u64 {
        (1 << (size / page_size()).ilog2()) - 1
    }

    /// Calls `each` for the regions of some classes that overlap a range, until `each` returns false.
    /// `each` must not change the index. Returns whether `each` always returned true. `each` is
    /// `dyn`, so that this code exists once, and not once for each caller.
    pub fn overlapping_of(
        &self,
        classes: u64,
        regions: &[CachedRegion],
        range: PageRange,
        each: &mut dyn FnMut(Id, &CachedRegion) -> bool,
    ) -> bool {
        let mut some = self.some.load(Relaxed) & classes;
        let lists = self.lists();
        while some != 0 && range.start < range.end {
            let class = some.trailing_zeros() as usize;
            some &= some - 1;
            let shift = granule(class);
            let first = (range.start >> shift).saturating_sub(1);
            let last = (range.end - 1) >> shift;
            // A range with at least as many granules as there are lists walks each list once.
            let granules = (last - first).min(lists as u64 - 1);
            let everywhere = granules == lists as u64 - 1;
            for granule in first..=first + granules {
                let start = if everywhere {
                    (granule - first) as usize
                } else {
                    list_of(hash(class, granule), lists)
                };
                if !self.walk(regions, start, |id, region| {
                    let (its_class, its_shift) = self::class(region.page_range());
                    let in_place = everywhere || region.page_range().start >> its_shift == granule;
                    if its_class == class && in_place && region.page_range().overlaps(range) {
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
        regions: &[CachedRegion],
        list: usize,
        mut each: impl FnMut(Id, &CachedRegion) -> bool,
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
