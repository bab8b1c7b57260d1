// SPDX-License-Identifier: MIT OR Apache-2.0
//! The claimed regions: which wait to be deregistered, and who waits for their end.

use crate::layout::Regions;
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
use core::sync::atomic::Ordering::*;
use core::time::Duration;
use rdmamr_sys::{clock, futex};

impl Regions {
    /// Claims a region if it has no user. The caller must deregister it. Under the lock, or once a
    /// dead task has the lock: then no slot becomes another region's any more.
    pub(super) fn claim(&self, id: Id) -> bool {
        let region = self.region(id);
        // Counted before the claim: a waiting thread must not find the region ending while `ending`
        // is 0.
        self.ending.fetch_add(1, SeqCst);
        if !region.state.claim() {
            self.ending.fetch_sub(1, SeqCst);
            return false;
        }
        let claim = self.claims.fetch_add(1, Relaxed) + 1;
        region.claim.store(claim, Relaxed);
        true
    }

    /// A claimed region has ended, or the claim is taken back.
    pub(super) fn claim_ended(&self) {
        self.ending.fetch_sub(1, SeqCst);
        if self.waiting.load(SeqCst) != 0 {
            self.ended.fetch_add(1, SeqCst);
            futex::wake(&self.ended, i32::MAX);
        }
    }

    /// Claims so far.
    pub fn claims(&self) -> u64 {
        self.claims.load(Relaxed)
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
        self.evicted.push(&*self.slots, id);
    }

    /// Takes a claimed region off the list of those that wait. The caller must deregister it.
    pub fn next_evicted(&self) -> Option<Id> {
        self.evicted.pop(&*self.slots)
    }

    /// Whether so much waits to be deregistered that the cleaner must wake before its next tick.
    /// The answer is yes once, until the cleaner has ended what waits ([`Regions::nothing_waits`]).
    pub fn has_much_to_end(&self, regions: u32) -> bool {
        let bytes = self.account.limit().bytes as u64 / 16;
        let evicted_bytes = self.evicted_bytes.load(Relaxed);
        let much = (evicted_bytes > 0 && evicted_bytes >= bytes) || self.ending() >= regions;
        much && !self.much_waits.load(Relaxed) && !self.much_waits.swap(true, Relaxed)
    }

    /// Notes that nothing waits to be deregistered any more.
    pub fn nothing_waits(&self) {
        self.evicted_bytes.store(0, Relaxed);
        self.much_waits.store(false, Relaxed);
    }

    /// Waits until no claim up to number `until` is left for the regions that `of` selects. False
    /// if no region has ended for so long that the threads that end them must be stopped.
    pub fn wait_for_claims(&self, until: u64, mut of: impl FnMut(&CachedRegion) -> bool) -> bool {
        /// The kernel may take seconds to unpin a region.
        const PATIENCE: Duration = Duration::from_secs(5);
        let now = || Duration::from_nanos(clock::monotonic_by_kernel());
        let (mut seen, mut since, mut all) = (self.ended.load(SeqCst), now(), true);
        self.waiting.fetch_add(1, SeqCst);
        // A slot that no such claim is left for never gets one: later claims have larger numbers.
        let mut from = Id(0);
        while self.is_ending() {
            let ended = self.ended.load(SeqCst);
            let waiting = self.each_from(from).find(|(_, region)| {
                region.state.load().is_ending() && region.claim.load(Relaxed) <= until && of(region)
            });
            match waiting {
                // A thread has waited for this one before.
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
                (seen, since) = (ended, now());
            } else if now() - since > PATIENCE {
                self.claims_in_vain.fetch_max(until, Relaxed);
                all = false;
                break;
            }
            futex::wait(&self.ended, ended, Some(Duration::from_millis(100)));
        }
        self.waiting.fetch_sub(1, SeqCst);
        all
    }

    /// Waits until a region has ended, at most so long.
    pub fn wait_for_an_end(&self, limit: Duration) {
        self.waiting.fetch_add(1, SeqCst);
        let ended = self.ended.load(SeqCst);
        if self.is_ending() {
            futex::wait(&self.ended, ended, Some(limit));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }
}
