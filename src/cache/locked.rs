// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations on the cache's regions under the lock: a thread makes, keeps, claims and ends
//! them, and applies the ring to them.

use crate::account::Amount;
use crate::find::filter::CHUNK;
use crate::lock::{Held, LONG, MOMENT, WHILE};
use crate::region::slot::{Cause, Domain, Id, LookupKey, Slot};
use crate::regions::Regions;
use crate::watch::ring::Kind;
use core::sync::atomic::Ordering::*;
use core::time::Duration;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::thread;

/// The cache while its lock is held.
pub struct Locked<'a>(&'a Regions, #[allow(dead_code)] Held<'a>);

impl Regions {
    /// Takes the lock, or waits for it for a while. `None` if another task still holds it. That task may
    /// be stopped until this thread goes on, or dead.
    pub fn lock_by(&self, by: By) -> Option<Locked<'_>> {
        self.lock_for(if by == By::Program { WHILE } else { MOMENT })
    }

    /// Takes the lock for a call that cannot do without it: a thread of the program waits longer.
    pub fn lock_patiently(&self, by: By) -> Option<Locked<'_>> {
        self.lock_for(if by == By::Program { LONG } else { MOMENT })
    }

    /// For tests, in which no thread holds the lock for long.
    #[doc(hidden)]
    pub fn lock(&self) -> Locked<'_> {
        self.lock_patiently(By::Program)
            .expect("somebody keeps the lock")
    }

    fn lock_for(&self, limit: Duration) -> Option<Locked<'_>> {
        self.lock.lock(limit).map(|held| Locked(self, held))
    }

    /// Calls `each` for the regions that overlap a range, until `each` returns false. `each` must
    /// neither link nor end a region. Under the lock.
    pub(super) fn overlapping(&self, range: PageRange, mut each: impl FnMut(Id, &Slot) -> bool) {
        self.tree.overlapping(&self.slots.0, range, &mut each);
    }
}

/// Where the cache works, and so what it may use there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A thread of the program, in a registration or its end.
    Program,
    /// A helper thread, which the C library does not know, and which has no thread-local variables; or
    /// a thread of the program in an interposed call or before a fork. No function that other libraries
    /// interpose, and a moment's wait for the lock.
    Restricted,
}

impl By {
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
            By::Restricted => thread::Number::HELPER,
        }
    }
}

