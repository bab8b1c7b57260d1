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
    /// Claims a region if it has no user. The caller must deregister it. The caller holds the lock.
    pub(super) fn claim(&self, id: Id) -> bool {
        let region = self.region(id);
        // Counted before the claim, so that no waiting thread finds the region ending while
        // `ending` is 0.
        self.ending.fetch_add(1, SeqCst);
        // Numbered before the claim: a flush that finds the region ending waits for this number.
        let claim = self.claims.fetch_add(1, SeqCst) + 1;
        region.claim.store(claim, Relaxed);
        let is_claimed = region.state.claim();
        if !is_claimed {
            self.ending.fetch_sub(1, SeqCst);
        }
        is_claimed
    }

    /// Records that a claimed region has ended, or that its claim is taken back.
    pub(super) fn claim_ended(&self) {
        self.ending.fetch_sub(1, SeqCst);
        if self.waiting.load(SeqCst) != 0 {
            self.ended.fetch_add(1, SeqCst);
            futex::wake(&self.ended, i32::MAX);
        }
    }

    pub fn claims(&self) -> u64 {
        self.claims.load(SeqCst)
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

    /// Waits until the regions that `of` selects have no claim with a number up to `until`. False
    /// if no region has ended for so long that the threads that end regions are probably stopped.
    pub fn wait_for_claims(&self, until: u64, mut of: impl FnMut(&CachedRegion) -> bool) -> bool {
        /// The kernel may take seconds to unpin a region.
        const PATIENCE: Duration = Duration::from_secs(5);
        let patience = || Remaining::new(PATIENCE, Duration::from_millis(100));
        let (mut seen, mut remaining, mut all) = (self.ended.load(SeqCst), patience(), true);
        self.waiting.fetch_add(1, SeqCst);
        // A slot without such a claim never gets one, because later claims have larger numbers.
        let mut from = Id(0);
        while self.is_ending() {
            let ended = self.ended.load(SeqCst);
            let waiting = self.each_from(from).find(|(_, region)| {
                region.state.load().is_ending() && region.claim.load(Relaxed) <= until && of(region)
            });
            match waiting {
                // A thread has already waited for this claim in vain.
                Some((_, region))
                    if region.claim.load(Relaxed) <= self.claims_in_vain.load(Relaxed) =>
                {
                    all = false;
                    break;
                }
                Some((id, _)) => from = id,
                None => break,
            }
            if ended != seen {
                (seen, remaining) = (ended, patience());
            } else if remaining.is_over() {
                self.claims_in_vain.fetch_max(until, Relaxed);
                all = false;
                break;
            }
            remaining.wait(&self.ended, ended);
        }
        self.waiting.fetch_sub(1, SeqCst);
        all
    }

    /// Waits until a region has ended, or until `limit` has passed.
    pub fn wait_for_an_end(&self, limit: Duration) {
        self.waiting.fetch_add(1, SeqCst);
        let ended = self.ended.load(SeqCst);
        if self.is_ending() {
            futex::wait(&self.ended, ended, Some(limit));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }
}
