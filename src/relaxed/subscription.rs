// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is watched for another library's registration cache.
//!
//! That library registers the memory itself and *subscribes* to it; before it uses an entry of its cache again
//! it asks whether the memory is still what it was. A subscription is a region of the pool that the kernel knows
//! nothing of: linked, watched and kept as any, with one user, which is the subscription itself, so that neither
//! linger nor watermark nor flush take it. The answer is the proof of a hit (`pool.rs`): the log applied, the
//! region not withdrawn, the fence, the log unchanged.
//!
//! The memory was pinned before it was linked here, unlike a region of ours. The two have one call of the
//! program around them, its registration: who changes memory while it is being registered has no order with it.
//!
//! **Why the answer holds for each entry.** The cache asks by range, and several of its domains may each have an
//! entry for one. So a range that was withdrawn stays so until *every* entry that it had is gone, by their
//! number: one more with each subscription, one less when the cache says that it has ended one, or must have
//! since the answer was no ([`Ended`]). An entry that ends unseen makes the number too large, and such a range
//! waits until the cache was notified of it, which ends them all. Where there is no room for a subscription,
//! no answer is yes until the cache has been notified of all memory.

use super::cleaner::now_ms;
use super::ending::{self, By};
use super::hit::{self, Miss};
use super::hull::Range;
use super::pool::{Cause, Locked, Pool};
use super::region::{Id, Purpose, Region, WATCHED_ONLY};
use super::word::Grant;
use super::{Instance, existing, start as first_use};
use crate::mr::bare;
use crate::thread;
use core::cell::Cell;
use core::sync::atomic::Ordering::*;

/// The most subscriptions at a time. A cache that says nothing of the entries that it ends leaves theirs behind.
const MOST: u32 = if cfg!(test) { 8 } else { 16_384 };

/// How the cache ends entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It unsubscribes, each time.
    Said,
    /// It never says so, but ends an entry when the answer for it is no.
    ByAnswer,
}

#[inline(always)]
fn purpose(addr: usize, length: usize) -> Option<Purpose> {
    let hull = Range::hull(addr as u64, length as u64)?;
    Some(Purpose {
        alone: false,
        pd: WATCHED_ONLY,
        hull,
        access: 0,
        exact: true,
    })
}

/// A hit that takes nothing.
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

/// Gets ready; false where nothing can be watched: userfaultfd is refused, or this is a child of a process that
/// had a pool.
pub fn start() -> bool {
    first_use::current().is_some_and(|relaxed| relaxed.watch.is_on())
}

/// The cache has an entry more, and will ask for it. True if it has something to be told. Nothing here waits for
/// the program, allocates for each call, or calls the cache: it may hold its lock.
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

/// Whether the memory of an entry is certain to be what it was when it was subscribed to.
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

/// The cache has an entry less.
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
        ending::leave(relaxed, &locked, id);
    }
}

/// The cache has no entry any more.
pub fn stop() {
    let Some(relaxed) = existing().filter(|_| !thread::is_inside()) else {
        return;
    };
    let _inside = thread::enter();
    let locked = relaxed.pool.lock();
    for (id, region) in relaxed.pool.subscriptions() {
        region.entries.store(0, Relaxed);
        if locked.has_left(id) {
            ending::leave(relaxed, &locked, id);
        }
    }
    relaxed.pool.subscriptions.know_all();
}

/// Tells the cache, by `notify`, of the memory that is withdrawn: it ends what it has there. Not called by the
/// cache, whose lock `notify` takes.
pub fn notify(mut notify: impl FnMut(Range)) {
    let Some(relaxed) = existing() else { return };
    let pool = relaxed.pool;
    let locked = |then: &dyn Fn(&Locked<'_>)| {
        let _inside = thread::enter();
        then(&pool.lock());
    };
    let left = |locked: &Locked<'_>, id| {
        if locked.has_left(id) {
            ending::leave(relaxed, locked, id);
        }
    };
    if pool.subscriptions.has_lost() {
        locked(&|locked| locked.all_leave());
        notify(EVERYTHING);
        locked(&|locked| {
            pool.subscriptions().for_each(|(id, _)| left(locked, id));
            // Unless one more was lost meanwhile.
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
    fn subscriptions(&self) -> impl Iterator<Item = (Id, &Region)> {
        self.each()
            .filter(|(_, region)| region.is_watched_only() && region.word.load().is_registered())
    }
}

/// What became of an entry that the cache has more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Added {
    /// There is a subscription already.
    Known,
    /// It is one that is linked now.
    Linked(Id),
    /// There is no room.
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

    /// True if that was the last one: the subscription is claimed, and the caller's to end.
    fn removes_entry(&self, id: Id) -> bool {
        let region = self.pool().region(id);
        // First those that are about to leave: to count one too many is safe.
        let entries = match region.leaving.load(Relaxed) {
            0 => &region.entries,
            _ => &region.leaving,
        };
        entries.store(entries.load(Relaxed).saturating_sub(1), Relaxed);
        self.claims_empty(id)
    }

    /// The entries that a withdrawn subscription has now will be gone after a notification of its memory.
    fn leaves(&self, id: Id) -> Option<Range> {
        let region = self.pool().region(id);
        // Looked at under the lock: the slot may have become another's.
        let withdrawn = region.is_watched_only() && region.word.load().is_stale();
        withdrawn.then(|| {
            let both = region.leaving.load(Relaxed) + region.entries.swap(0, Relaxed);
            region.leaving.store(both, Relaxed);
            region.hull()
        })
    }

    /// As `leaves`, of all subscriptions, which are withdrawn.
    fn all_leave(&self) {
        let subscriptions = &self.pool().subscriptions;
        subscriptions.all_leave();
        for (id, _) in self.pool().subscriptions() {
            self.withdraw(id, Cause::Pressure);
            self.leaves(id);
        }
    }

    /// The cache was notified. True if no entry is left: the subscription is claimed, and the caller's to end.
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
            region.cause.store(Cause::Flush as u32 + 1, Relaxed);
        }
        // Under one lock: nobody else claims it in between.
        region.word.release(Grant::Own);
        self.claim(id)
    }
}

