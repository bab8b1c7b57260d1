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
use super::pool::{Cause, Locked};
use super::region::{Id, Purpose, Region, WATCHED_ONLY};
use super::word::Grant;
use super::{Instance, existing, start as pool};
use crate::mr::bare;
use crate::thread;
use core::sync::atomic::{AtomicU32, Ordering::*};

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

/// Values of [`Subscriptions::lost`].
const NOTHING: u32 = 0;
const LOST: u32 = 1;
const LEAVING: u32 = 2;

/// What the pool knows of its subscriptions together. All zeros is none.
#[repr(C)]
pub struct Subscriptions {
    /// How many there are.
    count: AtomicU32,
    /// How many of them are withdrawn.
    withdrawn: AtomicU32,
    /// Whether the cache has an entry without a subscription.
    lost: AtomicU32,
}

impl Subscriptions {
    /// Counts those that are withdrawn. Under the pool's lock.
    pub fn withdrawn(&self, more: i32) {
        let now = self.withdrawn.load(Relaxed).wrapping_add_signed(more);
        self.withdrawn.store(now, Relaxed);
    }

    fn counted(&self, more: i32) {
        let now = self.count.load(Relaxed).wrapping_add_signed(more);
        self.count.store(now, Relaxed);
    }

    fn lose(&self) {
        self.lost.store(LOST, SeqCst);
    }

    fn has_lost(&self) -> bool {
        self.lost.load(SeqCst) != NOTHING
    }

    /// Whether the cache has something to be told.
    fn is_due(&self) -> bool {
        self.withdrawn.load(Relaxed) > 0 || self.has_lost()
    }
}

#[inline(always)]
fn purpose(addr: usize, length: usize) -> Option<Purpose> {
    let hull = Range::hull(addr as u64, length as u64)?;
    Some(Purpose {
        pd: WATCHED_ONLY,
        hull,
        access: 0,
        exact: true,
    })
}

/// Gets ready; false where nothing can be watched: userfaultfd is refused, or this is a child of a process that
/// had a pool.
pub fn start() -> bool {
    pool::current().is_some_and(|relaxed| relaxed.watch.is_on())
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
    if let Some(id) = locked.subscription(purpose.hull) {
        let region = relaxed.pool.region(id);
        // First those that are about to leave: to count one too many is safe.
        let entries = match region.leaving.load(Relaxed) {
            0 => &region.entries,
            _ => &region.leaving,
        };
        entries.store(entries.load(Relaxed).saturating_sub(1), Relaxed);
        relaxed.end_if_empty(&locked, id);
    }
}

/// The cache has no entry any more.
pub fn stop() {
    let Some(relaxed) = existing().filter(|_| !thread::is_inside()) else {
        return;
    };
    let _inside = thread::enter();
    let locked = relaxed.pool.lock();
    for (id, region) in subscriptions(relaxed) {
        region.entries.store(0, Relaxed);
        region.leaving.store(0, Relaxed);
        relaxed.end_if_empty(&locked, id);
    }
    relaxed.pool.subscriptions.lost.store(NOTHING, SeqCst);
}

/// Tells the cache, by `notify`, of the memory that is withdrawn: it ends what it has there. Not called by the
/// cache, whose lock `notify` takes.
pub fn notify(mut notify: impl FnMut(Range)) {
    let Some(relaxed) = existing() else { return };
    let lost = &relaxed.pool.subscriptions.lost;
    if lost.compare_exchange(LOST, LEAVING, SeqCst, SeqCst).is_ok() {
        relaxed.each_leaves();
        notify(EVERYTHING);
        relaxed.each_left();
        // Unless one more was lost meanwhile.
        let _ = lost.compare_exchange(LEAVING, NOTHING, SeqCst, SeqCst);
    }
    for (id, region) in subscriptions(relaxed) {
        if region.word.load().is_stale()
            && let Some(hull) = relaxed.leaves(id)
        {
            // The cache may unsubscribe meanwhile, in this thread or in another.
            notify(hull);
            relaxed.left(hull);
        }
    }
}

fn subscriptions(relaxed: &Instance) -> impl Iterator<Item = (Id, &Region)> {
    let each = relaxed.pool.each();
    each.filter(|(_, region)| region.is_watched_only() && region.word.load().is_registered())
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
        if let Some(id) = locked.subscription(purpose.hull) {
            let entries = &pool.region(id).entries;
            entries.store(entries.load(Relaxed) + 1, Relaxed);
            return;
        }
        let full = pool.subscriptions.count.load(Relaxed) >= MOST;
        let Some(id) = (!full).then(|| locked.make(purpose)).flatten() else {
            pool.subscriptions.lose();
            return;
        };
        pool.subscriptions.counted(1);
        let region = pool.region(id);
        region.entries.store(1, Relaxed);
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
            let found = hit::hit(
                &self.pool.changes,
                || self.pool.find(purpose),
                || !self.watch.must_fence() || self.is_fenced(),
            );
            match found {
                Ok(id) => return !self.watch.has_stamp() || self.is_stamped(id),
                Err(Miss::Unsettled(_)) if settled => settled = self.settle(),
                Err(Miss::None) if self.look_closer(purpose) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Ends a subscription that no entry is left of.
    fn end_if_empty(&self, locked: &Locked<'_>, id: Id) {
        let region = self.pool.region(id);
        if region.entries.load(Relaxed) + region.leaving.load(Relaxed) > 0 {
            return;
        }
        let subscriptions = &self.pool.subscriptions;
        subscriptions.counted(-1);
        if region.word.load().is_stale() {
            subscriptions.withdrawn(-1);
        } else {
            region.cause.store(Cause::Flush as u32 + 1, Relaxed);
        }
        // Under one lock: nobody else claims it in between.
        region.word.release(Grant::Own);
        if locked.claim(id) {
            ending::leave(self, locked, id);
        }
    }

    /// The entries that a withdrawn subscription has now will be gone after a notification of its memory.
    fn leaves(&self, id: Id) -> Option<Range> {
        let _inside = thread::enter();
        let _locked = self.pool.lock();
        let region = self.pool.region(id);
        // Looked at under the lock: the slot may have become another's.
        let withdrawn = region.is_watched_only() && region.word.load().is_stale();
        withdrawn.then(|| {
            leaves(region);
            region.hull()
        })
    }

    /// The cache was notified of that memory.
    fn left(&self, hull: Range) {
        let _inside = thread::enter();
        let locked = self.pool.lock();
        if let Some(id) = locked.subscription(hull) {
            self.has_left(&locked, id);
        }
    }

    /// As `leaves`, of all subscriptions, which are withdrawn.
    fn each_leaves(&self) {
        let _inside = thread::enter();
        let locked = self.pool.lock();
        for (id, region) in subscriptions(self) {
            locked.withdraw(id, Cause::Pressure);
            leaves(region);
        }
    }

    /// As `left`, of all memory.
    fn each_left(&self) {
        let _inside = thread::enter();
        let locked = self.pool.lock();
        for (id, _) in subscriptions(self) {
            self.has_left(&locked, id);
        }
    }

    fn has_left(&self, locked: &Locked<'_>, id: Id) {
        self.pool.region(id).leaving.store(0, Relaxed);
        self.end_if_empty(locked, id);
    }
}

fn leaves(region: &Region) {
    let both = region.leaving.load(Relaxed) + region.entries.swap(0, Relaxed);
    region.leaving.store(both, Relaxed);
}
