// SPDX-License-Identifier: MIT OR Apache-2.0
//! A list of slots, last in first out, without a lock.

use super::region::{Id, Region};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// The first slot and one more; above it a count that makes each value new, so that a head that was seen
/// before others took and gave the same slot is told apart. All zeros is an empty list.
#[repr(transparent)]
pub struct List(AtomicU64);

fn head(before: u64, first: u32) -> u64 {
    ((before >> 32) + 1) << 32 | u64::from(first)
}

impl List {
    /// Takes the first.
    pub fn pop(&self, slots: &[Region]) -> Option<Id> {
        let mut seen = self.0.load(Acquire);
        loop {
            let id = Id((seen as u32).checked_sub(1)?);
            let rest = head(seen, slots[id.0 as usize].next.load(Relaxed));
            match self.0.compare_exchange_weak(seen, rest, AcqRel, Acquire) {
                Ok(_) => return Some(id),
                Err(now) => seen = now,
            }
        }
    }

    /// Puts one in front.
    pub fn push(&self, slots: &[Region], id: Id) {
        let mut seen = self.0.load(Relaxed);
        loop {
            slots[id.0 as usize].next.store(seen as u32, Relaxed);
            let longer = head(seen, id.0 + 1);
            match self.0.compare_exchange_weak(seen, longer, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}
