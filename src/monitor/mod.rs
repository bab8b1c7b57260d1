// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the pool watches for another library's registration cache.
//!
//! That library registers the memory itself and *subscribes* to it. Before it uses an entry of its
//! cache again, it asks whether the memory is still the same. The subscriptions are a set of their
//! own (`set.rs`). The pool watches each as a guest. The answer rests on the proof of a hit
//! (`docs/proof.md`): the log is applied, the guest is not withdrawn, the fence passes, the log is
//! unchanged.
//!
//! Unlike memory of the pool's own regions, this memory is pinned before it is linked here. One
//! call of the program, its registration, encloses both steps: a change of memory during its
//! registration is concurrent with it.
//!
//! # Why the answer holds for each entry
//!
//! The cache asks by range, and each of its domains may have an entry for the same range. A
//! withdrawn range therefore stays withdrawn until *every* entry that it had is gone. The pool
//! counts the entries: one more with each subscription; one less when the cache says that it has
//! ended an entry, or must have ended one because the answer was no ([`Ended`]). An entry that ends
//! unseen leaves the count too large. Such a range waits until the cache has been notified of it,
//! which ends all entries of the range. If a subscription finds no room, no answer is yes until the
//! cache has been notified of all memory.

mod set;

use crate::mr::bare;
use crate::pool::Instance;
use crate::pool::existing;
use crate::pool::life::change;
use crate::pool::life::cleaner::{self, now_ms};
use crate::pool::life::ending::{self, By};
use crate::pool::life::hit::{self, Miss};
use crate::pool::life::miss::Look;
use crate::pool::locked::Locked;
use crate::pool::region::Id;
use crate::pool::start as first_use;
use crate::pool::state::Cause;
use crate::report::log;
use crate::sys::pages::PageRange;
use crate::sys::process::PerProcess;
use crate::sys::thread;
use crate::watch::Fence;
use core::cell::Cell;
use set::{Added, Set};

/// How the pool learns that the cache ends an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The cache unsubscribes each time.
    Said,
    /// The cache never says so, but ends an entry when the answer for it is no.
    ByAnswer,
}

static SET: PerProcess<Set> = PerProcess::new();

unsafe extern "C" fn forget() {
    SET.forget();
}

fn new_set() -> Box<Set> {
    // SAFETY: all zeros is an empty set.
    unsafe { Box::<Set>::new_zeroed().assume_init() }
}

/// The subscriptions of this process, and the pool that watches them.
#[derive(Clone, Copy)]
struct Monitor {
    relaxed: &'static Instance,
    set: &'static Set,
}

#[inline(always)]
fn monitor() -> Option<Monitor> {
    Some(Monitor {
        relaxed: existing()?,
        set: SET.get()?,
    })
}

#[inline(always)]
fn hull(addr: usize, length: usize) -> Option<PageRange> {
    PageRange::hull(addr as u64, length as u64)
}

/// Starts the pool if necessary. False if nothing can be watched: userfaultfd is refused, or this
/// process is the child of one that had a pool.
pub fn start() -> bool {
    let starts = first_use::current().is_some_and(|relaxed| relaxed.watch.is_on());
    if starts {
        let _inside = thread::enter();
        SET.get_or_make(new_set, forget);
    }
    starts
}

/// Counts a new entry of the cache, for which the cache will ask. True if the cache must be
/// notified of something. This function never waits for the program, allocates no memory per call,
/// and does not call the cache, since its caller may hold the cache's lock.
pub fn subscribe(addr: usize, length: usize) -> bool {
    let (Some(monitor), Some(hull)) = (monitor(), hull(addr, length)) else {
        return false;
    };
    if thread::is_inside() {
        monitor.set.lose();
        return true;
    }
    let _inside = thread::enter();
    monitor.subscribe(hull);
    monitor.set.is_due(monitor.relaxed.pool)
}

/// Whether the memory of an entry is certain to be the same as when the cache subscribed to it.
pub fn is_valid(addr: usize, length: usize, ended: Ended) -> bool {
    let (Some(monitor), Some(hull)) = (monitor(), hull(addr, length)) else {
        return false;
    };
    let valid = !thread::is_inside() && monitor.is_valid(hull);
    if !valid && ended == Ended::ByAnswer {
        unsubscribe(addr, length);
    }
    valid
}

/// Uncounts an entry of the cache.
pub fn unsubscribe(addr: usize, length: usize) {
    let (Some(monitor), Some(hull)) = (monitor(), hull(addr, length)) else {
        return;
    };
    if thread::is_inside() {
        return;
    }
    let _inside = thread::enter();
    // An entry that stays counted only makes an answer no. It never makes one yes.
    let Some(locked) = monitor.relaxed.pool.lock_of_program() else {
        return;
    };
    if let Some(id) = monitor.set.get(&locked, hull)
        && monitor.set.removes_entry(&locked, id)
    {
        monitor.end(&locked, id);
    }
}

