// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's regions: when a registration may use a region again, and when a region must end.
//!
//! # Why no interleaving hands out a stale translation
//!
//! The maker of a region *links* it (a look-up by address finds it, under the lock) before
//! userfaultfd watches its memory. The memory is watched before it is pinned, and pinned before the
//! region is *kept*. The region is unlinked only after it is deregistered. Every change of its
//! memory after the pin therefore meets a linked, watched region.
//!
//! Each change is of one of two kinds:
//!
//! - An interposed call. It is under way in the log from before the real call until its last record
//!   is written.
//! - A change that userfaultfd sees. The kernel counts it as in flight from before the mapping goes
//!   until its event is read. The monitor is under way in the log from before that read until it
//!   has recorded the event.
//!
//! A hit takes these steps in this order:
//!
//! 1. Every record in the log has been applied.
//! 2. One compare-and-swap takes the region. It fails if the region's word changed since the hit
//!    read it.
//! 3. The fence: the kernel has no event in flight.
//! 4. Nothing is under way, and no record has been written since step 1.
//!
//! Suppose that a change has taken effect before the program makes the call that hits. If its last
//! record was written before step 1, that record has been applied, the region was withdrawn before
//! step 1 returned, and step 2 fails. Otherwise step 3 or 4 refuses the hit. An interposed call is
//! still under way at step 4, or has written a record since step 1. An event of userfaultfd is
//! either unread at step 3, or was read before it, and then the monitor is under way at step 4 or
//! has written a record since step 1. Withdrawing sets a bit that nothing clears while the region
//! lives. A change that has not taken effect is concurrent with the hit: it may be ordered after
//! the hit, and the next hit sees it.
//!
//! # Who owns what
//!
//! Each transition of a region's *word* (`word.rs`) has one owner: the thread whose
//! compare-and-swap succeeds. The word's generation keeps a thread that read an old word from
//! taking a new region. The maker alone writes the region's other fields, before `keep` (release);
//! other threads read them after the word (acquire). The holder of the lock owns the index, the
//! table's entries, the notes of foreign memory and the applying of the log; a thread that reads the table
//! without the lock gets hints only. The thread that claimed a region deregisters it, outside the
//! lock, when it has no user and nobody can take it any more.
//!
//! One change has its event before its effect: MADV_DONTNEED by a bare system call. See `watch.rs`
//! and `dropping.rs`.

use super::account::{Account, Amount};
use super::admission::Foreign;
use super::changes::{Change, Changes, Kind};
use super::dropping::Dropping;
use super::filter::Filter;
use super::index::Index;
use super::large::Large;
use super::list::List;
use super::lock::{Held, Lock};
use super::region::{Id, Link, OBJECT_OFFSET, PoolRegion, Purpose};
use super::subscriptions::Subscriptions;
use super::table::Table;
use super::watch::Unwatching;
use super::watch::extent::CHUNK;
use super::word::{Grant, Left};
use crate::sys::futex;
use crate::sys::pages::{PageRange, page_size};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use core::time::Duration;

/// The largest number of slots: regions and further handles.
const MOST: usize = if cfg!(test) { 48 } else { 1 << 18 };

/// A search in the index gives up after this many regions.
const LOOK_AT_MOST: u32 = 64;

/// At most this many regions begin at one page, of those that only one registration may use at a
/// time. A program may register the same page 100 000 times, and each such region would lengthen
/// the search for an idle one.
const CROWD: u32 = 32;

/// Slots from this number on are in huge pages.
const LARGE: u32 = 8192;

/// Why a region is withdrawn from reuse, or deregistered.
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
}

impl Cause {
    const ALL: [Cause; 7] = [
        Cause::Flush,
        Cause::Watermark,
        Cause::Linger,
        Cause::Pressure,
        Cause::Hook,
        Cause::Event,
        Cause::Fence,
    ];

    /// The cause as [`PoolRegion::cause`] stores it; 0 means no cause.
    pub fn in_word(self) -> u32 {
        self as u32 + 1
    }

    /// The cause that [`PoolRegion::cause`] stores.
    fn from_word(word: u32) -> Option<Cause> {
        Cause::ALL.get(word.checked_sub(1)? as usize).copied()
    }
}

