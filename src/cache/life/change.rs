// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work that the hook of an interposed memory call does for the cache. Before the real call the
//! hook invalidates the regions in the call's range, ends the idle ones, and stops watching their
//! memory: the kernel then has no event for the change, and the call need not wait for the reader.
//! After the call it invalidates the regions that were linked meanwhile. Until then the call is
//! *under way*, and no region in its range is kept. If the cache has no region there, the kernel's
//! event suffices: a reported call below 16 MiB does nothing, and every other call is counted.
//!
//! These functions run wherever the program or one of its libraries changes memory: in malloc, in
//! signal handlers, in forked children. They allocate nothing and look up no symbol. The one lock
//! that they take is the cache's, for which they wait 20 ms at most. They block all signals but faults
//! while they hold it, so that no signal handler can jump out of a call that holds the lock. Without
//! the lock they leave the change to the kernel's event, or record a loss, which invalidates every
//! region.

use crate::counted::CALLS;
use crate::ended::cache_gave_up;
use crate::instance::{Cache, existing};
use crate::life::ending::{self, in_blocked_call};
use crate::locked::By;
use crate::noted::Number;
use crate::region::slot::Cause;
use crate::released::memory_changes;
use crate::watch::calls::{self, TO_CACHE, TO_RANGES, listens};
use crate::watch::userfaultfd::keeps_apart;
use core::sync::atomic::{Ordering::*, fence};
use rdmamr_stats::counter;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::process::CountedCall;
use rdmamr_sys::signals::Blocked;
use rdmamr_sys::{memory, thread};

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    /// The kernel reports the change of memory that is watched.
    Reported,
    /// The kernel does not report the change, or may not.
    Unreported,
    /// Unreported, and the memory keeps its pages. So the cleaner may deregister the regions: a call
    /// that moves the memory of 12 000 regions would take ten times as long if it did.
    KeepsPages,
}

/// A change that is about to be made, of which the cache is told. It is over when this value is dropped.
pub struct CallUnderWay {
    range: PageRange,
    noted: Option<(&'static Cache, Number)>,
    /// `None` once the range is noted, unless the call takes long: a call that holds the kernel's mmap
    /// lock for milliseconds would make a registration nearby wait for its watch.
    counted: Option<CountedCall>,
    kind: CallKind,
    /// Until the end of the call, so that no handler leaves the call by siglongjmp(3), and none waits for
    /// its own thread. The kernel's calls on memory end by no signal but a fatal one, so a handler runs
    /// no later than without this. A fatal signal, such as SIGTERM without a handler, would come as late
    /// as the call lasts: over a call that may take long, signals are let in. (A handler that then leaves
    /// the call leaves its count behind, and the cache keeps no further region.) The last field: dropped
    /// after the rest, also by a panic. An mremap makes two changes; the second holds `None`, so signals
    /// stay blocked until the first is dropped.
    signals: Option<Blocked>,
}

const NOTHING: PageRange = PageRange { start: 0, end: 0 };

/// A call on this many bytes may hold the kernel's mmap lock for milliseconds.
const LONG: u64 = 16 << 20;

/// The page range around a range. An empty range, or one that runs past the end of the address
/// space, gives [`NOTHING`].
///
/// The kernel ignores the tag in an address where the processor has them (arm64's top byte, x86's
/// LAM), and no address of memory has such high bits.
fn pages(addr: usize, length: usize) -> PageRange {
    const TAG: u64 = 0xff << 56;
    PageRange::around(addr as u64 & !TAG, length as u64).unwrap_or(NOTHING)
}

/// This process's cache, if it must be told of changes: unless it has given up.
#[inline(always)]
fn told() -> Option<&'static Cache> {
    existing().filter(|_| !cache_gave_up())
}

/// The cache, if it may have a region in a range.
#[inline(always)]
fn meeting(range: PageRange) -> Option<&'static Cache> {
    told().filter(|cache| cache.regions.filter.may_hold(range))
}

/// A call is about to change memory, which the kernel reports. `None` if the cache need not be told. As
/// long as neither the cache nor the table of released ranges listens, this costs a load.
#[inline(always)]
pub fn changing(addr: usize, length: usize) -> Option<CallUnderWay> {
    if !listens(TO_CACHE | TO_RANGES) {
        return None;
    }
    if listens(TO_RANGES) {
        memory_changes(addr, length);
    }
    if !listens(TO_CACHE) {
        return None;
    }
    let Some(cache) = told() else {
        // The cache may be about to start, and to ask whether memory calls reach this library.
        calls::call_came(addr);
        return None;
    };
    let range = pages(addr, length);
    if !cache.regions.filter.may_hold(range) && range.bytes() < LONG {
        return None;
    }
    Some(begin(range, CallKind::Reported, Blocked::but_faults()))
}

