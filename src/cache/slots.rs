// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slots: those that were ever in use, those that are mapped, those that are free.

use crate::layout::{MOST, Regions};
use crate::mapping::{HUGE_PAGE, map};
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
use core::sync::atomic::Ordering::*;
use rdmamr_sys::process::PAGE_SIZE;

impl Regions {
    #[inline(always)]
    pub fn region(&self, id: Id) -> &CachedRegion {
        &self.slots.0[id.0 as usize]
    }

    pub fn slots(&self) -> &[CachedRegion] {
        let grown = self.grown.load(Acquire) as usize;
        &self.slots.0[..grown.min(MOST)]
    }

    /// Every slot that was ever in use.
    pub fn each(&self) -> impl Iterator<Item = (Id, &CachedRegion)> {
        let slots = self.slots().iter().enumerate();
        slots.map(|(n, region)| (Id(n as u32), region))
    }

    /// Maps more slots after the first `ready`. False if they cannot be mapped. Also false if
    /// another thread maps them at this moment: that thread may be stopped, so no thread waits for
    /// it.
    #[cold]
    fn map_slots(&self, ready: u32) -> bool {
        let from = (ready as usize * size_of::<CachedRegion>()).next_multiple_of(PAGE_SIZE);
        let all = size_of_val(&self.slots.0).next_multiple_of(PAGE_SIZE);
        // A few at first, and huge pages once the array is large.
        let to = all.min(from + from.clamp(64 << 10, HUGE_PAGE));
        if from >= to || !map(&raw const self.slots.0, from, to) {
            return false;
        }
        let slots = (to / size_of::<CachedRegion>()).min(MOST) as u32;
        // Stored before the first of these slots is handed out.
        #[cfg(not(any(test, feature = "tiny")))]
        crate::objects::take(self.objects(slots));
        // Only the thread that has mapped the slots gets here.
        self.ready.store(slots, Release);
        true
    }

    /// Whether a slot is mapped: one of those, or the next one, which this maps if it is not.
    #[inline]
    fn has_slot(&self, slot: u32) -> bool {
        let ready = self.ready.load(Acquire);
        slot < ready || self.map_slots(ready) || slot < self.ready.load(Acquire)
    }

    /// The addresses of the objects of the first `slots` slots.
    pub fn objects(&self, slots: u32) -> core::ops::Range<usize> {
        let start = self.first_object();
        start..start + slots as usize * size_of::<CachedRegion>()
    }

    #[inline(always)]
    pub(super) fn first_object(&self) -> usize {
        (&raw const self.slots.0).expose_provenance()
    }

    pub(super) fn pop(&self) -> Option<Id> {
        self.free.pop(&self.slots.0).or_else(|| {
            let grown = self.grown.fetch_update(AcqRel, Relaxed, |grown| {
                ((grown as usize) < MOST && self.has_slot(grown)).then_some(grown + 1)
            });
            grown.ok().map(Id)
        })
    }

    pub(super) fn push(&self, id: Id) {
        self.free.push(&self.slots.0, id);
    }
}
