// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations on the cache's regions under the lock: a thread makes, keeps, claims and ends
//! them, and applies the ring to them.

use crate::account::Amount;
use crate::cause::Cause;
use crate::layout::Regions;
use crate::lock::{Held, LONG, MOMENT, WHILE};
use crate::region::key::{Domain, LookupKey};
use crate::region::link::Id;
use crate::region::slot::CachedRegion;
use crate::watch::ring::Kind;
use core::sync::atomic::{AtomicU64, Ordering::*};
use core::time::Duration;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::thread;

/// The cache while its lock is held.
pub struct Locked<'a>(&'a Regions, #[allow(dead_code)] Held<'a>);

impl Regions {
    /// Takes the lock for a thread of the program, which waits a while at most. `None` if another
    /// task still holds the lock. That task may be stopped until this thread goes on, or dead.
    pub fn lock_of_program(&self) -> Option<Locked<'_>> {
        self.lock_for(WHILE)
    }

    /// The same, for a call that cannot do without the lock: it waits longer.
    pub fn lock_patiently(&self) -> Option<Locked<'_>> {
        self.lock_for(LONG)
    }

    /// The same, in an interposed call or in a helper thread.
    pub fn lock_in_call(&self) -> Option<Locked<'_>> {
        self.lock_for(MOMENT)
    }

    /// For tests, in which no thread holds the lock for long.
    #[doc(hidden)]
    pub fn lock(&self) -> Locked<'_> {
        self.lock_patiently().expect("somebody keeps the lock")
    }

    fn lock_for(&self, limit: Duration) -> Option<Locked<'_>> {
        self.lock.lock(limit).map(|held| Locked(self, held))
    }

    /// Calls `each` for the regions that overlap a range, until `each` returns false. `each` must
    /// neither link nor end a region. Under the lock.
    pub(super) fn overlapping(
        &self,
        range: PageRange,
        mut each: impl FnMut(Id, &CachedRegion) -> bool,
    ) {
        self.tree.overlapping(&self.slots.0, range, &mut each);
    }

    /// Whether an attempt to take the lock is useless now: another thread has just waited in vain.
    pub fn is_locked_in_vain(&self) -> bool {
        self.lock.is_in_vain()
    }
}

/// On which thread the cache works, and so what it may use there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A thread of the program, in a registration or its end.
    Program,
    /// A helper thread, which the C library does not know; or a thread of the program in an interposed
    /// call or before a fork. No thread-local variable, no function that other libraries interpose, and
    /// a moment's wait for the lock.
    Helper,
}

impl By {
    /// Takes the cache's lock. `None` if another task still holds it.
    pub fn lock(self, regions: &Regions) -> Option<Locked<'_>> {
        match self {
            By::Program => regions.lock_of_program(),
            By::Helper => regions.lock_in_call(),
        }
    }

    /// The same, for a call that cannot do without the lock: a thread of the program waits longer.
    pub fn lock_patiently(self, regions: &Regions) -> Option<Locked<'_>> {
        match self {
            By::Program => regions.lock_patiently(),
            By::Helper => regions.lock_in_call(),
        }
    }

    /// The thread's number.
    pub fn thread(self) -> thread::Number {
        /// Not inlined: otherwise the compiler may look up the address of a thread-local variable
        /// before the `match`, and a helper thread dies of that.
        #[inline(never)]
        fn of_program() -> thread::Number {
            thread::number()
        }
        match self {
            By::Program => of_program(),
            By::Helper => thread::Number::HELPER,
        }
    }
}

/// The most regions that begin at one page, among those that only one registration may use at a
/// time. A program may register the same page 100 000 times, and each such region would lengthen
/// the search for an idle one.
const CROWD: u32 = 32;

