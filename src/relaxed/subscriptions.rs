// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many subscriptions there are (`subscription.rs`), and whether the other library's cache has entries without one.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// Values of [`Subscriptions::lost`].
const NOTHING: u32 = 0;
const LOST: u32 = 1;
const LEAVING: u32 = 2;

/// What the pool knows of its subscriptions together. All zeros is none.
#[repr(C)]
pub struct Subscriptions {
    /// How many there are.
    count: AtomicU32,
    /// How many of them are withdrawn.
    withdrawn: AtomicU32,
    /// Whether the cache has an entry without a subscription.
    lost: AtomicU32,
}

impl Subscriptions {
    /// Counts those that are withdrawn. Under the pool's lock.
    pub fn withdrawn(&self, more: i32) {
        let now = self.withdrawn.load(Relaxed).wrapping_add_signed(more);
        self.withdrawn.store(now, Relaxed);
    }

    /// Counts those that there are. Under the pool's lock.
    pub fn counted(&self, more: i32) {
        let now = self.count.load(Relaxed).wrapping_add_signed(more);
        self.count.store(now, Relaxed);
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// The cache has an entry without a subscription.
    pub fn lose(&self) {
        self.lost.store(LOST, SeqCst);
    }

    /// Whether it has one.
    pub fn has_lost(&self) -> bool {
        self.lost.load(SeqCst) != NOTHING
    }

    /// It has none.
    pub fn know_all(&self) {
        self.lost.store(NOTHING, SeqCst);
    }

    /// The cache is about to be notified of all memory.
    pub fn all_leave(&self) {
        self.lost.store(LEAVING, SeqCst);
    }

    /// It was notified of all memory since [`Subscriptions::all_leave`], and has lost none meanwhile.
    pub fn found(&self) {
        let _ = self.lost.compare_exchange(LEAVING, NOTHING, SeqCst, SeqCst);
    }

    /// Whether the cache has something to be told.
    pub fn is_due(&self) -> bool {
        self.withdrawn.load(Relaxed) > 0 || self.has_lost()
    }
}
