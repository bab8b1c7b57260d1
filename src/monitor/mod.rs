// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the pool watches for another library's registration cache.
//!
//! That library registers the memory itself and *subscribes* to it. Before it uses an entry of its
//! cache again, it asks whether the memory is still the same. A subscription is a region of the
//! pool that the kernel does not know. It is linked, watched and kept like any other. Its one user
//! is the subscription itself, so that neither linger nor watermark nor flush end it. The answer
//! rests on the proof of a hit (`docs/proof.md`): the log is applied, the region is not withdrawn, the
//! fence passes, the log is unchanged.
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

use crate::mr::bare;
use crate::pool::Instance;
use crate::pool::existing;
use crate::pool::life::cleaner::now_ms;
use crate::pool::life::ending::{self, By};
use crate::pool::life::hit::{self, Miss};
use crate::pool::life::miss::Look;
use crate::pool::locked::Locked;
use crate::pool::region::word::Grant;
use crate::pool::region::{Id, PoolRegion, Purpose, WATCHED_ONLY};
use crate::pool::start as first_use;
use crate::pool::state::{Cause, Pool};
use crate::sys::pages::PageRange;
use crate::sys::thread;
use core::cell::Cell;
use core::sync::atomic::Ordering::*;

/// The most subscriptions at a time. A cache that does not say which entries it ends leaves their
/// subscriptions behind.
const MOST: u32 = if cfg!(test) { 8 } else { 16_384 };

/// How the pool learns that the cache ends an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The cache unsubscribes each time.
    Said,
    /// The cache never says so, but ends an entry when the answer for it is no.
    ByAnswer,
}

#[inline(always)]
fn purpose(addr: usize, length: usize) -> Option<Purpose> {
    let hull = PageRange::hull(addr as u64, length as u64)?;
    Some(Purpose {
        alone: false,
        pd: WATCHED_ONLY,
        hull,
        access: 0,
        exact: true,
    })
}

/// A hit that takes no region.
struct Find<'a>(&'a Instance, &'a Purpose);

impl hit::Steps for Find<'_> {
    type Taken = Id;

    #[inline(always)]
    fn take(&self) -> Option<Id> {
        self.0.pool.find(self.1)
    }

    #[inline(always)]
    fn fence(&self) -> bool {
        self.0.no_event_in_flight()
    }
}

/// Starts the pool if necessary. False if nothing can be watched: userfaultfd is refused, or this
/// process is the child of one that had a pool.
pub fn start() -> bool {
    first_use::current().is_some_and(|relaxed| relaxed.watch.is_on())
}

/// Counts a new entry of the cache, for which the cache will ask. True if the cache must be
/// notified of something. This function never waits for the program, allocates no memory per call,
/// and does not call the cache, since its caller may hold the cache's lock.
pub fn subscribe(addr: usize, length: usize) -> bool {
    let (Some(relaxed), Some(purpose)) = (existing(), purpose(addr, length)) else {
        return false;
    };
    if thread::is_inside() {
        relaxed.pool.subscriptions.lose();
        return true;
    }
    let _inside = thread::enter();
    relaxed.subscribe(&purpose);
    relaxed.pool.subscriptions.is_due()
}

/// Whether the memory of an entry is certain to be the same as when the cache subscribed to it.
pub fn is_valid(addr: usize, length: usize, ended: Ended) -> bool {
    let (Some(relaxed), Some(purpose)) = (existing(), purpose(addr, length)) else {
        return false;
    };
    let valid = !thread::is_inside() && relaxed.is_valid(&purpose);
    if !valid && ended == Ended::ByAnswer {
        unsubscribe(addr, length);
    }
    valid
}

/// Uncounts an entry of the cache.
pub fn unsubscribe(addr: usize, length: usize) {
    let (Some(relaxed), Some(purpose)) = (existing(), purpose(addr, length)) else {
        return;
    };
    if thread::is_inside() {
        return;
    }
    let _inside = thread::enter();
    let locked = relaxed.pool.lock();
    if let Some(id) = locked.subscription(purpose.hull)
        && locked.removes_entry(id)
    {
        ending::leave(relaxed, &locked, id, By::Program);
    }
}

