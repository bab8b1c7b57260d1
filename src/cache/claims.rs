// SPDX-License-Identifier: MIT OR Apache-2.0
//! Claimed regions: the list of those that wait to be deregistered, and the threads that wait for
//! their end.

use crate::layout::Regions;
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
use core::sync::atomic::Ordering::*;
use core::time::Duration;
use rdmamr_sys::futex::{self, Remaining};

impl Regions {
    /// Records that a claimed region has ended, or that its claim is taken back.
    pub(super) fn claim_ended(&self) {
        self.ending.fetch_sub(1, SeqCst);
        self.waited_in_vain.store(false, Relaxed);
        if self.waiting.load(SeqCst) != 0 {
            self.ended.fetch_add(1, SeqCst);
            futex::wake(&self.ended, i32::MAX);
        }
    }

    /// Whether a region is claimed and not yet ended.
    pub fn is_ending(&self) -> bool {
        self.ending() != 0
    }

    /// The number of regions that are claimed and not yet ended.
    pub fn ending(&self) -> u32 {
        self.ending.load(SeqCst)
    }

    /// Queues a claimed region: the next thread to call [`Regions::next_evicted`] deregisters it.
    pub fn ends_later(&self, id: Id) {
        self.evicted.push(&self.slots.0, id);
    }

    /// Removes a claimed region from that list. The caller must deregister it.
    pub fn next_evicted(&self) -> Option<Id> {
        self.evicted.pop(&self.slots.0)
    }

    /// Waits for the end of those claimed regions that `of` selects. False if no region has ended for
    /// so long that the threads that end regions are probably stopped.
    pub fn wait_for_claimed(&self, of: impl Fn(&CachedRegion) -> bool) -> bool {
        /// The kernel may take seconds to unpin a region.
        const PATIENCE: Duration = Duration::from_secs(5);
        if !self.is_ending() {
            return true;
        }
        let patience = || Remaining::new(PATIENCE, Duration::from_millis(100));
        let (mut ended, mut remaining) = (self.ended.load(SeqCst), patience());
        self.waiting.fetch_add(1, SeqCst);
        // Each slot is looked at once: a region that is claimed from now on need not be waited for.
        let all = self.each().all(|(_, region)| {
            let seen = region.state.load();
            if !(seen.is_ending() && of(region)) {
                return true;
            }
            let still_ends = || {
                let now = region.state.load();
                self.is_ending() && now.is_ending() && now.generation() == seen.generation()
            };
            loop {
                let now = self.ended.load(SeqCst);
                if !still_ends() {
                    return true;
                }
                if ended != now {
                    (ended, remaining) = (now, patience());
                }
                if remaining.is_over() || self.waited_in_vain.load(Relaxed) {
                    return false;
                }
                remaining.wait(&self.ended, now);
            }
        });
        self.waiting.fetch_sub(1, SeqCst);
        if !all {
            // The next thread does not wait, unless a region has ended meanwhile.
            self.waited_in_vain.store(true, Relaxed);
        }
        all
    }

    /// Waits until a region has ended, for a millisecond at most.
    pub fn wait_for_an_end(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let ended = self.ended.load(SeqCst);
        if self.is_ending() {
            futex::wait(&self.ended, ended, Some(Duration::from_millis(1)));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }
}
