// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regions that are kept: who may use one again, and when it must end.
//!
//! **Why no interleaving hands out a stale translation.** A region is *linked* (found by its address, under
//! the lock) before its memory is watched, watched before it is pinned, pinned before it is *kept*, and unlinked
//! only after it is deregistered. So every change of its memory after the pin comes upon a linked, watched
//! region, and each change is either an interposed call, which is under way in the log from before the real call
//! until it is written down for the last time, or one that userfaultfd sees: the kernel counts that one as in
//! flight from before the mapping goes until its event is read, and the monitor is under way in the log from
//! before the read until it is written down. A hit does, in this order: (1) all that is written in the log is
//! applied; (2) the region is taken, by one compare-and-swap that fails if its word changed since it was looked
//! at; (3) the fence: the kernel has no event in flight; (4) nothing is under way, and nothing has been written
//! since (1). Suppose that a change has taken effect before the program makes the call that hits. If it was
//! written down for the last time before (1), it has been applied, so the region was withdrawn before (1)
//! returned, and (2) fails. If not, then as an interposed call it is still under way at (4), or has been written
//! since (1), and the hit is refused; as one that userfaultfd sees, its event is unread at (3), and the hit is
//! refused, or it has been read before (3), and then the monitor is under way at (4) or has written since (1).
//! Withdrawing sets a bit that nothing clears while the region lives. A change that has not taken effect has no
//! order with the hit: it may be taken as later, and the next hit sees it. The region's *word* has one owner for
//! each step (`word.rs`): the one whose compare-and-swap succeeds; the generation in it keeps an old look from
//! taking a new region. Its other fields are written by the maker alone, before `keep` (release), and read
//! after the word (acquire). The index, the table's entries, shared memory and the applying of the log belong to
//! who holds the lock; readers of the table take hints only. Deregistering is outside the lock, by the one who
//! claimed, when nobody uses the region and nobody can take it any more. (One change has its event before its
//! effect, MADV_DONTNEED by a bare system call; for it see `watch.rs` and `dropping.rs`.)

use super::account::{Account, Amount};
use super::changes::{Change, Changes, Kind};
use super::dropping::Dropping;
use super::filter::Filter;
use super::hull::Range;
use super::index::Index;
use super::large::Large;
use super::list::List;
use super::lock::{self, Held, Lock};
use super::region::{Id, NO, OBJECT_OFFSET, Purpose, Region, YES};
use super::shared_memory::{SharedMemory, Sharing};
use super::subscriptions::Subscriptions;
use super::table::Table;
use super::word::{Grant, Left};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// The largest number of regions, and further handles.
const MOST: usize = if cfg!(test) { 48 } else { 1 << 18 };

/// So many regions of some memory are looked at for one that serves.
const LOOK_AT_MOST: u32 = 64;

/// So many begin at one page at most, of those that nobody else may use at the same time. A program may register
/// the same page 100 000 times, and each time the way to the one that is idle would be longer.
const CROWD: u32 = 32;

/// From so many slots on, they are in huge pages.
const LARGE: u32 = 8192;

/// Why a region is not used again, or deregistered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Cause {
    Flush,
    Watermark,
    Linger,
    Pressure,
    Hook,
    Event,
    Fence,
    Stamp,
}

impl Cause {
    const ALL: [Cause; 8] = [
        Cause::Flush,
        Cause::Watermark,
        Cause::Linger,
        Cause::Pressure,
        Cause::Hook,
        Cause::Event,
        Cause::Fence,
        Cause::Stamp,
    ];
}

/// The pool. All zeros is an empty one, and it is so large that it exists only as a mapping of its own.
#[repr(C)]
pub struct Pool {
    pub changes: Changes,
    lock: Lock,
    /// Slots that were ever in use.
    grown: AtomicU32,
    free: List,
    /// Regions that are claimed and wait to be deregistered.
    doomed: List,
    /// Regions linked so far.
    links: AtomicU64,
    /// The sum of the lengths of regions that were claimed since the cleaner was last told.
    doomed_bytes: AtomicU64,
    /// Claims so far.
    claims: AtomicU64,
    /// Regions that are claimed and not yet ended.
    ending: AtomicU32,
    /// The file of userfaultfd.
    pub userfaultfd: AtomicI32,
    /// Grows with each region that has ended, while somebody waits. A futex.
    ended: AtomicU32,
    /// Threads that wait for it.
    waiting: AtomicU32,
    /// Hits that the regions' own counts have no room for.
    many_hits: AtomicU64,
    pub account: Account,
    shared_memory: SharedMemory,
    dropping: Dropping,
    pub subscriptions: Subscriptions,
    pub filter: Filter,
    table: Table,
    index: Index,
    slots: Large<[Region; MOST]>,
}

