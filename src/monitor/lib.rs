// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the library's cache watches for libfabric's registration cache.
//!
//! libfabric registers the memory itself and *subscribes* to it. Before it uses an entry of its
//! cache again, it asks whether the memory is still the same. The subscriptions are a separate set
//! (`set.rs`). The library's cache, in this crate "the cache", watches each as a monitored range.
//! The answer rests on the proof of a hit (`docs/proof.md`, P6): the ring is applied, the monitored
//! range is not invalidated, the fence passes, the ring is unchanged.
//!
//! Unlike memory of the cache's own regions, this memory is pinned before it is linked here. One
//! call of the program, its registration, encloses both steps: a change of memory during its
//! registration is concurrent with it.
//!
//! # Why the answer holds for each entry
//!
//! libfabric asks by range, and each of its domains may have an entry for the same range. An
//! invalidated range therefore stays invalidated until *every* entry that it had is gone. The
//! monitor counts the entries: one more with each subscription; one less when libfabric
//! unsubscribes, or must have ended an entry because the answer was no: `fabric/monitor.rs` knows
//! which, and unsubscribes then. An entry that
//! ends without either leaves the count too large. Such a range waits until libfabric has been
//! notified of it, which ends all entries of the range. If a subscription finds no room, no answer
//! is yes until libfabric has been notified of all memory.

mod set;

use rdmamr_cache::instance::{Cache, existing};
use rdmamr_cache::life::ending;
use rdmamr_cache::life::hit::{self, Miss};
use rdmamr_cache::locked::{By, Locked};
use rdmamr_cache::region::slot::{Cause, Id};
use rdmamr_cache::start as first_use;
use rdmamr_cache::watch::userfaultfd::Fence;
use rdmamr_mr::kernel_mr;
use rdmamr_stats::log;
use rdmamr_sys::allocator::zeroed;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::process::PerProcess;
use rdmamr_sys::thread;
use set::Set;
use std::alloc::{Layout, handle_alloc_error};

static SET: PerProcess<Set> = PerProcess::new();

fn new_set() -> Box<Set> {
    // SAFETY: zeros are an empty set.
    unsafe { zeroed() }.unwrap_or_else(|| handle_alloc_error(Layout::new::<Set>()))
}

/// The subscriptions of this process, and the cache that watches them.
#[derive(Clone, Copy)]
struct Monitor {
    cache: &'static Cache,
    set: &'static Set,
}

#[inline(always)]
fn monitor() -> Option<Monitor> {
    Some(Monitor {
        cache: existing()?,
        set: SET.get()?,
    })
}

/// The monitor, and the pages of an entry of libfabric's.
#[inline(always)]
fn monitored(addr: usize, length: usize) -> Option<(Monitor, PageRange)> {
    monitor().zip(PageRange::around(addr as u64, length as u64))
}

/// Starts the cache if necessary. False if nothing can be watched: userfaultfd is refused, or this
/// process is the child of one that had a cache.
pub fn start() -> bool {
    let starts = first_use::current().is_some_and(|cache| cache.watch.is_on());
    if starts {
        let _inside = thread::enter();
        SET.get_or_make(new_set);
    }
    starts
}

/// Counts a new entry of libfabric's, about which libfabric will ask. True if libfabric must be
/// notified of something. This function never waits for the program, allocates no memory per call,
/// and does not call libfabric, since its caller may hold libfabric's lock.
pub fn subscribe(addr: usize, length: usize) -> bool {
    let Some((monitor, page_range)) = monitored(addr, length) else {
        return false;
    };
    if thread::is_inside() {
        monitor.set.lose();
        return true;
    }
    let _inside = thread::enter();
    monitor.subscribe(page_range);
    monitor.set.is_due(monitor.cache.regions)
}

/// Whether the memory of an entry is certain to be the same as when libfabric subscribed to it.
pub fn is_valid(addr: usize, length: usize) -> bool {
    let is_valid = |(monitor, page_range): (Monitor, _)| monitor.is_valid(page_range);
    !thread::is_inside() && monitored(addr, length).is_some_and(is_valid)
}