/// A call is about to change memory in a way that userfaultfd does not report, such as guard pages.
///
/// A region may be linked in this memory after the check of the filter and before the call takes
/// effect, and could be reused before the call returns. So the call is counted even if the cache has
/// nothing there, or does not exist yet.
pub fn unreported(addr: usize, length: usize) -> CallUnderWay {
    begin(pages(addr, length), CallKind::Unreported, None)
}

/// As [`unreported`], for a call that changes the protection of memory.
pub fn protecting(addr: usize, length: usize) -> CallUnderWay {
    begin(pages(addr, length), CallKind::KeepsPages, None)
}

/// A call is about to move memory, `kept` bytes of it with their pages. It may stop watching the memory
/// ([`CallUnderWay::unwatch`]), so the kernel may not report it.
pub fn moving(addr: usize, length: usize, kept: usize) -> CallUnderWay {
    if listens(TO_RANGES) {
        memory_changes(addr, length);
    }
    match kept >= length {
        true => protecting(addr, length),
        false => unreported(addr, length),
    }
}

/// So many regions a call ends itself that leaves the others to the cleaner.
const FEW: usize = 64;

/// How often an interposed memory call waits, for 1 ms at most, for another thread that ends a region of
/// the memory.
const WAITS: u32 = 20;

/// A call is about to change memory: notes the range, invalidates the regions there, ends all evicted
/// regions, the idle ones there among them (many of them by the cleaner, if the pins may outlive the
/// call), and stops watching the memory. `None` if another task holds the lock: a garbage collector may
/// unmap memory while its signal handler has stopped all other threads. Also `None` if so many calls
/// are under way that no note is free.
fn before_change(cache: &Cache, range: PageRange, kind: CallKind) -> Option<Number> {
    let regions = cache.regions;
    let locked = regions.lock_by(By::Restricted)?;
    let noted = regions.noted.add(range)?;
    let invalidated = locked.change(range, Cause::Hook);
    drop(locked);
    cache.count_changed(By::Restricted, counter!(stale_avoided_hook), invalidated);
    let pins_stay = kind == CallKind::KeepsPages;
    let some = pins_stay && cache.cleaner.running.load(Relaxed);
    let most = if some { FEW } else { usize::MAX };
    ending::deregister_some_evicted(cache, By::Restricted, most);
    // Another thread may be ending a region of this memory.
    let waits = if pins_stay { 0 } else { WAITS };
    for _ in 0..waits {
        let is_ending = || {
            let locked = regions.lock_by(By::Restricted);
            locked.is_some_and(|locked| locked.is_ending(range))
        };
        if !regions.is_ending() || !is_ending() {
            break;
        }
        regions.wait_for_an_end();
    }
    // Ends the watch that regions in use, or regions nearby, still have in this range. The lock is free
    // meanwhile: no region there is kept while the range is noted.
    let locked = regions.lock_by(By::Restricted);
    let watched = locked.and_then(|locked| locked.watched_in(range));
    if let Some(watched) = watched {
        // If the kernel refuses, it has an event for the change.
        cache.watch.unwatch(watched);
    }
    Some(noted)
}

/// A call has changed memory: invalidates the regions that were linked there meanwhile.
fn after_change(cache: &Cache, range: PageRange, kind: CallKind) -> Option<()> {
    let invalidated = cache
        .regions
        .lock_by(By::Restricted)?
        .change(range, Cause::Hook);
    cache.count_changed(By::Restricted, counter!(stale_avoided_hook), invalidated);
    if invalidated > 0 {
        ending::deregister_evicted(cache, By::Restricted);
    }
    if kind == CallKind::KeepsPages {
        // Not before the call, which would wait for the kernel's mmap lock.
        cache.cleaner.wake();
    }
    Some(())
}

#[cold]
fn begin(range: PageRange, kind: CallKind, signals: Option<Blocked>) -> CallUnderWay {
    let mut under_way = CallUnderWay {
        range,
        noted: None,
        counted: Some(CALLS.begin()),
        kind,
        signals,
    };
    // Either this thread finds the region, or the thread that keeps it finds the count.
    fence(SeqCst);
    if let Some(cache) = meeting(range) {
        let noted = under_way.inside(cache, || before_change(cache, range, kind));
        under_way.noted = noted.map(|number| (cache, number));
        if under_way.noted.is_some() && range.bytes() < LONG {
            under_way.uncount();
        }
    }
    if range.bytes() >= LONG {
        under_way.signals = None;
    }
    under_way
}

impl CallUnderWay {
    /// Runs `body`, which takes the cache's lock, with the signals blocked. `body` returns `None` if it
    /// can do nothing: without the lock, or without a free note. Then the kernel's event suffices, if it
    /// comes; if not, all regions are invalidated. Preserves errno.
    fn inside<T>(&mut self, cache: &Cache, body: impl FnOnce() -> Option<T>) -> Option<T> {
        self.signals = self.signals.take().or_else(Blocked::but_faults);
        // A signal handler may have interrupted this thread inside the cache, or the cache itself
        // may free memory. Or the thread has too little stack, and gets no other one.
        let done = if thread::is_inside() {
            None
        } else {
            in_blocked_call(body).flatten()
        };
        if done.is_none() {
            // Once the range is noted, the memory may be watched no more: no event comes.
            if self.kind != CallKind::Reported || self.noted.is_some() {
                cache.regions.ring.lose();
            }
            // The cleaner ends the idle regions.
            cache.cleaner.wake();
        }
        done
    }

