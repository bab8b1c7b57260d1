// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock-free stack of slots.

use crate::region::link::{Id, Link};
use crate::region::slot::CachedRegion;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// The link to the first slot, and above it a counter that makes each value of the head new. The
/// counter prevents the ABA problem: a head that was read before other threads popped and pushed
/// the same slot differs from the present one. Zeroed memory is an empty list.
#[repr(transparent)]
pub struct List(AtomicU64);

fn head(before: u64, first: Link) -> u64 {
    ((before >> 32) + 1) << 32 | u64::from(first.bits())
}

impl List {
    /// Takes the first slot.
    pub fn pop(&self, slots: &[CachedRegion]) -> Option<Id> {
        let mut seen = self.0.load(Acquire);
        loop {
            let id = Link::from_bits(seen as u32).id()?;
            let rest = head(seen, slots[id.0 as usize].next.load());
            match self.0.compare_exchange_weak(seen, rest, AcqRel, Acquire) {
                Ok(_) => return Some(id),
                Err(now) => seen = now,
            }
        }
    }

    /// Puts a slot in front.
    pub fn push(&self, slots: &[CachedRegion], id: Id) {
        let mut seen = self.0.load(Relaxed);
        loop {
            slots[id.0 as usize]
                .next
                .store(Link::from_bits(seen as u32));
            let longer = head(seen, Link::to(id));
            match self.0.compare_exchange_weak(seen, longer, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}
