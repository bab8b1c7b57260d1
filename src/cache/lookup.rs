// SPDX-License-Identifier: MIT OR Apache-2.0
//! Look-ups of a region without the lock: by the key of a registration, or by the region's object.

use crate::layout::Regions;
use crate::region::key::LookupKey;
use crate::region::link::{Id, Link};
use crate::region::slot::{CachedRegion, OBJECT_OFFSET};
use crate::region::state::{Grant, Left};
use core::sync::atomic::Ordering::*;
use rdmamr_sys::pages::PageRange;

/// A handle that the program passed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    /// The slot whose object the program holds.
    slot: Id,
    /// The slot of the region. In a further handle it differs from `slot`.
    pub region: Id,
    grant: Grant,
}

impl Regions {
    /// Whether the table has an entry for this key. Has the processor prefetch the slot that the
    /// entry leads to, because the hit will write to it.
    #[inline(always)]
    pub fn fetch(&self, lookup_key: &LookupKey) -> bool {
        let shape = self.shape.load(Acquire);
        let Some(id) = self.table.find(shape, lookup_key, Some) else {
            return false;
        };
        #[cfg(target_arch = "x86_64")]
        if let Some(region) = self.slots.0.get(id.0 as usize) {
            use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: the instruction changes nothing that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>((&raw const *region).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = id;
        true
    }

    /// Takes a region that serves, for one more user.
    #[inline(always)]
    pub fn take(&self, lookup_key: &LookupKey) -> Option<(Id, Grant)> {
        let shape = self.shape.load(Acquire);
        self.table.find(shape, lookup_key, |id| {
            let region = self.slots.0.get(id.0 as usize)?;
            let serves = |seen| lookup_key.may_share(seen) && region.serves(lookup_key);
            Some((id, region.state.take_if(serves)?))
        })
    }

    /// Whether a slot is a monitored range of exactly this memory, unchanged as far as the ring is
    /// applied.
    #[inline(always)]
    pub fn is_monitored_of(&self, id: Id, page_range: PageRange) -> bool {
        let region = self.region(id);
        region
            .state
            .is_monitored_that(|_| region.page_range() == page_range)
    }

    /// Whether the memory of a monitored range that is still linked has changed.
    pub fn has_changed_monitoreds(&self) -> bool {
        self.changed_monitored.load(Relaxed) > 0
    }

    /// The object for a grant, with the program's address and length. `None` if another handle is
    /// needed and no slot is free.
    #[inline(always)]
    pub fn object(&self, id: Id, grant: Grant, addr: u64, length: u64) -> Option<usize> {
        let region = self.region(id);
        let object = match grant {
            Grant::Own => {
                if region.count_hit() {
                    self.many_hits.fetch_add(1 << u32::BITS, Relaxed);
                }
                region
            }
            Grant::Another => self.another(id)?,
        };
        object.set_memory(addr, length);
        Some(object.object())
    }

    #[cold]
    #[inline(never)]
    fn another(&self, id: Id) -> Option<&CachedRegion> {
        let slot = self.region(self.pop()?);
        slot.state.before_fields();
        self.region(id).was_shared.store(1, Relaxed);
        slot.copy_object(self.region(id));
        slot.owner.store(Link::to(id));
        slot.state.make_handle();
        Some(slot)
    }

    /// The slot whose object is at this address, if there is one.
    #[inline(always)]
    fn slot_of(&self, object: usize) -> Option<Id> {
        let offset = object.checked_sub(self.first_object())?;
        let slot = offset / size_of::<CachedRegion>();
        let within = offset - slot * size_of::<CachedRegion>();
        let is_there = within == OBJECT_OFFSET && slot < self.ready.load(Relaxed) as usize;
        is_there.then_some(Id(slot as u32))
    }

    /// The handle whose object is at this address, if there is one. The handle may be released
    /// already.
    pub fn handle(&self, object: usize) -> Option<Handle> {
        let slot = self.slot_of(object)?;
        let region = self.region(slot);
        Some(if region.state.load().is_handle() {
            Handle {
                slot,
                region: region.owner.load().id()?,
                grant: Grant::Another,
            }
        } else {
            Handle {
                slot,
                region: slot,
                grant: Grant::Own,
            }
        })
    }

    /// Ends one use of a region at the time `now` of the cache's clock. `None` if the handle is
    /// released already.
    pub fn release(&self, handle: Handle, now: u32) -> Option<Left> {
        let region = self.region(handle.region);
        if handle.grant == Grant::Another {
            if !self.region(handle.slot).state.release_handle() {
                return None;
            }
            self.push(handle.slot);
        }
        // Stored before the release: after it, the slot may belong to another region.
        region.released.store(now, Relaxed);
        region.state.release(handle.grant)
    }

    /// Ends the only use of the region whose own handle is this object, and leaves the region idle.
    /// `None` if there is no such use; then nothing has changed.
    #[inline(always)]
    pub fn release_last(&self, object: usize, now: u32) -> Option<Id> {
        let id = self.slot_of(object)?;
        let region = self.region(id);
        // Stored before the release, as above.
        let store = || region.released.store(now, Relaxed);
        region.state.release_last(store).then_some(id)
    }

    /// Ends a use that `take` granted and that has no handle.
    pub fn give_back(&self, id: Id, grant: Grant) -> Option<Left> {
        self.region(id).state.release(grant)
    }
}
