// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slots: those that were ever in use, those that are mapped, those that are free.

use crate::layout::{MOST, Regions};
use crate::mapping::Large;
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
use core::sync::atomic::{AtomicU32, Ordering::*};
use rdmamr_sys::process::PAGE_SIZE;

/// Slots from this number on are in huge pages.
const LARGE: u32 = 8192;

/// The number of slots in a huge page, and the least number in a small page.
const IN_HUGE_PAGE: u32 = (2 << 20) / size_of::<CachedRegion>() as u32 + 1;
const IN_PAGE: usize = 4096 / size_of::<CachedRegion>();

impl Regions {
    #[inline(always)]
    pub fn region(&self, id: Id) -> &CachedRegion {
        &self.slots[id.0 as usize]
    }

    pub(super) fn slots(&self) -> &[CachedRegion] {
        let grown = self.grown.load(Acquire) as usize;
        &self.slots[..grown.min(MOST)]
    }

    /// Every slot that was ever in use.
    pub fn each(&self) -> impl Iterator<Item = (Id, &CachedRegion)> {
        self.each_from(Id(0))
    }

    /// The same, from a slot on. (`skip` would call the closure for each slot before that.)
    pub(super) fn each_from(&self, first: Id) -> impl Iterator<Item = (Id, &CachedRegion)> {
        let slots = self.slots().get(first.0 as usize..).unwrap_or_default();
        let slots = slots.iter().enumerate();
        slots.map(move |(n, region)| (Id(first.0 + n as u32), region))
    }

    /// Whether more than this many slots were ever in use.
    pub fn has_more_slots_than(&self, slots: u32) -> bool {
        self.grown.load(Relaxed) > slots
    }

    /// Records that the parts in [`Regions::FIRST`] are mapped.
    pub fn has_first(&self) {
        self.table.has_first();
        let slots = Regions::FIRST[2].1 / size_of::<CachedRegion>();
        self.ready.store(slots.min(MOST) as u32, Release);
    }

    /// The number of bytes to map for this many slots.
    fn bytes_of(slots: u32) -> usize {
        (slots as usize * size_of::<CachedRegion>()).next_multiple_of(PAGE_SIZE)
    }

    /// Maps more slots after the first `ready`. False if they cannot be mapped. Also false if
    /// another thread maps them at this moment: that thread may be stopped, so no thread waits for
    /// it.
    #[cold]
    fn map_slots(&self, ready: u32) -> bool {
        let from = Regions::bytes_of(ready);
        let to = Large::<[CachedRegion; MOST]>::next_size(from);
        if from >= to || !self.slots.map(from, to) {
            return false;
        }
        let slots = (to / size_of::<CachedRegion>()).min(MOST) as u32;
        // Stored before the first of these slots is handed out.
        #[cfg(not(any(test, feature = "tiny")))]
        crate::objects::take(self.objects_to(slots));
        // Only the thread that has mapped the slots gets here.
        self.ready.store(slots, Release);
        true
    }

    /// Whether a slot is mapped. Maps it if it is not.
    #[inline]
    fn has_slot(&self, slot: u32) -> bool {
        loop {
            let ready = self.ready.load(Acquire);
            if slot < ready {
                return true;
            }
            if !self.map_slots(ready) && self.ready.load(Acquire) == ready {
                return false;
            }
        }
    }

    /// The addresses of the mapped objects.
    pub fn objects(&self) -> core::ops::Range<usize> {
        self.objects_to(self.ready.load(Acquire))
    }

    fn objects_to(&self, slots: u32) -> core::ops::Range<usize> {
        let start = self.first_object();
        start..start + slots as usize * size_of::<CachedRegion>()
    }

    #[inline(always)]
    pub(super) fn first_object(&self) -> usize {
        (&raw const *self.slots).expose_provenance()
    }

    pub(super) fn pop(&self) -> Option<Id> {
        self.free.pop(&*self.slots).or_else(|| {
            let grown = self.grown.fetch_update(AcqRel, Relaxed, |grown| {
                ((grown as usize) < MOST && self.has_slot(grown)).then_some(grown + 1)
            });
            grown.ok().map(Id)
        })
    }

    pub(super) fn push(&self, id: Id) {
        self.free.push(&*self.slots, id);
    }

    /// Whether [`Regions::touch_ahead`] has something to do.
    pub fn has_to_touch(&self) -> bool {
        let grown = self.grown.load(Relaxed);
        let ahead = (grown + IN_HUGE_PAGE / 2).min(MOST as u32);
        (grown >= LARGE && self.touched.load(Relaxed) < ahead) || self.table.is_to_be_touched()
    }

    /// Touches the huge pages that registrations will need soon. The kernel then clears 2 MiB, and
    /// in a virtual machine the host finds memory for them. That takes 5 ms, for which no
    /// registration waits here. Needs no lock.
    pub fn touch_ahead(&self) {
        // The exchange writes to the page, and changes nothing.
        let touch = |state: &AtomicU32| {
            let _ = state.compare_exchange(0, 0, Relaxed, Relaxed);
        };
        let grown = self.grown.load(Relaxed);
        if grown >= LARGE {
            let from = self.touched.load(Relaxed).max(grown);
            let to = (grown + IN_HUGE_PAGE).min(MOST as u32);
            let there = to == 0 || self.has_slot(to - 1);
            let slots = self.slots.iter().take(to as usize).skip(from as usize);
            if there {
                slots
                    .step_by(IN_PAGE)
                    .for_each(|slot| touch(&slot.refusals));
            }
            self.touched.store(to, Relaxed);
        }
        self.table.each_page_to_fill(touch);
    }
}