/// Adds to a number that changes only under the lock, and so needs no locked instruction.
fn add(number: &AtomicU64, amount: u64) {
    number.store(number.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// The result of applying the ring.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Applied {
    /// How many regions the events have invalidated.
    pub invalidated: u64,
    /// userfaultfd reports nothing any more.
    pub broken: bool,
}

impl Locked<'_> {
    pub fn regions(&self) -> &Regions {
        self.0
    }

    /// Links a new region, with one user. `None` if no slot is free.
    pub fn make(&self, lookup_key: &LookupKey) -> Option<Id> {
        let id = self.link(lookup_key.page_range, |region| {
            region.set(lookup_key.page_range, lookup_key.domain, lookup_key.access);
            region.allocation.store(lookup_key.allocation, Relaxed);
            region.state.make();
        })?;
        self.0.account.add(Amount::of(self.0.region(id)));
        Some(id)
    }

    /// Links a monitored range: memory that is to be watched, without a region. `None` if no slot
    /// is free.
    pub fn make_monitored(&self, page_range: PageRange) -> Option<Id> {
        self.link(page_range, |region| {
            region.set(page_range, Domain::NONE, 0);
            region.state.make_monitored();
        })
    }

    fn link(&self, page_range: PageRange, make: impl FnOnce(&CachedRegion)) -> Option<Id> {
        let regions = self.0;
        if page_range.pages() > u64::from(u32::MAX) {
            return None;
        }
        let id = regions.pop()?;
        make(regions.region(id));
        regions.tree.add(&regions.slots.0, id);
        regions.filter.add(page_range);
        Some(id)
    }

    /// Keeps a region or a monitored range. False if its memory has changed since it was linked, or
    /// if its watch may have ended with a region nearby. Other registrations can take a kept region.
    pub fn keep(&self, id: Id) -> bool {
        let regions = self.0;
        let region = regions.region(id);
        if self.is_unwatching_near(region.page_range()) {
            return false;
        }
        let kept = region.state.keep();
        if kept && !region.state.load().is_monitored() {
            let (slots, start) = (regions.slots(), region.page_range().start);
            regions
                .table
                .add(&regions.shape, slots, region.pd(), start, id);
        }
        kept
    }

    /// Whether [`CROWD`] regions begin at this page, so that the cache should make no further one.
    pub fn is_crowded(&self, start: u64) -> bool {
        let regions = self.0;
        let page = PageRange {
            start,
            end: start + 1,
        };
        let mut count = 0;
        regions.overlapping(page, |_, region| {
            count += u32::from(region.page_range().start == start);
            count < CROWD
        });
        count == CROWD
    }

    /// Whether a region that overlaps a range is being ended.
    pub fn is_ending(&self, range: PageRange) -> bool {
        let mut found = false;
        self.0.overlapping(range, |_, region| {
            found = region.state.load().is_ending();
            !found
        });
        found
    }

    /// Invalidates a region or a monitored range. True if it was not invalidated before.
    pub fn invalidate(&self, id: Id, cause: Cause) -> bool {
        let region = self.0.region(id);
        let seen = region.state.load();
        if !(seen.is_registered() || seen.is_monitored()) || !region.state.invalidate() {
            return false;
        }
        region.cause.store(cause.in_word(), Relaxed);
        if seen.is_monitored() {
            add(&self.0.changed_monitored, 1);
        }
        true
    }

    /// Applies the ring: invalidates the regions whose memory has changed, and claims the idle ones
    /// among them.
    pub fn apply(&self) -> Applied {
        let regions = self.0;
        let mut applied = Applied::default();
        regions.ring.apply(|event| {
            let range = event.map_or(PageRange::ALL, |event| event.range);
            applied.broken |= event.is_some_and(|event| event.kind == Kind::Broken);
            regions.overlapping(range, |id, _| {
                applied.invalidated += u64::from(self.invalidate(id, Cause::Event));
                self.evict(id);
                true
            });
        });
        applied
    }

    /// Invalidates the regions of a GPU's memory in a range that are of other allocations than this one,
    /// which have been freed, and queues the idle ones.
    pub fn invalidate_freed(&self, range: PageRange, allocation: u64) {
        self.0.overlapping(range, |id, region| {
            if region.is_of_gpu() && !region.is_in(allocation) {
                self.invalidate(id, Cause::Event);
                self.evict(id);
            }
            true
        });
    }

    /// Claims a region if it has no user, and queues it: the next thread to call
    /// [`Regions::next_evicted`] deregisters it.
    pub fn evict(&self, id: Id) -> bool {
        let claimed = self.claim(id);
        if claimed {
            self.0.ends_later(id);
        }
        claimed
    }

    /// Claims a region if it has no user. The caller must deregister it.
    pub fn claim(&self, id: Id) -> bool {
        let regions = self.0;
        // Counted before the claim, so that no waiting thread finds the region ending while
        // `ending` is 0.
        regions.ending.fetch_add(1, SeqCst);
        let is_claimed = regions.region(id).state.claim();
        if !is_claimed {
            regions.ending.fetch_sub(1, SeqCst);
        }
        is_claimed
    }

    /// Claims a region, unless the slot belongs to a later region by now.
    pub fn claim_generation(&self, id: Id, generation: u32) -> bool {
        let is_same = self.0.region(id).state.load().generation() == generation;
        // A slot becomes a region only under the lock.
        is_same && self.claim(id)
    }

    /// Claims a region for the given cause if it is idle and `which` selects it.
    pub fn claim_idle(
        &self,
        id: Id,
        cause: Cause,
        which: impl FnOnce(&CachedRegion) -> bool,
    ) -> bool {
        let region = self.0.region(id);
        let seen = region.state.load();
        if !(seen.is_unused() && which(region) && self.claim(id)) {
            return false;
        }
        // A spent region would have ended anyway, by the thread that has just released it.
        if !seen.is_spent() {
            let _ = region
                .cause
                .compare_exchange(0, cause.in_word(), Relaxed, Relaxed);
        }
        true
    }

    /// Frees the slot of a claimed region that has been deregistered, of a new region whose
    /// registration failed, or of a monitored range.
    pub fn end(&self, id: Id) {
        let regions = self.0;
        let region = regions.region(id);
        let page_range = region.page_range();
        regions.tree.remove(&regions.slots.0, id);
        regions.filter.remove(page_range);
        let seen = region.state.load();
        if !seen.is_monitored() {
            let shape = regions.shape.load(Relaxed);
            regions
                .table
                .remove(shape, region.pd(), page_range.start, id);
            regions.account.remove(Amount::of(region));
        } else if seen.is_stale() {
            add(&regions.changed_monitored, u64::MAX);
        }
        region.state.free();
        regions.push(id);
        if seen.is_ending() {
            self.0.claim_ended();
        }
    }

    /// Takes back the claim on a region that could not be deregistered. The region is never reused.
    pub fn restore(&self, id: Id) {
        self.0.region(id).state.restore();
        self.0.claim_ended();
    }
}
