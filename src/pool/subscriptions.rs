// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many subscriptions there are (`src/monitor/`), and whether the other library's cache has
//! entries without a subscription.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// Values of [`Subscriptions::lost`].
const NOTHING: u32 = 0;
const LOST: u32 = 1;
const LEAVING: u32 = 2;

/// What the pool knows of all its subscriptions. Zeroed memory means that there are none.
#[repr(C)]
pub struct Subscriptions {
    /// The number of subscriptions.
    count: AtomicU32,
    /// How many of them are withdrawn.
    withdrawn: AtomicU32,
    /// Whether the cache has an entry without a subscription: `NOTHING`, `LOST`, or `LEAVING` while
    /// the cache is being notified of all memory.
    lost: AtomicU32,
}

impl Subscriptions {
    /// Adds to the number of withdrawn subscriptions. Under the pool's lock.
    pub fn withdrawn(&self, more: i32) {
        let now = self.withdrawn.load(Relaxed).wrapping_add_signed(more);
        self.withdrawn.store(now, Relaxed);
    }

    /// Adds to the number of subscriptions. Under the pool's lock.
    pub fn counted(&self, more: i32) {
        let now = self.count.load(Relaxed).wrapping_add_signed(more);
        self.count.store(now, Relaxed);
    }

    /// The number of subscriptions.
    pub fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Records that the cache has an entry without a subscription.
    pub fn lose(&self) {
        self.lost.store(LOST, SeqCst);
    }

    /// Whether the cache has an entry without a subscription.
    pub fn has_lost(&self) -> bool {
        self.lost.load(SeqCst) != NOTHING
    }

    /// Records that every entry of the cache has a subscription.
    pub fn know_all(&self) {
        self.lost.store(NOTHING, SeqCst);
    }

    /// Records that the cache is about to be notified of all memory.
    pub fn all_leave(&self) {
        self.lost.store(LEAVING, SeqCst);
    }

    /// Records that the cache was notified of all memory since [`Subscriptions::all_leave`], unless
    /// another entry was left without a subscription meanwhile.
    pub fn found(&self) {
        let _ = self.lost.compare_exchange(LEAVING, NOTHING, SeqCst, SeqCst);
    }

    /// Whether the cache must be notified of something.
    pub fn is_due(&self) -> bool {
        self.withdrawn.load(Relaxed) > 0 || self.has_lost()
    }
}