/// The pool. Zeroed memory is an empty pool. The pool is so large that it exists only as a mapping
/// of its own.
#[repr(C)]
pub struct Pool {
    pub changes: Changes,
    lock: Lock,
    /// Slots that were ever in use.
    grown: AtomicU32,
    free: List,
    /// Claimed regions that wait to be deregistered.
    doomed: List,
    /// Regions kept so far.
    kept: AtomicU64,
    /// The summed length of the regions that were doomed since the cleaner last ended all of them.
    doomed_bytes: AtomicU64,
    /// The cleaner has been woken because so many regions wait.
    much_waits: AtomicBool,
    /// Claims so far.
    claims: AtomicU64,
    /// Regions that are claimed and not yet ended.
    ending: AtomicU32,
    /// A futex: it grows whenever a region has ended while a thread waits.
    ended: AtomicU32,
    /// Threads that wait on `ended`.
    waiting: AtomicU32,
    /// Hits that overflowed the regions' own 32-bit counts.
    many_hits: AtomicU64,
    pub account: Account,
    foreign: Foreign,
    dropping: Dropping,
    pub subscriptions: Subscriptions,
    pub filter: Filter,
    table: Table,
    index: Index,
    slots: Large<[PoolRegion; MOST]>,
}

/// The pool while its lock is held.
pub struct Locked<'a>(&'a Pool, #[allow(dead_code)] Held<'a>);

/// A fixed-size list of regions.
pub struct Batch {
    ids: [Id; Batch::MOST],
    count: usize,
}

impl Batch {
    const MOST: usize = 64;

    /// An empty batch.
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

    /// Removes the regions for which `stays` is false.
    fn retain(&mut self, mut stays: impl FnMut(Id) -> bool) {
        let mut kept = Batch::new();
        for &id in self.ids() {
            if stays(id) {
                kept.push(id);
            }
        }
        *self = kept;
    }

    /// The regions of the batch.
    pub fn ids(&self) -> &[Id] {
        &self.ids[..self.count]
    }
}

/// A handle that the program passed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    /// The slot whose object the program holds.
    slot: Id,
    /// The slot of the region: another one in a further handle.
    pub region: Id,
    grant: Grant,
}

/// A region that is kept and not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct New {
    id: Id,
    pub hull: PageRange,
    /// Its number among those that were kept.
    pub kept: u64,
}

impl Pool {
    /// The slot with this number.
    #[inline(always)]
    pub fn region(&self, id: Id) -> &PoolRegion {
        &self.slots[id.0 as usize]
    }

    fn slots(&self) -> &[PoolRegion] {
        let grown = self.grown.load(Acquire) as usize;
        &self.slots[..grown.min(MOST)]
    }

    /// Every slot that was ever in use.
    pub fn each(&self) -> impl Iterator<Item = (Id, &PoolRegion)> {
        self.each_from(Id(0))
    }

    /// The same, from a slot on. (To skip the others would call the closure for each of them.)
    fn each_from(&self, first: Id) -> impl Iterator<Item = (Id, &PoolRegion)> {
        let slots = self.slots().get(first.0 as usize..).unwrap_or_default();
        let slots = slots.iter().enumerate();
        slots.map(move |(n, region)| (Id(first.0 + n as u32), region))
    }

    /// The address range of the objects.
    pub fn objects(&self) -> core::ops::Range<usize> {
        let start = (&raw const *self.slots).expose_provenance();
        start..start + size_of_val(&*self.slots)
    }