/// Ends all subscriptions: the cache has no entry any more.
pub fn stop() {
    let Some(monitor) = monitor().filter(|_| !thread::is_inside()) else {
        return;
    };
    let _inside = thread::enter();
    let pool = monitor.relaxed.pool;
    let Some(locked) = pool.lock_patiently() else {
        monitor.set.lose();
        return;
    };
    for (id, _) in set::each(pool) {
        monitor.set.forget(&locked, id);
        monitor.end(&locked, id);
    }
    monitor.set.know_all();
}

/// Tells the cache, through `notify`, which memory is withdrawn; the cache then ends its entries
/// there. The cache must not call this function, since `notify` takes its lock.
pub fn notify(mut notify: impl FnMut(PageRange)) {
    let Some(monitor) = monitor() else { return };
    let (pool, set) = (monitor.relaxed.pool, monitor.set);
    let locked = |then: &dyn Fn(&Locked<'_>)| {
        let _inside = thread::enter();
        let locked = pool.lock_patiently();
        if let Some(locked) = &locked {
            then(locked);
        }
        locked.is_some()
    };
    let left = |locked: &Locked<'_>, id| {
        if set.has_left(locked, id) {
            monitor.end(locked, id);
        }
    };
    if set.has_lost() {
        if !locked(&|locked| set.all_leave(locked)) {
            return;
        }
        notify(PageRange::ALL);
        locked(&|locked| {
            set::each(pool).for_each(|(id, _)| left(locked, id));
            // No effect if another subscription was lost meanwhile.
            set.found();
        });
    }
    for (id, region) in set::each(pool) {
        let hull = Cell::new(None);
        if region.word.load().is_stale() {
            locked(&|locked| hull.set(set.entries_leave(locked, id)));
        }
        if let Some(hull) = hull.get() {
            // The cache may unsubscribe meanwhile, in this thread or in another.
            notify(hull);
            locked(&|locked| {
                if let Some(id) = set.get(locked, hull) {
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
        self.0.relaxed.watch.must_fence()
    }

    #[inline(always)]
    fn look(&self) -> bool {
        self.take().is_some()
    }

    #[inline(always)]
    fn take(&self) -> Option<Id> {
        self.0.set.find(self.0.relaxed.pool, self.1)
    }

    #[inline(always)]
    fn fence(&self) -> bool {
        self.0.relaxed.watch.fence() == Fence::Passed
    }

    fn refused(&self) {
        self.0.relaxed.refused_by_fence();
    }
}

impl Monitor {
    fn subscribe(&self, hull: PageRange) {
        let (relaxed, pool) = (self.relaxed, self.relaxed.pool);
        let Some(locked) = pool.lock_of_program() else {
            self.set.lose();
            return;
        };
        relaxed.apply(&locked, By::Program);
        let Added::Linked(id) = self.set.adds_entry(&locked, hull) else {
            return;
        };
        let region = pool.region(id);
        drop(locked);
        cleaner::start_reader(relaxed);
        relaxed.mind_mappings();
        let neighbours = pool.filter.has_many_neighbours(hull);
        let claim = |extent| region.claim_extent(extent);
        let watched = relaxed.watch.watch(hull, neighbours, claim);
        let watched = watched.is_ok() && !bare::is_fork_protected();
        let Some((locked, foreign)) = relaxed.lock_and_look(hull, false) else {
            // It is not kept, so no answer for it is yes; and the cache is told to end it.
            self.set.lose();
            return;
        };
        let announced = !change::is_unannounced();
        let certain = watched && announced && !foreign && !locked.may_be_dropping(hull, now_ms);
        if !certain || !locked.keep(id) {
            locked.withdraw(id, Cause::Fence);
        }
        drop(locked);
        log::write_waiting();
    }

    #[inline(always)]
    fn is_valid(&self, hull: PageRange) -> bool {
        let mut settled = true;
        while !self.set.has_lost() {
            match hit::in_order(&self.relaxed.pool.changes, hull, Find(self, hull)) {
                Ok(_) => return true,
                Err(Miss::Unsettled(_)) if settled => {
                    settled = self.relaxed.settle(hull);
                }
                Err(Miss::None) if self.look_closer(hull) == Look::Again => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Looks for a subscription that is not admitted yet: this is the first question for it.
    #[cold]
    fn look_closer(&self, hull: PageRange) -> Look {
        let _inside = thread::enter();
        let Some(locked) = self.relaxed.pool.lock_of_program() else {
            return Look::Uncertain;
        };
        let id = self.set.get(&locked, hull);
        match id.and_then(|id| locked.unadmitted(id)) {
            Some(new) => self.relaxed.look_at_memory(locked, new),
            None => Look::Nothing,
        }
    }

    /// Ends a subscription that has left the set.
    fn end(&self, locked: &Locked<'_>, id: Id) {
        ending::leave(self.relaxed, locked, id, By::Program);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! Compares the pool with a naive cache of several domains, which says when it ends entries, or
    //! does not. Whatever happens, the answer is never yes for an entry whose memory has changed
    //! since the entry was made.

    use super::*;
    use crate::pool::state::Pool;
    use crate::sys::pages::page_size;
    use crate::watch::log::{Change, Kind};
    use proptest::prelude::*;
    use std::alloc::{Layout, alloc_zeroed};

    const DOMAINS: usize = 3;
    const PAGES: u64 = 2;

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
        /// The notification begins, with the ranges that are withdrawn now, and ends.
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
        hull: PageRange,
        /// The page numbers when the entry was made.
        memory: Vec<u64>,
    }

    struct World {
        pool: &'static Pool,
        set: Box<Set>,
        ended: Ended,
        memory: [u64; PAGES as usize + 2],
        cache: Vec<CacheEntry>,
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
        fn memory_of(&self, hull: PageRange) -> Vec<u64> {
            let first = (hull.start / page_size() % 16) as usize;
            self.memory[first..first + hull.pages() as usize].to_vec()
        }

        fn is_valid(&self, hull: PageRange) -> bool {
            self.pool.lock().apply(|| 0);
            !self.set.has_lost() && self.set.find(self.pool, hull).is_some()
        }

        fn removes(&self, hull: PageRange) {
            let locked = self.pool.lock();
            if let Some(id) = self.set.get(&locked, hull)
                && self.set.removes_entry(&locked, id)
            {
                locked.end(id);
            }
        }

        /// The cache ends an entry.
        fn ends(&mut self, n: usize) {
            let entry = self.cache.remove(n);
            if self.ended == Ended::Said {
                self.removes(entry.hull);
            }
        }

        fn registers(&mut self, domain: usize, hull: PageRange) {
            let of = |entry: &CacheEntry| entry.domain == domain && entry.hull == hull;
            if let Some(n) = self.cache.iter().position(of) {
                if self.is_valid(hull) {
                    assert_eq!(self.cache[n].memory, self.memory_of(hull), "stale");
                    self.hits += 1;
                    return;
                }
                if self.ended == Ended::ByAnswer {
                    self.removes(hull);
                }
                self.ends(n);
            }
            let memory = self.memory_of(hull);
            self.cache.push(CacheEntry {
                domain,
                hull,
                memory,
            });
            let locked = self.pool.lock();
            locked.apply(|| 0);
            if let Added::Linked(id) = self.set.adds_entry(&locked, hull) {
                assert!(locked.keep(id));
                self.pool.region(id).word.admit();
            }
        }

        fn changes(&mut self, page: u64) {
            self.memory[page as usize] += 1;
            let hull = range(page, 1);
            let changes = &self.pool.changes;
            changes.begin();
            changes.write(Change {
                range: hull,
                kind: Kind::Called,
            });
            changes.end();
        }

        fn begins(&mut self) {
            if self.notification.is_some() {
                return;
            }
            let (pool, set) = (self.pool, &self.set);
            let locked = pool.lock();
            locked.apply(|| 0);
            self.notification = Some(if set.has_lost() {
                set.all_leave(&locked);
                vec![PageRange::ALL]
            } else {
                let leave = |(id, _)| set.entries_leave(&locked, id);
                set::each(pool).filter_map(leave).collect()
            });
        }

        /// The cache ends the entries that it is notified of, and the pool then ends their
        /// subscriptions.
        fn is_notified(&mut self) {
            for hull in self.notification.take().unwrap_or_default() {
                while let Some(n) = self
                    .cache
                    .iter()
                    .position(|entry| entry.hull.overlaps(hull))
                {
                    self.ends(n);
                }
                let locked = self.pool.lock();
                for (id, region) in set::each(self.pool) {
                    let meant = hull == PageRange::ALL || region.hull() == hull;
                    if meant && self.set.has_left(&locked, id) {
                        locked.end(id);
                    }
                }
                if hull == PageRange::ALL {
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
                Step::Evict { ref which } if !self.cache.is_empty() => {
                    self.ends(which.index(self.cache.len()));
                }
                Step::Evict { .. } => {}
                Step::Change { page } => self.changes(page),
                Step::Begin => self.begins(),
                Step::End => self.is_notified(),
                Step::Lose => self.set.lose(),
                Step::Stop => {
                    while !self.cache.is_empty() {
                        self.ends(0);
                    }
                    let locked = self.pool.lock();
                    for (id, _) in set::each(self.pool) {
                        self.set.forget(&locked, id);
                        locked.end(id);
                    }
                    self.set.know_all();
                }
            }
        }
    }

    fn world(ended: Ended) -> World {
        // SAFETY: `Pool` has a non-zero size.
        let memory = unsafe { alloc_zeroed(Layout::new::<Pool>()) };
        World {
            // SAFETY: the memory has the layout of a `Pool`, for which all zeros is an empty pool,
            // and the test never frees it.
            pool: unsafe { &*memory.cast::<Pool>() },
            set: new_set(),
            ended,
            memory: [0; PAGES as usize + 2],
            cache: Vec::new(),
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
            // After it has been notified of all memory the cache is served again: nothing stays
            // withdrawn for good.
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
                prop_assert_eq!(world.set.entries(world.pool) as usize, world.cache.len());
            }
        }
    }
}
