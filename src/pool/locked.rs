// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a thread does to the pool's regions while it holds the lock: it makes them, keeps them,
//! applies the log to them, claims and ends them.

use super::life::account::Amount;
use super::life::admission::Foreign;
use super::lock::Held;
use super::region::word::Grant;
use super::region::{Domain, Id, PoolRegion, Purpose};
use super::state::{Batch, Cause, Pool};
use crate::sys::pages::PageRange;
use crate::watch::log::{Change, Kind};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// The pool while its lock is held.
pub struct Locked<'a>(&'a Pool, #[allow(dead_code)] Held<'a>);

impl<'a> Locked<'a> {
    pub(super) fn new(pool: &'a Pool, held: Held<'a>) -> Locked<'a> {
        Locked(pool, held)
    }
}

/// A search in the index gives up after this many regions.
const LOOK_AT_MOST: u32 = 64;

/// At most this many regions begin at one page, of those that only one registration may use at a
/// time. A program may register the same page 100 000 times, and each such region would lengthen
/// the search for an idle one.
const CROWD: u32 = 32;

/// A region that is kept and not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct New {
    id: Id,
    pub hull: PageRange,
    /// Its number among those that were kept.
    pub kept: u64,
}

/// Adds to a number that changes only under the lock, and so needs no locked instruction.
fn add(number: &AtomicU64, amount: u64) {
    number.store(number.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// What applying the log did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Regions withdrawn from reuse, by an interposed call and by an event.
    pub by_hook: u64,
    pub by_event: u64,
    /// userfaultfd reports nothing any more.
    pub lost: bool,
}

impl New {
    /// Its slot.
    pub fn id(&self) -> Id {
        self.id
    }
}

impl Locked<'_> {
    pub fn pool(&self) -> &Pool {
        self.0
    }

    /// Makes a region: links it, with one user. `None`: no slot is free.
    pub fn make(&self, purpose: &Purpose) -> Option<Id> {
        let id = self.link(purpose.hull, |region| {
            region.set(purpose.hull, purpose.domain, purpose.access);
            region.word.make();
        })?;
        self.0.account.add(purpose.hull);
        Some(id)
    }

    /// Links memory that is to be watched and is no region: a guest. `None`: no slot is free.
    pub fn make_guest(&self, hull: PageRange) -> Option<Id> {
        self.link(hull, |region| {
            region.set(hull, Domain::NONE, 0);
            region.word.make_guest();
        })
    }

    fn link(&self, hull: PageRange, make: impl FnOnce(&PoolRegion)) -> Option<Id> {
        let pool = self.0;
        if hull.pages() > u64::from(u32::MAX) {
            return None;
        }
        let id = pool.pop()?;
        pool.changes.link();
        make(pool.region(id));
        pool.index.add(&*pool.slots, id);
        pool.filter.add(hull);
        Some(id)
    }

    /// Keeps the region, or the guest; false if its memory has changed since it was linked. Other
    /// registrations can take the region once it is admitted.
    pub fn keep(&self, id: Id) -> bool {
        let pool = self.0;
        let region = pool.region(id);
        add(&pool.kept, 1);
        region.kept.store(self.kept(), Relaxed);
        let kept = region.word.keep();
        if kept && !region.word.load().is_guest() {
            self.add_entry(region.pd(), region.hull().start, id);
        }
        kept
    }

    /// Adds an entry to the table. A hit that still has the shape of the table before this looks
    /// there: that table is filled anew at the next call at the earliest.
    fn add_entry(&self, pd: u64, start: u64, id: Id) {
        let pool = self.0;
        pool.table.add(pool.slots(), pd, start, id);
        pool.shape.store(pool.table.shape(), Release);
    }

    /// The number of the region that was kept last.
    pub fn kept(&self) -> u64 {
        self.0.kept.load(Relaxed)
    }

    /// Whether [`CROWD`] regions begin at this page, so that no further one should be made.
    pub fn is_crowded(&self, start: u64) -> bool {
        let pool = self.0;
        let page = PageRange {
            start,
            end: start + 1,
        };
        let mut count = 0;
        pool.index.overlapping(&*pool.slots, page, |_, region| {
            count += u32::from(region.hull().start == start);
            count < CROWD
        });
        count == CROWD
    }

    /// A region that would serve if it were admitted.
    pub fn new_region(&self, purpose: &Purpose) -> Option<New> {
        let pool = self.0;
        let (mut found, mut looked_at) = (None, 0);
        pool.index
            .overlapping(&*pool.slots, purpose.hull, |id, region| {
                let seen = region.word.load();
                if !seen.is_guest() && purpose.may_share(seen) && region.serves(purpose) {
                    found = self.unadmitted(id);
                }
                looked_at += 1;
                found.is_none() && looked_at < LOOK_AT_MOST
            });
        found
    }

    /// The region or guest in a slot, if it is not admitted yet.
    pub fn unadmitted(&self, id: Id) -> Option<New> {
        let region = self.0.region(id);
        region.word.load().is_new().then(|| New {
            id,
            hull: region.hull(),
            kept: region.kept.load(Relaxed),
        })
    }

    fn is_new(&self, new: New) -> bool {
        self.unadmitted(new.id) == Some(new)
    }

    /// Lets other registrations take a region whose memory was found to be the process's own after
    /// the region was kept (`admission.rs`). False if the region has gone meanwhile.
    pub fn admit(&self, new: New) -> bool {
        let admitted = self.is_new(new);
        if admitted {
            self.0.region(new.id).word.admit();
        }
        admitted
    }

    /// Withdraws a region whose memory can change unseen.
    pub fn refuse(&self, new: New) {
        if self.is_new(new) {
            self.withdraw(new.id, Cause::Fence);
            self.doom(new.id);
        }
    }

    /// Takes, for one more user, a region that serves though it begins at another page. The table
    /// remembers the region for that first page.
    pub fn take(&self, purpose: &Purpose) -> Option<(Id, Grant)> {
        let pool = self.0;
        let (mut taken, mut looked_at) = (None, 0);
        pool.index
            .overlapping(&*pool.slots, purpose.hull, |id, region| {
                if region.serves(purpose) {
                    taken = pool.take_this(id, purpose);
                }
                looked_at += 1;
                taken.is_none() && looked_at < LOOK_AT_MOST
            });
        if let Some((id, _)) = taken {
            self.add_entry(purpose.domain.pd, purpose.hull.start, id);
        }
        taken
    }

    /// Whether a region that overlaps a range is being ended.
    pub fn is_ending(&self, range: PageRange) -> bool {
        let mut found = false;
        self.0.overlapping(range, |_, region| {
            found = region.word.load().is_ending();
            !found
        });
        found
    }

    /// Withdraws a region from reuse, or a guest. True if it was not withdrawn before.
    pub fn withdraw(&self, id: Id, cause: Cause) -> bool {
        let region = self.0.region(id);
        let seen = region.word.load();
        if !(seen.is_registered() || seen.is_guest()) || !region.word.withdraw() {
            return false;
        }
        region.cause.store(cause.in_word(), Relaxed);
        if seen.is_guest() {
            add(&self.0.changed_guests, 1);
        }
        true
    }

    /// Applies the log: withdraws the regions whose memory has changed, and claims the idle ones of
    /// them.
    pub fn apply(&self, now: impl Fn() -> u64) -> Applied {
        let pool = self.0;
        let mut applied = Applied::default();
        let mut last = None;
        pool.changes.apply(|change| {
            // A call records its change before and after. Under the lock nothing can have happened
            // between two equal records.
            if change == last && change.is_some() {
                return;
            }
            last = change;
            let change = change.unwrap_or_else(|| {
                // One of the lost records may have said that pages are about to be dropped.
                pool.dropping.add(PageRange::ALL, now());
                Change {
                    range: PageRange::ALL,
                    kind: Kind::Reported,
                }
            });
            self.apply_one(change, &mut applied, &now);
        });
        applied
    }

    fn apply_one(&self, change: Change, applied: &mut Applied, now: &impl Fn() -> u64) {
        let pool = self.0;
        let range = change.range;
        match change.kind {
            Kind::Called | Kind::Reported => {}
            Kind::Dropping => pool.dropping.add(range, now()),
            Kind::Lost => applied.lost = true,
        }
        let event = change.kind != Kind::Called;
        if matches!(change.kind, Kind::Reported | Kind::Lost) {
            self.lose_memory(range, range, |_| {});
        }
        let cause = if event { Cause::Event } else { Cause::Hook };
        pool.overlapping(range, |id, region| {
            if self.withdraw(id, cause) {
                applied.by_event += u64::from(event);
                applied.by_hook += u64::from(!event);
            }
            if self.doom(id) {
                add(&pool.doomed_bytes, region.hull().bytes());
            }
            true
        });
    }

    /// Whether userfaultfd reported, so recently that it may not have happened yet, that pages of
    /// this range are about to be dropped.
    pub fn may_be_dropping(&self, range: PageRange, now: impl Fn() -> u64) -> bool {
        self.0.dropping.is_at(range, now)
    }

    /// Claims a region if it has no user, and queues it: the next thread to call
    /// [`Pool::next_doomed`] deregisters it.
    pub fn doom(&self, id: Id) -> bool {
        let claimed = self.claim(id);
        if claimed {
            self.0.ends_later(id);
        }
        claimed
    }

    /// Claims a region if it has no user. The caller must deregister it.
    pub fn claim(&self, id: Id) -> bool {
        self.0.claim(id)
    }

    /// Claims a region, unless the slot is a later region's by now.
    pub fn claim_generation(&self, id: Id, generation: u32) -> bool {
        let is_same = self.0.region(id).word.load().generation() == generation;
        // Slots become regions under the lock.
        is_same && self.claim(id)
    }

    /// Claims the regions of the batch that are still idle and that `which` selects, for the given
    /// cause. The others leave the batch.
    pub fn claim_those(
        &self,
        batch: &mut Batch,
        cause: Cause,
        mut which: impl FnMut(&PoolRegion) -> bool,
    ) {
        batch.retain(|id| self.claim_idle(id, cause, &mut which));
    }

    /// Claims a region for the given cause if it is idle and `which` selects it.
    fn claim_idle(&self, id: Id, cause: Cause, which: impl FnOnce(&PoolRegion) -> bool) -> bool {
        let region = self.0.region(id);
        let seen = region.word.load();
        if !(seen.is_unused() && which(region) && self.claim(id)) {
            return false;
        }
        // A spent region would have ended anyway, by the thread that has just released it.
        if !seen.is_spent() {
            let _ = region
                .cause
                .compare_exchange(0, cause.in_word(), Relaxed, Relaxed);
            self.0.account.give_back(region.hull());
        }
        true
    }

    /// Goes on with the count of the idle regions, by `slots` slots. If more is idle than the limit
    /// allows, claims idle regions that were not released at the time `now` of the pool's clock,
    /// until the batch is full. Returns true if the count has come to its end.
    pub fn count_idle(&self, slots: u32, batch: &mut Batch, now: u32) -> bool {
        let account = &self.0.account;
        let first = account.next();
        let mut idle = Amount::default();
        let mut looked_at = 0;
        for (id, region) in self.0.each_from(Id(first)).take(slots as usize) {
            looked_at += 1;
            let seen = region.word.load();
            if !seen.is_unused() || seen.is_spent() {
                continue;
            }
            let old = |region: &PoolRegion| region.released.load(Relaxed) != now;
            if account.is_over() && !batch.is_full() && self.claim_idle(id, Cause::Watermark, old) {
                batch.push(id);
            } else {
                idle = idle + Amount::of(region.hull());
            }
        }
        account.go_on_at(first + looked_at, idle);
        let at_end = looked_at < slots;
        if at_end {
            account.end_count();
        }
        at_end
    }

    /// Claims a region that was just released, since too much is idle, if it is still idle.
    pub fn claim_released(&self, id: Id) -> bool {
        let region = self.0.region(id);
        let seen = region.word.load();
        let claimed = seen.is_unused() && !seen.is_spent() && self.claim(id);
        if claimed {
            let _ = region
                .cause
                .compare_exchange(0, Cause::Watermark.in_word(), Relaxed, Relaxed);
            self.0.account.take_back(region.hull());
        }
        claimed
    }

    /// Frees the slot of a claimed region that has been deregistered, of a new region whose
    /// registration failed, or of a guest.
    pub fn end(&self, id: Id) {
        let pool = self.0;
        let region = pool.region(id);
        let hull = region.hull();
        pool.index.remove(&*pool.slots, id);
        pool.filter.remove(hull);
        let seen = region.word.load();
        if !seen.is_guest() {
            pool.table.remove(region.pd(), hull.start, id);
            pool.account.remove(hull);
        } else if seen.is_stale() {
            add(&pool.changed_guests, u64::MAX);
        }
        region.word.free();
        pool.push(id);
        if seen.is_ending() {
            self.0.claim_ended();
        }
    }

    /// Takes back the claim on a region that could not be deregistered. The region is not used
    /// again.
    pub fn restore(&self, id: Id) {
        self.0.region(id).word.restore();
        self.0.claim_ended();
    }

    /// What is known of memory that can change unseen.
    pub fn foreign(&self) -> &Foreign {
        &self.0.foreign
    }
}

/// Why a region of the pool ends, if the cause is known.
pub fn cause(region: &PoolRegion) -> Option<Cause> {
    Cause::from_word(region.cause.load(Relaxed))
}