/// The most regions that begin at one page, if a further one would be exclusive: only one registration
/// may use it at a time. A program may register the same page 100 000 times, and each such region would
/// lengthen the search for an idle one.
const CROWD: u32 = 32;

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

    fn link(&self, page_range: PageRange, make: impl FnOnce(&Slot)) -> Option<Id> {
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

    /// Whether one of the regions that overlap a range is as asked.
    fn any(&self, range: PageRange, mut is: impl FnMut(&Slot) -> bool) -> bool {
        let mut found = false;
        self.0.overlapping(range, |_, region| {
            found = is(region);
            !found
        });
        found
    }

    /// Whether [`CROWD`] regions begin at this page, so that the cache should make no further one.
    pub fn is_crowded(&self, start: u64) -> bool {
        let mut count = 0;
        self.any(PageRange::new(start, start + 1), |region| {
            count += u32::from(region.page_range().start == start);
            count == CROWD
        })
    }

    /// Whether a region that overlaps a range is being ended.
    pub fn is_ending(&self, range: PageRange) -> bool {
        self.any(range, |region| region.state.load().is_ending())
    }

    /// Invalidates a region or a monitored range. True if it was not invalidated before.
    pub fn invalidate(&self, id: Id, cause: Cause) -> bool {
        let region = self.0.region(id);
        let seen = region.state.load();
        if !(seen.is_live() || seen.is_monitored()) || !region.state.invalidate() {
            return false;
        }
        region.cause.store(cause.in_word(), Relaxed);
        if seen.is_monitored() {
            self.0.changed_monitored.fetch_add(1, Relaxed);
        }
        true
    }

    /// Applies the ring: invalidates the regions whose memory has changed, and claims the idle ones
    /// among them. Returns how many it has invalidated, and whether userfaultfd reports nothing any
    /// more.
    pub fn apply(&self) -> (u64, bool) {
        let (mut invalidated, mut is_broken) = (0, false);
        self.0.ring.apply(|event| {
            let range = event.map_or(PageRange::ALL, |event| event.range);
            is_broken |= event.is_some_and(|event| event.kind == Kind::Broken);
            invalidated += self.change(range, Cause::Event);
        });
        (invalidated, is_broken)
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
    pub fn evict(&self, id: Id) {
        if self.claim(id) {
            self.0.queue(id);
        }
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

    /// Claims a region for the given cause if it is unused and `which` selects it.
    pub fn claim_unused(&self, id: Id, cause: Cause, which: impl FnOnce(&Slot) -> bool) -> bool {
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
    pub fn free(&self, id: Id) {
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
            regions.changed_monitored.fetch_sub(1, Relaxed);
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

/// How much memory, in bytes, stops being watched by one system call. That takes 80 ns a page
/// (measured), and the kernel's mmap lock meanwhile.
pub const UNWATCH_AT_MOST: u64 = 8 << 20;

impl Regions {
    /// Calls `each` for the regions that reach into the chunks of a range ([`Regions::overlapping`]).
    pub(super) fn near(&self, range: PageRange, each: impl FnMut(Id, &Slot) -> bool) {
        self.overlapping(range.extended(CHUNK), each);
    }
}

/// Which memory userfaultfd watches for which region: memory in the region's chunks. Regions that share a
/// chunk share what is watched there. When the last of them ends, so does the watch.
impl Locked<'_> {
    /// The first memory from `from` on in the chunks of an ending region that is watched, of those
    /// chunks that no other region needs. At most [`UNWATCH_AT_MOST`] bytes.
    pub fn unneeded(&self, id: Id, from: u64) -> Option<PageRange> {
        let region = self.regions().region(id);
        let chunks = region.page_range().extended(CHUNK);
        let mut part = PageRange::new(chunks.start.max(from), chunks.end);
        if !region.is_watched() || part.start >= part.end {
            return None;
        }
        self.regions().near(part, |other, region| {
            // A region that is not watched needs nothing. One that is not watched yet is not kept.
            if other == id || region.is_unwatching() || !region.is_watched() {
                return true;
            }
            // The regions come in the order of their addresses.
            let needed = region.page_range().extended(CHUNK);
            if needed.start > part.start {
                part.end = part.end.min(needed.start);
                return false;
            }
            part.start = part.start.max(needed.end);
            part.start < part.end
        });
        part.end = part.end.min(part.start.saturating_add(UNWATCH_AT_MOST));
        (part.start < part.end).then_some(part)
    }

    /// Memory of this range changes: invalidates the regions in it, and claims the idle ones. Returns
    /// how many were invalidated.
    pub fn change(&self, range: PageRange, cause: Cause) -> u64 {
        let mut invalidated = 0;
        self.regions().overlapping(range, |id, _| {
            invalidated += u64::from(self.invalidate(id, cause));
            self.evict(id);
            true
        });
        invalidated
    }

    /// The memory of this range that may be watched, unless it is so much that the kernel reports its
    /// change sooner than it stops watching it.
    pub fn watched_in(&self, range: PageRange) -> Option<PageRange> {
        let mut watched = None::<PageRange>;
        self.regions().near(range, |_, region| {
            let part = region.page_range().extended(CHUNK).common(range);
            if let Some(part) = part.filter(|_| region.is_watched()) {
                watched = Some(watched.map_or(part, |other| other.joined_with(part)));
            }
            true
        });
        watched.filter(|watched| watched.bytes() <= UNWATCH_AT_MOST)
    }

    /// Whether memory near a region stops being watched just now. Its own watch may be the one that
    /// ends.
    pub fn is_unwatching_near(&self, page_range: PageRange) -> bool {
        self.any(page_range.extended(CHUNK), Slot::is_unwatching)
    }

    /// The watch near an ending region has ended beside the registrations of new regions there,
    /// which may have lost theirs: no other registration may use them.
    pub fn invalidate_unkept_near(&self, id: Id) {
        let page_range = self.regions().region(id).page_range();
        self.regions().near(page_range, |other, region| {
            if !region.state.load().is_kept() {
                self.invalidate(other, Cause::Uncertain);
            }
            true
        });
    }
}