/// Uncounts an entry of libfabric's.
pub fn unsubscribe(addr: usize, length: usize) {
    if let Some((monitor, page_range)) = monitored(addr, length).filter(|_| !thread::is_inside()) {
        let _inside = thread::enter();
        // An entry that stays counted can only turn an answer into no, never into yes.
        if let Some(locked) = monitor.cache.regions.lock_by(By::Program) {
            let id = monitor.set.get(&locked, page_range);
            if let Some(id) = id.filter(|&id| monitor.set.removes_entry(&locked, id)) {
                monitor.end(&locked, id);
            }
        }
    }
}

/// Ends all subscriptions: libfabric has no entry any more.
pub fn stop() {
    let Some(monitor) = monitor().filter(|_| !thread::is_inside()) else {
        return;
    };
    let ended = monitor.locked(|locked| {
        for (id, _) in set::each(locked.regions()) {
            monitor.set.forget(locked, id);
            monitor.end(locked, id);
        }
        monitor.set.know_all();
    });
    if ended.is_none() {
        monitor.set.lose();
    }
}

/// Tells libfabric, through `notify`, which memory is invalidated; libfabric then ends its entries
/// there. libfabric's own calls must not run this function, since `notify` takes libfabric's lock.
pub fn notify(mut notify: impl FnMut(PageRange)) {
    let Some(monitor) = monitor() else { return };
    let (regions, set) = (monitor.cache.regions, monitor.set);
    let left = |locked: &Locked<'_>, id| {
        if set.has_left(locked, id) {
            monitor.end(locked, id);
        }
    };
    if set.has_lost() {
        if monitor.locked(|locked| set.all_leave(locked)).is_none() {
            return;
        }
        notify(PageRange::ALL);
        monitor.locked(|locked| {
            set::each(regions).for_each(|(id, _)| left(locked, id));
            // This has no effect if another subscription was lost meanwhile.
            set.found();
        });
    }
    for (id, region) in set::each(regions) {
        if !region.state.load().is_stale() {
            continue;
        }
        if let Some(Some(page_range)) = monitor.locked(|locked| set.entries_leave(locked, id)) {
            // libfabric may unsubscribe meanwhile, in this thread or in another.
            notify(page_range);
            monitor.locked(|locked| {
                if let Some(id) = set.get(locked, page_range) {
                    left(locked, id);
                }
            });
        }
    }
}

/// A hit that takes no region.
struct Find<'a>(&'a Monitor, PageRange);

impl hit::Steps for Find<'_> {
    type Taken = Id;

    #[inline(always)]
    fn must_fence(&self) -> bool {
        self.0.cache.watch.must_fence()
    }

    #[inline(always)]
    fn look(&self) -> bool {
        self.take().is_some()
    }

    #[inline(always)]
    fn take(&self) -> Option<Id> {
        self.0.set.find(self.0.cache.regions, self.1)
    }

    #[inline(always)]
    fn fence(&self) -> bool {
        self.0.cache.watch.fence() == Fence::Passed
    }

    fn refused(&self) {
        self.0.cache.refused_by_fence();
    }
}