    fn uncount(&mut self) {
        if let Some(counted) = self.counted.take() {
            CALLS.end(&counted);
        }
    }
}

impl Drop for CallUnderWay {
    #[cold]
    fn drop(&mut self) {
        // A region may have been linked there since the call began.
        let range = self.range;
        if let Some(cache) = meeting(range) {
            let kind = self.kind;
            self.inside(cache, || after_change(cache, range, kind));
        }
        if let Some((cache, number)) = self.noted.take() {
            cache.regions.noted.remove(number);
        }
        self.uncount();
    }
}

impl CallUnderWay {
    /// Stops watching the memory, which must become a single mapping again. The regions there are
    /// invalidated, and those that are linked meanwhile will be. Returns true if some of it may have
    /// been watched. Preserves errno.
    #[cold]
    pub fn unwatch(&self) -> bool {
        let cache = told().filter(|_| self.range.start < self.range.end);
        let unwatch = |cache: &Cache| cache.watch.unwatch_moving(self.range);
        thread::keep_errno(|| cache.is_some_and(unwatch))
    }
}

/// Whether the cache may have a region near this memory.
pub fn is_near(addr: usize, length: usize) -> bool {
    meeting(pages(addr, length)).is_some()
}

/// Whether the kernel moves several mappings by one mremap(2).
pub fn several_can_move() -> bool {
    // The kernel does since Linux 6.17, and keeps userfaultfds apart since 6.16.
    told().is_some() && keeps_apart()
}

/// Whether the cache must be told of changes.
#[inline(always)]
pub fn are_wanted() -> bool {
    told().is_some()
}

/// A call is about to unregister memory from a userfaultfd. Its argument points to the range. Before
/// Linux 6.16 the kernel then also ends another userfaultfd's watch of the memory.
pub fn unregistering(argument: usize) -> Option<CallUnderWay> {
    told().filter(|_| !keeps_apart())?;
    // If the address is wrong, the kernel tells the caller.
    let [start, length] = memory::read(argument as u64).unwrap_or([0, u64::MAX / 2]);
    Some(unreported(start as usize, length as usize))
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use crate::counted;
    use crate::instance::tests::{in_a_child, publish_cache_of};
    use crate::model_tests::{new_cache, of_page};

    /// In a child, calls `check` with a cache and the range of its only region, which is kept.
    fn with_a_region(check: impl FnOnce(&Cache, PageRange, &dyn Fn() -> bool) -> bool) -> bool {
        in_a_child(|| {
            let (regions, lookup_key) = (new_cache(), of_page(0));
            publish_cache_of(regions);
            let made = regions.lock().make(&lookup_key);
            let kept = made.filter(|&id| regions.lock().keep(id));
            kept.zip(existing()).is_some_and(|(id, cache)| {
                let is_stale = || regions.region(id).state.load().is_stale();
                check(cache, lookup_key.page_range, &is_stale)
            })
        })
    }

    /// The region is invalidated before the kernel could end its watch, and none is kept there until
    /// the call has returned.
    #[test]
    fn an_unregistration_is_a_change() {
        assert!(!keeps_apart(), "as before Linux 6.16");
        assert!(with_a_region(|cache, range, is_stale| {
            let argument = [range.start, range.bytes()];
            let under_way = unregistering((&raw const argument).addr());
            let is_noted = || cache.regions.noted.overlap(range);
            let good = is_stale() && is_noted();
            drop(under_way);
            good && !is_noted()
        }));
    }

    /// The call has stopped the watch, so no event tells of a region that was linked meanwhile.
    #[test]
    fn a_call_that_gets_no_lock_afterwards_is_a_loss() {
        assert!(with_a_region(|cache, range, is_stale| {
            let under_way = begin(range, CallKind::Reported, None);
            let good = is_stale() && !cache.regions.ring.is_behind();
            let locked = cache.regions.lock();
            drop(under_way);
            drop(locked);
            good && cache.regions.ring.is_behind()
        }));
    }

    #[test]
    fn a_change_without_a_free_note_is_a_loss() {
        assert!(with_a_region(|cache, range, is_stale| {
            let regions = cache.regions;
            let elsewhere = PageRange::new(range.end, range.end + 1);
            while regions.noted.add(elsewhere).is_some() {}
            let under_way = unreported(range.start as usize, range.bytes() as usize);
            let good = counted::is_any() && regions.ring.is_behind();
            regions.lock().apply();
            drop(under_way);
            good && is_stale() && !counted::is_any()
        }));
    }
}