/// The lock is held.
pub struct Locked<'a>(&'a Pool, #[allow(dead_code)] Held<'a>);

/// Claimed regions, as many as fit.
pub struct Batch {
    ids: [Id; Batch::MOST],
    count: usize,
}

impl Batch {
    const MOST: usize = 64;

    /// None.
    pub fn new() -> Batch {
        Batch {
            ids: [Id(0); Batch::MOST],
            count: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.count == Batch::MOST
    }

    fn push(&mut self, id: Id) {
        self.ids[self.count] = id;
        self.count += 1;
    }

    /// Those that it holds.
    pub fn ids(&self) -> &[Id] {
        &self.ids[..self.count]
    }
}

/// What the program handed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    /// The slot of the object.
    slot: Id,
    /// The slot of the region.
    pub region: Id,
    grant: Grant,
}

impl Pool {
    /// A slot.
    #[inline(always)]
    pub fn region(&self, id: Id) -> &Region {
        &self.slots[id.0 as usize]
    }

    fn slots(&self) -> &[Region] {
        let grown = self.grown.load(Acquire) as usize;
        &self.slots[..grown.min(MOST)]
    }

    /// Every slot that was ever in use.
    pub fn each(&self) -> impl Iterator<Item = (Id, &Region)> {
        let slots = self.slots().iter().enumerate();
        slots.map(|(n, region)| (Id(n as u32), region))
    }

    /// The addresses of the objects.
    pub fn objects(&self) -> core::ops::Range<usize> {
        let start = (&raw const *self.slots).expose_provenance();
        start..start + size_of_val(&*self.slots)
    }