/// Ends all subscriptions: the cache has no entry any more.
pub fn stop() {
    let Some(relaxed) = existing().filter(|_| !thread::is_inside()) else {
        return;
    };
    let _inside = thread::enter();
    let locked = relaxed.pool.lock();
    for (id, region) in relaxed.pool.subscriptions() {
        region.entries.store(0, Relaxed);
        if locked.has_left(id) {
            ending::leave(relaxed, &locked, id, By::Program);
        }
    }
    relaxed.pool.subscriptions.know_all();
}

/// Tells the cache, through `notify`, which memory is withdrawn; the cache then ends its entries
/// there. The cache must not call this function, since `notify` takes its lock.
pub fn notify(mut notify: impl FnMut(PageRange)) {
    let Some(relaxed) = existing() else { return };
    let pool = relaxed.pool;
    let locked = |then: &dyn Fn(&Locked<'_>)| {
        let _inside = thread::enter();
        then(&pool.lock());
    };
    let left = |locked: &Locked<'_>, id| {
        if locked.has_left(id) {
            ending::leave(relaxed, locked, id, By::Program);
        }
    };
    if pool.subscriptions.has_lost() {
        locked(&|locked| locked.all_leave());
        notify(PageRange::ALL);
        locked(&|locked| {
            pool.subscriptions().for_each(|(id, _)| left(locked, id));
            // No effect if another subscription was lost meanwhile.
            pool.subscriptions.found();
        });
    }
    for (id, region) in pool.subscriptions() {
        let hull = Cell::new(None);
        if region.word.load().is_stale() {
            locked(&|locked| hull.set(locked.leaves(id)));
        }
        if let Some(hull) = hull.get() {
            // The cache may unsubscribe meanwhile, in this thread or in another.
            notify(hull);
            locked(&|locked| {
                if let Some(id) = locked.subscription(hull) {
                    left(locked, id);
                }
            });
        }
    }
}

impl Pool {
    fn subscriptions(&self) -> impl Iterator<Item = (Id, &PoolRegion)> {
        self.each()
            .filter(|(_, region)| region.is_watched_only() && region.word.load().is_registered())
    }
}

/// What became of a new entry of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Added {
    /// A subscription exists already.
    Known,
    /// A subscription was linked for the entry.
    Linked(Id),
    /// No room was left for a subscription.
    Lost,
}

/// The account of the cache's entries.
impl Locked<'_> {
    fn adds_entry(&self, purpose: &Purpose) -> Added {
        let pool = self.pool();
        if let Some(id) = self.subscription(purpose.hull) {
            let entries = &pool.region(id).entries;
            entries.store(entries.load(Relaxed) + 1, Relaxed);
            return Added::Known;
        }
        let full = pool.subscriptions.count() >= MOST;
        let Some(id) = (!full).then(|| self.make(purpose)).flatten() else {
            pool.subscriptions.lose();
            return Added::Lost;
        };
        pool.subscriptions.counted(1);
        pool.region(id).entries.store(1, Relaxed);
        Added::Linked(id)
    }

    /// Uncounts an entry. True if it was the last one: the subscription is claimed, and the caller
    /// must end it.
    fn removes_entry(&self, id: Id) -> bool {
        let region = self.pool().region(id);
        // Entries that are about to leave are uncounted first: a count that is too large is safe.
        let entries = match region.leaving.load(Relaxed) {
            0 => &region.entries,
            _ => &region.leaving,
        };
        entries.store(entries.load(Relaxed).saturating_sub(1), Relaxed);
        self.claims_empty(id)
    }

    /// Marks the present entries of a withdrawn subscription as leaving: they will be gone once the
    /// cache has been notified of the memory. Returns that memory.
    fn leaves(&self, id: Id) -> Option<PageRange> {
        let region = self.pool().region(id);
        // Checked under the lock: the slot may have become another region's.
        let withdrawn = region.is_watched_only() && region.word.load().is_stale();
        withdrawn.then(|| {
            let both = region.leaving.load(Relaxed) + region.entries.swap(0, Relaxed);
            region.leaving.store(both, Relaxed);
            region.hull()
        })
    }

    /// Withdraws all subscriptions and marks their entries as leaving.
    fn all_leave(&self) {
        let subscriptions = &self.pool().subscriptions;
        subscriptions.all_leave();
        for (id, _) in self.pool().subscriptions() {
            self.withdraw(id, Cause::Pressure);
            self.leaves(id);
        }
    }

    /// Uncounts the leaving entries, since the cache has been notified. True if no entry is left:
    /// the subscription is claimed, and the caller must end it.
    fn has_left(&self, id: Id) -> bool {
        self.pool().region(id).leaving.store(0, Relaxed);
        self.claims_empty(id)
    }

    fn claims_empty(&self, id: Id) -> bool {
        let region = self.pool().region(id);
        if region.entries.load(Relaxed) + region.leaving.load(Relaxed) > 0 {
            return false;
        }
        let subscriptions = &self.pool().subscriptions;
        subscriptions.counted(-1);
        if region.word.load().is_stale() {
            subscriptions.withdrawn(-1);
        } else {
            region.cause.store(Cause::Flush.in_word(), Relaxed);
        }
        // The lock is held throughout, so no other thread claims the region between the two steps.
        region.word.release(Grant::Own);
        self.claim(id)
    }
}