const EVERYTHING: Range = Range {
    start: 0,
    end: u64::MAX,
};

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
        let watched = self.watch.watch(purpose.hull, neighbours);
        region.watched.store(ending::watched(watched), Relaxed);
        let watched = watched.is_ok() && !bare::is_fork_protected();
        let locked = self.lock_with_shared_memory(purpose.hull);
        let own = locked.shared_memory().at(purpose.hull).is_none();
        let certain = watched && own && !locked.may_be_dropping(purpose.hull, now_ms);
        if !certain || !locked.keep(id, false) {
            locked.withdraw(id, Cause::Fence);
        }
    }

    #[inline(always)]
    fn is_valid(&self, purpose: &Purpose) -> bool {
        let mut settled = true;
        while !self.pool.subscriptions.has_lost() {
            let found = hit::hit(&self.pool.changes, Find(self, purpose));
            match found {
                Ok(id) => return !self.watch.has_stamp() || self.is_stamped(id),
                Err(Miss::Unsettled(_)) if settled => settled = self.settle(),
                Err(Miss::None) if self.look_closer(purpose) => {}
                Err(_) => return false,
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! Against a naive cache of several domains, that says when it ends entries, or does not. Whatever happens, no
    //! entry is answered for whose memory has changed since it was made.

    use super::*;
    use crate::relaxed::changes::{Change, Kind};
    use crate::relaxed::hull::page_size;
    use proptest::prelude::*;
    use std::alloc::{Layout, alloc_zeroed};

    const DOMAINS: usize = 3;
    const PAGES: u64 = 2;

    #[derive(Clone, Debug)]
    enum Step {
        /// A domain registers some pages: an entry that is valid serves, else it is ended, and there is a new one.
        Register {
            domain: usize,
            first: u64,
            count: u64,
        },
        /// A domain ends an entry by itself.
        Evict {
            which: prop::sample::Index,
        },
        Change {
            page: u64,
        },
        /// The notification begins, with what is withdrawn now, and ends.
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

    struct Entry {
        domain: usize,
        hull: Range,
        /// What was there when it was made.
        memory: Vec<u64>,
    }

    struct World {
        pool: &'static Pool,
        ended: Ended,
        memory: [u64; PAGES as usize + 2],
        cache: Vec<Entry>,
        notification: Option<Vec<Range>>,
        hits: usize,
    }

    fn range(first: u64, count: u64) -> Range {
        let start = 0x7000_0000_0000 + first * page_size();
        Range {
            start,
            end: start + count * page_size(),
        }
    }

    fn purpose(hull: Range) -> Purpose {
        super::purpose(hull.start as usize, hull.bytes() as usize).unwrap()
    }

    impl World {
        fn memory_of(&self, hull: Range) -> Vec<u64> {
            let first = (hull.start / page_size() % 16) as usize;
            self.memory[first..first + hull.pages() as usize].to_vec()
        }

        fn is_valid(&self, hull: Range) -> bool {
            let pool = self.pool;
            pool.lock().apply(|| 0);
            !pool.subscriptions.has_lost() && pool.find(&purpose(hull)).is_some()
        }

        fn removes(&self, hull: Range) {
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

        fn registers(&mut self, domain: usize, hull: Range) {
            let of = |entry: &Entry| entry.domain == domain && entry.hull == hull;
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
            self.cache.push(Entry {
                domain,
                hull,
                memory,
            });
            let locked = self.pool.lock();
            locked.apply(|| 0);
            if let Added::Linked(id) = locked.adds_entry(&purpose(hull)) {
                assert!(locked.keep(id, false));
                self.pool.region(id).word.admit();
            }
        }

        fn changes(&mut self, page: u64) {
            self.memory[page as usize] += 1;
            let hull = range(page, 1);
            let changes = &self.pool.changes;
            changes.begin();
            changes.write(Change {
                start: hull.start,
                end: hull.end,
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
                vec![EVERYTHING]
            } else {
                let stale = pool.subscriptions();
                stale.filter_map(|(id, _)| locked.leaves(id)).collect()
            });
        }

        /// What the cache does when it is notified, and what is done after that.
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
                    let meant = hull == EVERYTHING || region.hull() == hull;
                    if meant && locked.has_left(id) {
                        locked.end(id);
                    }
                }
                if hull == EVERYTHING {
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
        // SAFETY: the pool is not empty.
        let memory = unsafe { alloc_zeroed(Layout::new::<Pool>()) };
        World {
            // SAFETY: all zeros is an empty pool; the test keeps the memory.
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
            // Told of all, the cache is served again: nothing is left behind for good.
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
