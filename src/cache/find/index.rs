// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index of the cache's regions by address: it finds those that overlap a range.
//!
//! Regions may overlap and nest in any way. A region of class k has at least 2^k pages and fewer
//! than 2^(k+1). It is on one list: that of its class and of the granule of 2^(k+1) pages in which
//! it starts. A region that overlaps a range therefore starts in one of the range's granules or in
//! the granule before them, however many regions there are. Adding and removing a region take a few
//! stores. All of it runs under the cache's lock.

use crate::region::link::{AtomicLink, Id, Link};
use crate::region::slot::CachedRegion;
use crate::sys::pages::{PageRange, page_size};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Classes of sizes: up to 2^40 pages.
const CLASSES: usize = 40;

/// The number of lists, which classes and granules share by hashing: 128 KiB, of which a process
/// has what its regions touch.
const LISTS: usize = if cfg!(any(test, feature = "tiny")) {
    16
} else {
    1 << 15
};

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

/// Puts a region first on a list.
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

/// Takes a region off its list.
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
    /// The head of the list of a class's granule.
    fn head(&self, class: usize, granule: u64) -> &AtomicLink {
        let mixed = (granule << 6 | class as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.lists[(mixed >> 40) as usize % LISTS]
    }

    /// Adds a region.
    pub fn add(&self, regions: &[CachedRegion], new: Id) {
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
        let count = self.classes[class].load(Relaxed).wrapping_add(amount);
        self.classes[class].store(count, Relaxed);
        let others = self.some.load(Relaxed) & !(1 << class);
        self.some
            .store(others | u64::from(count > 0) << class, Relaxed);
    }

    /// Removes a region.
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

    /// Calls `each` for the regions that overlap a range, until `each` returns false. `each` must
    /// not change the index. There is one copy of this code, not one for each caller.
    pub fn overlapping(
        &self,
        regions: &[CachedRegion],
        range: PageRange,
        each: &mut dyn FnMut(Id, &CachedRegion) -> bool,
    ) {
        let mut some = self.some.load(Relaxed);
        while some != 0 && range.start < range.end {
            let class = some.trailing_zeros() as usize;
            some &= some - 1;
            let shift = granule(class);
            let first = (range.start >> shift).saturating_sub(1);
            let last = (range.end - 1) >> shift;
            for granule in first..=last {
                let mut next = self.head(class, granule).load().id();
                while let Some(here) = next {
                    let region = &regions[here.0 as usize];
                    next = region.following.load().id();
                    let page_range = region.page_range();
                    let (its_class, shift) = self::class(page_range);
                    let in_place = its_class == class && page_range.start >> shift == granule;
                    if in_place && page_range.overlaps(range) && !each(here, region) {
                        return;
                    }
                }
            }
        }
    }
}