    pub fn lock(&self) -> Locked<'_> {
        Locked(self, self.lock.lock())
    }

    /// Takes a region that serves, for one more user.
    #[inline(always)]
    pub fn take(&self, purpose: &Purpose) -> Option<(Id, Grant)> {
        self.table.find(purpose, |id| self.take_this(id, purpose))
    }

    #[inline(always)]
    fn take_this(&self, id: Id, purpose: &Purpose) -> Option<(Id, Grant)> {
        let region = self.slots.get(id.0 as usize)?;
        let serves = |seen| purpose.may_share(seen) && region.serves(purpose);
        Some((id, region.word.take_if(serves)?))
    }

    /// Finds a region that serves and could be taken now, without taking it. The caller knows that
    /// the region already has a user, who keeps it from ending.
    #[inline(always)]
    pub fn find(&self, purpose: &Purpose) -> Option<Id> {
        self.table.find(purpose, |id| {
            let region = self.slots.get(id.0 as usize)?;
            let serves = |_| region.serves(purpose);
            region.word.would_serve(serves).then_some(id)
        })
    }

    /// The object for a grant, with the program's address and length. `None`: another handle is
    /// needed and no slot is free.
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
    fn another(&self, id: Id) -> Option<&PoolRegion> {
        let slot = self.region(self.pop()?);
        slot.copy_object(self.region(id));
        slot.owner.store(Link::to(id));
        slot.word.make_handle();
        Some(slot)
    }

    /// The handle whose object is at this address, if there is one. The handle may be released
    /// already.
    #[inline(always)]
    pub fn handle(&self, object: usize) -> Option<Handle> {
        let offset = object.checked_sub(self.objects().start)?;
        let slot = offset / size_of::<PoolRegion>();
        let within = offset - slot * size_of::<PoolRegion>();
        if within != OBJECT_OFFSET || slot >= MOST {
            return None;
        }
        let region = &self.slots[slot];
        let slot = Id(slot as u32);
        Some(if region.word.load().is_handle() {
            Handle {
                slot,
                region: region.owner.load().id()?,
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

    /// Ends one use of a region at the time `now` of the pool's clock. `None`: the handle is
    /// released already.
    #[inline(always)]
    pub fn release(&self, handle: Handle, now: u32) -> Option<Left> {
        let region = self.region(handle.region);
        if handle.grant == Grant::Another {
            if !self.region(handle.slot).word.release_handle() {
                return None;
            }
            self.push(handle.slot);
        }
        // Stored before the release: after it, the slot may belong to another region.
        region.released.store(now, Relaxed);
        region.word.release(handle.grant)
    }

    /// Ends a use that `take` granted and that has no handle.
    pub fn give_back(&self, id: Id, grant: Grant) -> Option<Left> {
        self.region(id).word.release(grant)
    }

    /// Hits that overflowed the regions' own counts.
    pub fn many_hits(&self) -> u64 {
        self.many_hits.load(Relaxed)
    }

    /// The number of idle regions and their summed length.
    pub fn idle(&self) -> (u64, u64) {
        let idle = self.each().filter(|(_, region)| {
            let seen = region.word.load();
            seen.is_unused() || seen.is_ending()
        });
        idle.fold((0, 0), |(count, bytes), (_, region)| {
            (count + 1, bytes + region.hull().bytes())
        })
    }

    /// Looks for idle regions that `which` selects, from slot `from` on, until the batch is full.
    /// Returns the slot to continue at, if any are left. This takes no lock: the caller claims the
    /// regions by [`Locked::claim_those`].
    pub fn find_idle(
        &self,
        from: Id,
        batch: &mut Batch,
        mut which: impl FnMut(&PoolRegion) -> bool,
    ) -> Option<Id> {
        for (id, region) in self.each_from(from) {
            if batch.is_full() {
                return Some(id);
            }
            if region.word.load().is_unused() && which(region) {
                batch.push(id);
            }
        }
        None
    }

    /// The number of regions in use and their summed length.
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

    /// Whether a region that `of` selects has a user.
    pub fn is_used(&self, mut of: impl FnMut(&PoolRegion) -> bool) -> bool {
        self.each().any(|(_, region)| {
            let seen = region.word.load();
            let is_there = !region.is_watched_only() && !region.is_left();
            seen.is_registered() && seen.users() > 0 && is_there && of(region)
        })
    }

    /// Whether a region is claimed and not yet ended.
    pub fn is_ending(&self) -> bool {
        self.ending() != 0
    }

    /// Whether so much waits to be deregistered that the cleaner must wake before its next tick.
    /// The answer is yes once, until the cleaner has ended what waits ([`Pool::nothing_waits`]).
    pub fn has_much_to_end(&self, regions: u32) -> bool {
        let bytes = self.account.limit().bytes as u64 / 16;
        let doomed_bytes = self.doomed_bytes.load(Relaxed);
        let much = (doomed_bytes > 0 && doomed_bytes >= bytes) || self.ending() >= regions;
        much && !self.much_waits.load(Relaxed) && !self.much_waits.swap(true, Relaxed)
    }

    /// Notes that nothing waits to be deregistered any more.
    pub fn nothing_waits(&self) {
        self.doomed_bytes.store(0, Relaxed);
        self.much_waits.store(false, Relaxed);
    }

    /// The number of regions that are claimed and not yet ended.
    pub fn ending(&self) -> u32 {
        self.ending.load(SeqCst)
    }

    /// Waits until no claim up to number `until` is left for the regions that `of` selects.
    pub fn wait_for_claims(&self, until: u64, mut of: impl FnMut(&PoolRegion) -> bool) {
        self.waiting.fetch_add(1, SeqCst);
        // A slot that no such claim is left for never gets one: later claims have larger numbers.
        let mut from = Id(0);
        while self.is_ending() {
            let ended = self.ended.load(SeqCst);
            let waiting = self.each_from(from).find(|(_, region)| {
                region.word.load().is_ending() && region.claim.load(Relaxed) <= until && of(region)
            });
            match waiting {
                Some((id, _)) => from = id,
                None => break,
            }
            futex::wait(&self.ended, ended, Some(Duration::from_millis(100)));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// Calls `each` for the regions that overlap a range, until `each` returns false. `each` must
    /// not change the index. Under the lock.
    ///
    /// The index finds small regions by granules of a few pages, of which a large range has too
    /// many. The filter tells in which chunks there are small regions at all.
    fn overlapping(&self, range: PageRange, mut each: impl FnMut(Id, &PoolRegion) -> bool) {
        self.each_overlapping(range, &mut each);
    }

    fn each_overlapping(&self, range: PageRange, each: &mut dyn FnMut(Id, &PoolRegion) -> bool) {
        const FEW: u64 = 4 * CHUNK;
        if range.end.saturating_sub(range.start) <= FEW {
            self.index
                .overlapping_of(u64::MAX, &*self.slots, range, each);
            return;
        }
        if Filter::is_too_large_to_look(range) {
            let mut all = self.each();
            all.all(|(id, region)| {
                !region.word.load().is_linked()
                    || !region.hull().overlaps(range)
                    || each(id, region)
            });
            return;
        }
        let small = Index::smaller_than(CHUNK);
        let whole = self
            .index
            .overlapping_of(!small, &*self.slots, range, &mut *each);
        if !whole {
            return;
        }
        self.filter.each_chunk(range, |part| {
            self.index
                .overlapping_of(small, &*self.slots, part, &mut |id, region| {
                    // A region that lies in two chunks belongs to the first of them.
                    let start = region.hull().start.max(range.start);
                    start < part.start || each(id, region)
                })
        });
    }

    /// Waits until a region has ended, at most so long.
    pub fn wait_for_an_end(&self, limit: Duration) {
        self.waiting.fetch_add(1, SeqCst);
        let ended = self.ended.load(SeqCst);
        if self.is_ending() {
            futex::wait(&self.ended, ended, Some(limit));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// Queues a claimed region: the next thread to call [`Pool::next_doomed`] deregisters it.
    pub fn ends_later(&self, id: Id) {
        self.doomed.push(&*self.slots, id);
    }

    /// Takes a claimed region off the list of those that wait. The caller must deregister it.
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

/// Adds to a number that changes only under the lock, and so needs no locked instruction.
fn add(number: &AtomicU64, amount: u64) {
    number.store(number.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// Which region takes over memory that an ending region leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heir {
    None,
    Region(Id),
    /// A nearby region exists whose watched extent is not known yet.
    Unknown,
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

impl Locked<'_> {
    pub fn pool(&self) -> &Pool {
        self.0
    }

    /// Makes a region: links it, with one user. `None`: no slot is free.
    pub fn make(&self, purpose: &Purpose) -> Option<Id> {
        let pool = self.0;
        if purpose.hull.pages() > u64::from(u32::MAX) {
            return None;
        }
        let id = pool.pop()?;
        let region = pool.region(id);
        region.set(purpose);
        region.word.make();
        pool.index.add(&*pool.slots, id);
        pool.filter.add(purpose.hull);
        if !region.is_watched_only() {
            pool.account.add(purpose.hull);
        }
        Some(id)
    }

    /// Keeps the region; false if its memory has changed since the region was linked. Other
    /// registrations can take the region once it is admitted.
    pub fn keep(&self, id: Id) -> bool {
        let pool = self.0;
        let region = pool.region(id);
        add(&pool.kept, 1);
        region.kept.store(self.kept(), Relaxed);
        if !region.word.keep() {
            return false;
        }
        pool.table
            .add(&*pool.slots, region.pd(), region.hull().start, id);
        true
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
                if purpose.may_share(seen) && seen.is_new() && region.serves(purpose) {
                    found = Some(New {
                        id,
                        hull: region.hull(),
                        kept: region.kept.load(Relaxed),
                    });
                }
                looked_at += 1;
                found.is_none() && looked_at < LOOK_AT_MOST
            });
        found
    }

    fn is_new(&self, new: New) -> bool {
        let region = self.0.region(new.id);
        region.kept.load(Relaxed) == new.kept && region.word.load().is_new()
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
            pool.table
                .add(&*pool.slots, purpose.pd, purpose.hull.start, id);
        }
        taken
    }

    /// The region that takes over memory of a chunk that another region leaves. A region that is
    /// not watched yet cannot take it over, and may become watched at any moment.
    pub fn heir(&self, memory: PageRange, leaving: Id) -> Heir {
        let mut heir = Heir::None;
        let chunk = memory.extended(CHUNK);
        self.0
            .index
            .overlapping(&*self.0.slots, chunk, |id, region| {
                match region.extent() {
                    _ if id == leaving => {}
                    Some(extent) if extent.overlaps(memory) => heir = Heir::Region(id),
                    Some(_) => {}
                    None => heir = Heir::Unknown,
                }
                !matches!(heir, Heir::Region(_))
            });
        heir
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

    /// Calls `each` for the regions whose extent overlaps a range, until `each` returns false.
    fn watching(&self, range: PageRange, mut each: impl FnMut(Id, PageRange) -> bool) {
        // An extent does not reach beyond the chunks of its region.
        self.0.overlapping(range.extended(CHUNK), |id, region| {
            match region.extent().filter(|extent| extent.overlaps(range)) {
                Some(extent) => each(id, extent),
                None => true,
            }
        });
    }

    /// Takes memory off the extents of all regions: the pool does not watch it any more. A region
    /// beyond that memory takes over what is beyond it; `orphan` gets what no region takes over.
    fn lose_memory(&self, gone: PageRange, mut orphan: impl FnMut(PageRange)) {
        self.0.overlapping(gone.extended(CHUNK), |_, region| {
            let Some(before) = region.extent().filter(|extent| extent.overlaps(gone)) else {
                return true;
            };
            region.lose_memory(gone);
            let below = PageRange {
                start: before.start,
                end: gone.start,
            };
            let above = PageRange {
                start: gone.end,
                end: before.end,
            };
            for part in [below, above] {
                let is_left = |extent: PageRange| extent.contains(part);
                if part.start < part.end
                    && !region.extent().is_some_and(is_left)
                    && !self.hand_over(part)
                {
                    orphan(part);
                }
            }
            true
        });
    }

    /// Adds memory to the extent of a region that lies in it. Returns false if no region does. (A
    /// region that has no extent may be watched at any moment, outside the lock: its memory must
    /// stay watched.)
    fn hand_over(&self, memory: PageRange) -> bool {
        let mut found = false;
        self.0.overlapping(memory, |_, region| {
            found = true;
            region.inherit(memory);
            region.extent().is_none()
        });
        found
    }

    /// Stops watching a range, by `unwatch`. The regions in it are withdrawn. Returns whether some
    /// of the range was watched.
    pub fn unwatch(
        &self,
        range: PageRange,
        mut unwatch: impl FnMut(PageRange) -> Unwatching,
    ) -> bool {
        let mut watched = false;
        self.watching(range, |id, _| {
            let region = self.0.region(id);
            while let Some(part) = region.extent().and_then(|extent| extent.common(range)) {
                if unwatch(part) != Unwatching::Done {
                    return false;
                }
                watched = true;
                let mut orphans = [PageRange { start: 0, end: 0 }; 2];
                self.lose_memory(part, |orphan| {
                    orphans[usize::from(orphan.start > part.start)] = orphan;
                });
                for orphan in orphans.into_iter().filter(|orphan| orphan.end > 0) {
                    unwatch(orphan);
                    self.lose_memory(orphan, |_| {});
                }
            }
            true
        });
        watched
    }

    /// If some of a range is watched, withdraws the regions whose watched memory overlaps or adjoins
    /// the range. Returns the range together with that memory.
    pub fn withdraw_adjoining(&self, range: PageRange) -> PageRange {
        let mut watched = false;
        self.watching(range, |_, _| {
            watched = true;
            false
        });
        let mut memory = range;
        let mut grows = watched;
        while grows {
            grows = false;
            let around = PageRange {
                start: memory.start.saturating_sub(page_size()),
                end: memory.end.saturating_add(page_size()),
            };
            self.watching(around, |id, extent| {
                if self.withdraw(id, Cause::Hook) || !memory.contains(extent) {
                    grows |= !memory.contains(extent);
                    memory = PageRange {
                        start: memory.start.min(extent.start),
                        end: memory.end.max(extent.end),
                    };
                }
                true
            });
        }
        if watched {
            // All regions in that memory: one without an extent may be watched at any moment.
            self.0.overlapping(memory, |id, _| {
                self.withdraw(id, Cause::Hook);
                self.doom(id);
                true
            });
        }
        memory
    }

    /// Withdraws a region from reuse. True if the region was not withdrawn before.
    pub fn withdraw(&self, id: Id, cause: Cause) -> bool {
        let region = self.0.region(id);
        if !region.word.load().is_registered() || !region.word.withdraw() {
            return false;
        }
        region.cause.store(cause.in_word(), Relaxed);
        if region.is_watched_only() {
            self.0.subscriptions.withdrawn(1);
        }
        true
    }

    /// The subscription for exactly this range, if there is one.
    pub fn subscription(&self, hull: PageRange) -> Option<Id> {
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
        let range = PageRange {
            start: change.start,
            end: change.end,
        };
        match change.kind {
            Kind::Called | Kind::Reported => {}
            Kind::Dropping => pool.dropping.add(range, now()),
            Kind::Lost => applied.lost = true,
        }
        let event = change.kind != Kind::Called;
        if matches!(change.kind, Kind::Reported | Kind::Lost) {
            self.lose_memory(range, |_| {});
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
        let pool = self.0;
        let region = pool.region(id);
        // Counted before the claim: a waiting thread must not find the region ending while `ending`
        // is 0.
        pool.ending.fetch_add(1, SeqCst);
        if !region.word.claim() {
            pool.ending.fetch_sub(1, SeqCst);
            return false;
        }
        let claim = pool.claims.fetch_add(1, Relaxed) + 1;
        region.claim.store(claim, Relaxed);
        true
    }

    /// Claims so far.
    pub fn claims(&self) -> u64 {
        self.0.claims.load(Relaxed)
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

    /// Frees the slot of a claimed region that has been deregistered, or of a new region whose
    /// registration failed.
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

    /// Takes back the claim on a region that could not be deregistered. The region is not used
    /// again.
    pub fn restore(&self, id: Id) {
        self.0.region(id).word.restore();
        self.claim_ended();
    }

    fn claim_ended(&self) {
        let pool = self.0;
        pool.ending.fetch_sub(1, SeqCst);
        if pool.waiting.load(SeqCst) != 0 {
            pool.ended.fetch_add(1, SeqCst);
            futex::wake(&pool.ended, i32::MAX);
        }
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