    /// Takes the lock.
    pub fn lock(&self) -> Locked<'_> {
        Locked(self, self.lock.lock())
    }

    /// A region that serves, taken for one more user.
    #[inline(always)]
    pub fn take(&self, purpose: &Purpose) -> Option<(Id, Grant)> {
        self.table.find(purpose, |id| self.take_this(id, purpose))
    }

    #[inline(always)]
    fn take_this(&self, id: Id, purpose: &Purpose) -> Option<(Id, Grant)> {
        let region = self.slots.get(id.0 as usize)?;
        loop {
            let seen = region.word.load();
            if !seen.can_be_taken() || !purpose.may_share(seen) || !region.serves(purpose) {
                return None;
            }
            if let Some(grant) = region.word.take(seen) {
                return Some((id, grant));
            }
        }
    }

    /// A region that serves, if it could be taken now; somebody holds it for the one who asks.
    #[inline(always)]
    pub fn find(&self, purpose: &Purpose) -> Option<Id> {
        self.table.find(purpose, |id| {
            let region = self.slots.get(id.0 as usize)?;
            let seen = region.word.load();
            let found = seen.can_be_taken() && region.serves(purpose) && region.word.load() == seen;
            found.then_some(id)
        })
    }

    /// The object for a grant, over the program's memory. `None` where there is no slot for another.
    #[inline(always)]
    pub fn object(&self, id: Id, grant: Grant, addr: u64, length: u64) -> Option<usize> {
        let region = self.region(id);
        let object = match grant {
            Grant::Own => {
                if region.count_hit() {
                    self.many_hits.fetch_add(1 << u32::BITS, Relaxed);
                }
                region
            }
            Grant::Another => self.another(id)?,
        };
        object.set_memory(addr, length);
        Some(object.object())
    }

    #[cold]
    fn another(&self, id: Id) -> Option<&Region> {
        let slot = self.region(self.pop()?);
        slot.copy_object(self.region(id));
        slot.owner.store(id.0 + 1, Relaxed);
        slot.word.make_handle();
        Some(slot)
    }

    /// The handle at an address, if it is one's. It may be one that is released.
    #[inline(always)]
    pub fn handle(&self, object: usize) -> Option<Handle> {
        let offset = object.checked_sub(self.objects().start)?;
        let slot = offset / size_of::<Region>();
        let within = offset - slot * size_of::<Region>();
        if within != OBJECT_OFFSET || slot >= MOST {
            return None;
        }
        let region = &self.slots[slot];
        let slot = Id(slot as u32);
        Some(if region.word.load().is_handle() {
            Handle {
                slot,
                region: Id(region.owner.load(Relaxed).checked_sub(1)?),
                grant: Grant::Another,
            }
        } else {
            Handle {
                slot,
                region: slot,
                grant: Grant::Own,
            }
        })
    }

    /// Ends one use of a region, at that time of the pool's clock. `None`: it is released already.
    #[inline(always)]
    pub fn release(&self, handle: Handle, now: u32) -> Option<Left> {
        let region = self.region(handle.region);
        if handle.grant == Grant::Another {
            if !self.region(handle.slot).word.release_handle() {
                return None;
            }
            self.push(handle.slot);
        }
        // Before the release: after it the slot may be another region's.
        region.released.store(now, Relaxed);
        region.word.release(handle.grant)
    }

    /// Ends a use that `take` gave and no handle stands for.
    pub fn give_back(&self, id: Id, grant: Grant) -> Option<Left> {
        self.region(id).word.release(grant)
    }

    /// Hits that no region has room to count.
    pub fn many_hits(&self) -> u64 {
        self.many_hits.load(Relaxed)
    }

    /// The idle regions and the sum of their lengths.
    pub fn idle(&self) -> (u64, u64) {
        let idle = self.each().filter(|(_, region)| {
            let seen = region.word.load();
            seen.is_unused() || seen.is_ending()
        });
        idle.fold((0, 0), |(count, bytes), (_, region)| {
            (count + 1, bytes + region.hull().bytes())
        })
    }

    /// The regions that somebody uses and the sum of their lengths.
    pub fn in_use(&self) -> (u64, u64) {
        let used = self.each().filter(|(_, region)| {
            let seen = region.word.load();
            let is_there = !region.is_watched_only() && !region.is_left();
            seen.is_registered() && seen.users() > 0 && is_there
        });
        used.fold((0, 0), |(count, bytes), (_, region)| {
            (count + 1, bytes + region.hull().bytes())
        })
    }

    /// Whether somebody uses a region of those domains.
    pub fn is_used(&self, mut of: impl FnMut(&Region) -> bool) -> bool {
        self.each().any(|(_, region)| {
            let seen = region.word.load();
            seen.is_registered() && seen.users() > 0 && !region.is_watched_only() && of(region)
        })
    }

    /// Whether a region is being deregistered, or is about to be.
    pub fn is_ending(&self) -> bool {
        self.ending() != 0
    }

    /// Whether so much waits to be deregistered that the cleaner should be told. True once.
    pub fn has_much_to_end(&self, regions: u32) -> bool {
        let bytes = self.account.limit().bytes / 16;
        let much = self.doomed_bytes.load(Relaxed) >= bytes || self.ending() >= regions;
        if much {
            self.doomed_bytes.store(0, Relaxed);
        }
        much
    }

    /// How many are.
    pub fn ending(&self) -> u32 {
        self.ending.load(SeqCst)
    }

    /// Waits until the claims up to that one have ended, for those domains.
    pub fn wait_for_claims(&self, until: u64, mut of: impl FnMut(&Region) -> bool) {
        self.waiting.fetch_add(1, SeqCst);
        while self.is_ending() {
            let ended = self.ended.load(SeqCst);
            let waiting = self.each().any(|(_, region)| {
                region.word.load().is_ending() && region.claim.load(Relaxed) <= until && of(region)
            });
            if !waiting {
                break;
            }
            lock::wait(
                &self.ended,
                ended,
                Some(core::time::Duration::from_millis(100)),
            );
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// A region that is claimed and waits to be deregistered; now the caller's.
    pub fn next_doomed(&self) -> Option<Id> {
        self.doomed.pop(&*self.slots)
    }

    fn pop(&self) -> Option<Id> {
        self.free.pop(&*self.slots).or_else(|| {
            let grown = self.grown.fetch_update(AcqRel, Relaxed, |grown| {
                ((grown as usize) < MOST).then_some(grown + 1)
            });
            if grown == Ok(LARGE) {
                self.slots.use_huge_pages();
            }
            grown.ok().map(Id)
        })
    }

    fn push(&self, id: Id) {
        self.free.push(&*self.slots, id);
    }
}

/// Adds to a number that only changes under the lock: without a locked instruction.
fn add(number: &AtomicU64, amount: u64) {
    number.store(number.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// What applying the log did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Regions withdrawn from reuse, by an interposed call and by an event.
    pub by_hook: u64,
    pub by_event: u64,
    /// Nothing is reported any more.
    pub lost: bool,
}

impl Locked<'_> {
    /// The pool.
    pub fn pool(&self) -> &Pool {
        self.0
    }

    /// Begins a region: links it, with one user. `None` where there is no slot.
    pub fn make(&self, purpose: &Purpose) -> Option<Id> {
        let pool = self.0;
        if purpose.hull.pages() > u64::from(u32::MAX) {
            return None;
        }
        let id = pool.pop()?;
        let region = pool.region(id);
        region.set(purpose);
        add(&pool.links, 1);
        region.link.store(self.links(), Relaxed);
        region.word.make();
        pool.index.add(&*pool.slots, id);
        pool.filter.add(purpose.hull);
        if !region.is_watched_only() {
            pool.account.add(purpose.hull);
        }
        Some(id)
    }

    /// Keeps the region; false if its memory has changed since it was linked. A brief one only together with a
    /// user. Others can take it once it is admitted.
    pub fn keep(&self, id: Id, brief: bool) -> bool {
        let pool = self.0;
        let region = pool.region(id);
        if !region.word.keep(brief) {
            return false;
        }
        pool.table
            .add(&*pool.slots, region.pd(), region.hull().start, id);
        true
    }

    /// Regions linked so far.
    pub fn links(&self) -> u64 {
        self.0.links.load(Relaxed)
    }

    /// Whether so many regions begin at a page that there had better not be one more.
    pub fn is_crowded(&self, start: u64) -> bool {
        let pool = self.0;
        let page = Range {
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

    /// Whether a region serves, but for being new.
    pub fn has_new(&self, purpose: &Purpose) -> bool {
        let pool = self.0;
        let (mut found, mut looked_at) = (false, 0);
        pool.index
            .overlapping(&*pool.slots, purpose.hull, |_, region| {
                let seen = region.word.load();
                found = purpose.may_share(seen) && seen.is_new() && region.serves(purpose);
                looked_at += 1;
                !found && looked_at < LOOK_AT_MOST
            });
        found
    }

    /// Where there is shared memory has been read anew, after that many links: what was linked before is on
    /// it, and withdrawn, or may be taken from now on. Its mapping is the one that was pinned, or else a
    /// change has been reported since. `of_file` tells mappings of files that are not shared.
    pub fn admit(&self, links: u64, of_file: impl Fn(Range) -> bool) {
        let pool = self.0;
        for (id, region) in pool.each() {
            if !region.word.load().is_new() || region.link.load(Relaxed) > links {
                continue;
            }
            if pool.shared_memory.at(region.hull()).is_some() {
                self.withdraw(id, Cause::Stamp);
                self.doom(id);
            } else {
                let of_file = if of_file(region.hull()) { YES } else { NO };
                region.of_file.store(of_file, Relaxed);
                region.word.admit();
            }
        }
    }

    /// A region that serves though it begins at another page, taken for one more user. The way to it is
    /// remembered.
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
            pool.table
                .add(&*pool.slots, purpose.pd, purpose.hull.start, id);
        }
        taken
    }

    /// Whether a region has an address in a range.
    pub fn has_regions(&self, range: Range) -> bool {
        let mut found = false;
        self.0.index.overlapping(&*self.0.slots, range, |_, _| {
            found = true;
            false
        });
        found
    }

    /// Withdraws a region from reuse. True if that was news.
    pub fn withdraw(&self, id: Id, cause: Cause) -> bool {
        let region = self.0.region(id);
        if !region.word.load().is_registered() || !region.word.withdraw() {
            return false;
        }
        region.cause.store(cause as u32 + 1, Relaxed);
        if region.is_watched_only() {
            self.0.subscriptions.withdrawn(1);
        }
        true
    }

    /// The subscription for a range, if there is one.
    pub fn subscription(&self, hull: Range) -> Option<Id> {
        let mut found = None;
        self.0
            .index
            .overlapping(&*self.0.slots, hull, |id, region| {
                if region.is_watched_only() && region.hull() == hull {
                    found = Some(id);
                }
                found.is_none()
            });
        found
    }

    /// Withdraws the regions whose memory has changed, by the log, and claims those that are idle.
    pub fn apply(&self, now: impl Fn() -> u64) -> Applied {
        let pool = self.0;
        let mut applied = Applied::default();
        let mut last = None;
        pool.changes.apply(|change| {
            // A call writes before and after: nothing can have come in between, under the lock.
            if change == last && change.is_some() {
                return;
            }
            last = change;
            // Not as a call, since those end doubts about what is being dropped.
            let change = change.unwrap_or(Change {
                start: 0,
                end: u64::MAX,
                kind: Kind::Reported,
            });
            self.apply_one(change, &mut applied, &now);
        });
        applied
    }

    fn apply_one(&self, change: Change, applied: &mut Applied, now: &impl Fn() -> u64) {
        let pool = self.0;
        let mut range = Range {
            start: change.start,
            end: change.end,
        };
        let mut files_only = false;
        match change.kind {
            Kind::Called => pool.dropping.forget(range),
            Kind::Reported => {}
            Kind::Dropping => pool.dropping.add(range, now()),
            Kind::Lost => applied.lost = true,
            Kind::Shared => pool.shared_memory.add(range, Sharing::Shared),
            Kind::Segment => pool.shared_memory.add(range, Sharing::Segment),
            Kind::Detached => range.end = pool.shared_memory.end_of(change.start),
            Kind::Files => {
                range = Range {
                    start: 0,
                    end: u64::MAX,
                };
                files_only = true;
            }
        }
        let event = matches!(change.kind, Kind::Reported | Kind::Dropping | Kind::Lost);
        pool.shared_memory.doubt(range);
        let cause = if event { Cause::Event } else { Cause::Hook };
        pool.index.overlapping(&*pool.slots, range, |id, region| {
            if files_only && region.of_file.load(Relaxed) == NO {
                return true;
            }
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

    /// Whether pages there were reported to be about to be dropped, so lately that it may not have happened.
    pub fn may_be_dropping(&self, range: Range, now: impl Fn() -> u64) -> bool {
        self.0.dropping.is_at(range, now)
    }

    /// Claims a region if nobody uses it, for whoever comes to deregister it.
    pub fn doom(&self, id: Id) -> bool {
        let claimed = self.claim(id);
        if claimed {
            self.0.doomed.push(&*self.0.slots, id);
        }
        claimed
    }

    /// Claims a region if nobody uses it: it is the caller's to deregister.
    pub fn claim(&self, id: Id) -> bool {
        let pool = self.0;
        let region = pool.region(id);
        // Before: who waits must not find the region ending and no one counted.
        pool.ending.fetch_add(1, SeqCst);
        if !region.word.claim() {
            pool.ending.fetch_sub(1, SeqCst);
            return false;
        }
        let claim = pool.claims.fetch_add(1, Relaxed) + 1;
        region.claim.store(claim, Relaxed);
        true
    }

    /// The number of claims so far.
    pub fn claims(&self) -> u64 {
        self.0.claims.load(Relaxed)
    }

    /// Claims idle regions for that cause, as many as fit, from a slot on. Returns where to go on, if there
    /// are more.
    pub fn claim_idle(
        &self,
        from: Id,
        batch: &mut Batch,
        cause: Cause,
        mut which: impl FnMut(&Region) -> bool,
    ) -> Option<Id> {
        let pool = self.0;
        for (id, region) in pool.each().skip(from.0 as usize) {
            if batch.is_full() {
                return Some(id);
            }
            let seen = region.word.load();
            if seen.is_unused() && which(region) && self.claim(id) {
                // What is spent would have ended anyway, by whoever has just released it.
                if !seen.is_spent() {
                    let _ = region
                        .cause
                        .compare_exchange(0, cause as u32 + 1, Relaxed, Relaxed);
                }
                batch.push(id);
            }
        }
        None
    }

    /// A claimed region has been deregistered, or a new one has come to nothing: its slot is free.
    pub fn end(&self, id: Id) {
        let pool = self.0;
        let region = pool.region(id);
        let hull = region.hull();
        pool.index.remove(&*pool.slots, id);
        pool.filter.remove(hull);
        if !region.is_watched_only() {
            pool.account.remove(hull);
        }
        let claimed = region.word.load().is_ending();
        region.word.free();
        pool.push(id);
        if claimed {
            self.claim_ended();
        }
    }

    /// A claimed region could not be deregistered. It is not used again.
    pub fn restore(&self, id: Id) {
        self.0.region(id).word.restore();
        self.claim_ended();
    }

    fn claim_ended(&self) {
        let pool = self.0;
        pool.ending.fetch_sub(1, SeqCst);
        if pool.waiting.load(SeqCst) != 0 {
            pool.ended.fetch_add(1, SeqCst);
            lock::wake(&pool.ended, i32::MAX);
        }
    }

    /// Counts the idle regions. Where they are more than the limit: how many, and bytes, must go.
    pub fn over(&self) -> Option<Amount> {
        let (regions, bytes) = self.0.idle();
        self.0.account.counted(Amount { regions, bytes })
    }

    /// What kind of shared memory there is in a range, if any.
    pub fn shared_memory(&self) -> &SharedMemory {
        &self.0.shared_memory
    }
}

/// Why a region of the pool ends, where that is known.
pub fn cause(region: &Region) -> Option<Cause> {
    let number = region.cause.load(Relaxed).checked_sub(1)?;
    Cause::ALL.get(number as usize).copied()
}