impl Monitor {
    /// Does this with the lock. `None` if the lock cannot be had.
    fn locked<R>(&self, then: impl FnOnce(&Locked<'_>) -> R) -> Option<R> {
        let _inside = thread::enter();
        let locked = self.cache.regions.lock_patiently(By::Program)?;
        Some(then(&locked))
    }

    fn subscribe(&self, page_range: PageRange) {
        let cache = self.cache;
        let Some(locked) = cache.lock_to_link(page_range) else {
            self.set.lose();
            return;
        };
        cache.apply(&locked, By::Program);
        let Some(id) = self.set.adds_entry(&locked, page_range) else {
            return;
        };
        drop(locked);
        let watched = cache.watch_memory(id).is_ok()
            && cache.watch.is_private(page_range).is_ok()
            && !kernel_mr::is_fork_protected();
        let Some(locked) = cache.lock_and_apply() else {
            // The range is not kept, so no answer for it is yes, and libfabric is told to end the
            // entry.
            self.set.lose();
            return;
        };
        let certain = watched && cache.is_certain(&locked, page_range);
        if !certain || !locked.keep(id) {
            locked.invalidate(id, Cause::Uncertain);
        }
        drop(locked);
        log::write_waiting();
    }

    #[inline(always)]
    fn is_valid(&self, page_range: PageRange) -> bool {
        /// How often the answer is asked again because of an event.
        const AGAIN: u32 = 3;
        let mut unsettled = 0;
        while !self.set.has_lost() {
            match hit::in_order(&self.cache.regions.ring, Find(self, page_range)) {
                Ok(_) => return true,
                Err(Miss::Unsettled(_)) if unsettled < AGAIN && self.cache.catch_up() => {
                    unsettled += 1
                }
                Err(_) => return false,
            }
        }
        false
    }

    /// Ends a subscription that has left the set.
    fn end(&self, locked: &Locked<'_>, id: Id) {
        ending::end_watch_and_free(self.cache, locked, id);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! Runs the monitor with a naive model of libfabric's cache of several domains, which
    //! unsubscribes when it ends entries, or does not. The answer is never yes for an entry whose
    //! memory has changed since the entry was made.

    use super::*;
    use proptest::prelude::*;
    use rdmamr_cache::regions::Regions;
    use rdmamr_cache::watch::ring::{Event, Kind};
    use rdmamr_sys::pages::page_size;
    use std::alloc::alloc_zeroed;

    const DOMAINS: usize = 3;
    const PAGES: u64 = 2;

    /// How the monitor learns that libfabric has ended an entry.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Ended {
        /// libfabric unsubscribes each time.
        Said,
        /// libfabric does not unsubscribe, but ends an entry when the answer for it is no.
        ByAnswer,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A domain registers some pages. A valid entry serves; an invalid one is ended and a new
        /// one made.
        Register {
            domain: usize,
            first: u64,
            count: u64,
        },
        /// A domain ends an entry on its own.
        Evict {
            which: prop::sample::Index,
        },
        Change {
            page: u64,
        },
        /// The notification begins, with the ranges that are invalidated now, and ends.
        Begin,
        End,
        /// A subscription is refused.
        Lose,
        Stop,
    }

    fn step() -> impl Strategy<Value = Step> {
        let register =
            (0..DOMAINS, 0..PAGES, 1..3u64).prop_map(|(domain, first, count)| Step::Register {
                domain,
                first,
                count,
            });
        prop_oneof![
            24 => register,
            2 => any::<prop::sample::Index>().prop_map(|which| Step::Evict { which }),
            6 => (0..PAGES).prop_map(|page| Step::Change { page }),
            4 => Just(Step::Begin),
            4 => Just(Step::End),
            1 => Just(Step::Lose),
            1 => Just(Step::Stop),
        ]
    }

    struct CacheEntry {
        domain: usize,
        page_range: PageRange,
        /// The page numbers when the entry was made.
        memory: Vec<u64>,
    }

    struct World {
        regions: &'static Regions,
        set: Box<Set>,
        ended: Ended,
        memory: [u64; PAGES as usize + 2],
        entries_of_cache: Vec<CacheEntry>,
        notification: Option<Vec<PageRange>>,
        hits: usize,
    }

    fn range(first: u64, count: u64) -> PageRange {
        let start = 0x7000_0000_0000 + first * page_size();
        PageRange {
            start,
            end: start + count * page_size(),
        }
    }

    impl World {
        fn memory_of(&self, page_range: PageRange) -> Vec<u64> {
            let first = (page_range.start / page_size() % 16) as usize;
            self.memory[first..first + page_range.pages() as usize].to_vec()
        }

        fn is_valid(&self, page_range: PageRange) -> bool {
            self.regions.lock().apply();
            !self.set.has_lost() && self.set.find(self.regions, page_range).is_some()
        }

        fn removes(&self, page_range: PageRange) {
            let locked = self.regions.lock();
            if let Some(id) = self.set.get(&locked, page_range) {
                if self.set.removes_entry(&locked, id) {
                    locked.free(id);
                }
            }
        }

        /// libfabric ends an entry.
        fn ends(&mut self, n: usize) {
            let entry = self.entries_of_cache.remove(n);
            if self.ended == Ended::Said {
                self.removes(entry.page_range);
            }
        }

        fn registers(&mut self, domain: usize, page_range: PageRange) {
            let of = |entry: &CacheEntry| entry.domain == domain && entry.page_range == page_range;
            if let Some(n) = self.entries_of_cache.iter().position(of) {
                if self.is_valid(page_range) {
                    assert_eq!(
                        self.entries_of_cache[n].memory,
                        self.memory_of(page_range),
                        "stale"
                    );
                    self.hits += 1;
                    return;
                }
                if self.ended == Ended::ByAnswer {
                    self.removes(page_range);
                }
                self.ends(n);
            }
            let memory = self.memory_of(page_range);
            self.entries_of_cache.push(CacheEntry {
                domain,
                page_range,
                memory,
            });
            let locked = self.regions.lock();
            locked.apply();
            if let Some(id) = self.set.adds_entry(&locked, page_range) {
                assert!(locked.keep(id));
            }
        }

        fn changes(&mut self, page: u64) {
            self.memory[page as usize] += 1;
            let page_range = range(page, 1);
            let ring = &self.regions.ring;
            ring.announce();
            ring.write(Event {
                range: page_range,
                kind: Kind::Changed,
            });
            ring.finish();
        }

        fn begins(&mut self) {
            if self.notification.is_some() {
                return;
            }
            let (regions, set) = (self.regions, &self.set);
            let locked = regions.lock();
            locked.apply();
            self.notification = Some(if set.has_lost() {
                set.all_leave(&locked);
                vec![PageRange::ALL]
            } else {
                let leave = |(id, _)| set.entries_leave(&locked, id);
                set::each(regions).filter_map(leave).collect()
            });
        }

        /// libfabric ends the entries that it is notified of, and the monitor then ends their
        /// subscriptions.
        fn is_notified(&mut self) {
            for page_range in self.notification.take().unwrap_or_default() {
                while let Some(n) = self
                    .entries_of_cache
                    .iter()
                    .position(|entry| entry.page_range.overlaps(page_range))
                {
                    self.ends(n);
                }
                let locked = self.regions.lock();
                for (id, region) in set::each(self.regions) {
                    let meant = page_range == PageRange::ALL || region.page_range() == page_range;
                    if meant && self.set.has_left(&locked, id) {
                        locked.free(id);
                    }
                }
                if page_range == PageRange::ALL {
                    self.set.found();
                }
            }
        }

        fn goes(&mut self, step: &Step) {
            match *step {
                Step::Register {
                    domain,
                    first,
                    count,
                } => self.registers(domain, range(first, count)),
                Step::Evict { ref which } if !self.entries_of_cache.is_empty() => {
                    self.ends(which.index(self.entries_of_cache.len()));
                }
                Step::Evict { .. } => {}
                Step::Change { page } => self.changes(page),
                Step::Begin => self.begins(),
                Step::End => self.is_notified(),
                Step::Lose => self.set.lose(),
                Step::Stop => {
                    while !self.entries_of_cache.is_empty() {
                        self.ends(0);
                    }
                    let locked = self.regions.lock();
                    for (id, _) in set::each(self.regions) {
                        self.set.forget(&locked, id);
                        locked.free(id);
                    }
                    self.set.know_all();
                }
            }
        }
    }

    fn world(ended: Ended) -> World {
        // SAFETY: `Regions` has a non-zero size.
        let memory = unsafe { alloc_zeroed(Layout::new::<Regions>()) };
        World {
            // SAFETY: the memory has the layout of a `Regions`, for which all zeros is an empty
            // cache, and the test never frees it.
            regions: unsafe { &*memory.cast::<Regions>() },
            set: new_set(),
            ended,
            memory: [0; PAGES as usize + 2],
            entries_of_cache: Vec::new(),
            notification: None,
            hits: 0,
        }
    }

    proptest! {
        #[test]
        fn no_entry_is_answered_for_that_is_stale(
            steps in prop::collection::vec(step(), 1..120),
            said: bool,
        ) {
            let mut world = world(if said { Ended::Said } else { Ended::ByAnswer });
            for step in &steps {
                world.goes(step);
            }
            // After it has been notified of all memory, libfabric is served again: nothing stays
            // invalidated for good.
            for _ in 0..3 {
                world.begins();
                world.is_notified();
            }
            let hits = world.hits;
            for _ in 0..3 {
                world.registers(0, range(0, 1));
                world.begins();
                world.is_notified();
            }
            prop_assert!(world.hits > hits);
            if said {
                prop_assert_eq!(world.set.entries(world.regions) as usize, world.entries_of_cache.len());
            }
        }
    }
}