impl Instance {
    fn subscribe(&self, purpose: &Purpose) {
        let pool = self.pool;
        let locked = pool.lock();
        self.apply(&locked, By::Program);
        let Added::Linked(id) = locked.adds_entry(purpose) else {
            return;
        };
        let region = pool.region(id);
        drop(locked);
        let neighbours = pool.filter.has_many_neighbours(purpose.hull);
        let claim = |extent| region.claim_extent(extent);
        let watched = self.watch.watch(purpose.hull, neighbours, claim);
        let watched = watched.is_ok() && !bare::is_fork_protected();
        let (locked, foreign) = self.lock_and_look(purpose.hull);
        let certain = watched && !foreign && !locked.may_be_dropping(purpose.hull, now_ms);
        if !certain || !locked.keep(id) {
            locked.withdraw(id, Cause::Fence);
        }
    }

    #[inline(always)]
    fn is_valid(&self, purpose: &Purpose) -> bool {
        let mut settled = true;
        while !self.pool.subscriptions.has_lost() {
            let found = hit::in_order(&self.pool.changes, purpose.hull, Find(self, purpose));
            match found {
                Ok(_) => return true,
                Err(Miss::Unsettled(_)) if settled => {
                    settled = self.settle(purpose.hull);
                }
                Err(Miss::None) if self.look_closer(purpose) == Look::Again => {}
                Err(_) => return false,
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! Compares the pool with a naive cache of several domains, which says when it ends entries, or
    //! does not. Whatever happens, the answer is never yes for an entry whose memory has changed
    //! since the entry was made.

    use super::*;
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

    fn purpose(hull: PageRange) -> Purpose {
        super::purpose(hull.start as usize, hull.bytes() as usize).unwrap()
    }

    impl World {
        fn memory_of(&self, hull: PageRange) -> Vec<u64> {
            let first = (hull.start / page_size() % 16) as usize;
            self.memory[first..first + hull.pages() as usize].to_vec()
        }

        fn is_valid(&self, hull: PageRange) -> bool {
            let pool = self.pool;
            pool.lock().apply(|| 0);
            !pool.subscriptions.has_lost() && pool.find(&purpose(hull)).is_some()
        }

        fn removes(&self, hull: PageRange) {
            let locked = self.pool.lock();
            if let Some(id) = locked.subscription(hull)
                && locked.removes_entry(id)
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
            if let Added::Linked(id) = locked.adds_entry(&purpose(hull)) {
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
            let pool = self.pool;
            let locked = pool.lock();
            locked.apply(|| 0);
            self.notification = Some(if pool.subscriptions.has_lost() {
                locked.all_leave();
                vec![PageRange::ALL]
            } else {
                let stale = pool.subscriptions();
                stale.filter_map(|(id, _)| locked.leaves(id)).collect()
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
                for (id, region) in self.pool.subscriptions() {
                    let meant = hull == PageRange::ALL || region.hull() == hull;
                    if meant && locked.has_left(id) {
                        locked.end(id);
                    }
                }
                if hull == PageRange::ALL {
                    self.pool.subscriptions.found();
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
                Step::Lose => self.pool.subscriptions.lose(),
                Step::Stop => {
                    while !self.cache.is_empty() {
                        self.ends(0);
                    }
                    let locked = self.pool.lock();
                    for (id, region) in self.pool.subscriptions() {
                        region.entries.store(0, Relaxed);
                        if locked.has_left(id) {
                            locked.end(id);
                        }
                    }
                    self.pool.subscriptions.know_all();
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
                let entries = world.pool.subscriptions().map(|(_, region)| region.entries.load(Relaxed));
                prop_assert_eq!(entries.sum::<u32>() as usize, world.cache.len());
            }
        }
    }
}
