// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all threads share of the cache, and what they do with it without the lock.
//!
//! Each transition of a region's *state* (`region/state.rs`) has one owner: the thread whose
//! compare-and-swap succeeds. The maker alone writes the fields that a look-up reads, before `keep`
//! (release); other threads read them after the state (acquire). The holder of the lock owns the
//! index, the table's entries, the notes of foreign memory and the applying of the log
//! (`locked.rs`). One thread deregisters a claimed region, outside the lock, when it has no user
//! and nobody can take it any more. The lemmas are in `docs/proof.md`.

use crate::cache::find::filter::Filter;
use crate::cache::find::index::Index;
use crate::cache::find::large::Large;
use crate::cache::find::table::Table;
use crate::cache::life::account::Account;
use crate::cache::life::admission::Foreign;
use crate::cache::lock::{Lock, Owner, Patience};
use crate::cache::locked::Locked;
use crate::cache::region::list::List;
use crate::cache::region::state::{Grant, Left};
use crate::cache::region::{CachedRegion, Id, Link, LookupKey, OBJECT_OFFSET};
use crate::report::log;
use crate::sys::clock;
use crate::sys::futex;
use crate::sys::pages::PageRange;
use crate::sys::process::PAGE_SIZE;
use crate::watch::dropping::Dropping;
use crate::watch::extent::CHUNK;
use crate::watch::log::Log;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use core::time::Duration;

/// The largest number of slots: regions and further handles.
pub const MOST: usize = if cfg!(test) { 48 } else { 1 << 18 };

/// Slots from this number on are in huge pages.
const LARGE: u32 = 8192;

/// The slots of a huge page, and of a small page at least.
const IN_HUGE_PAGE: u32 = (2 << 20) / size_of::<CachedRegion>() as u32 + 1;
const IN_PAGE: usize = 4096 / size_of::<CachedRegion>();

/// A range of at most this many bytes is looked up in the index granule by granule.
const FEW: u64 = 4 * CHUNK;

/// Why a region is invalidated from reuse, or deregistered.
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

    /// The cause as [`CachedRegion::cause`] stores it; 0 means no cause.
    pub fn in_word(self) -> u32 {
        self as u32 + 1
    }

    /// The cause that [`CachedRegion::cause`] stores.
    pub(super) fn from_word(state: u32) -> Option<Cause> {
        Cause::ALL.get(state.checked_sub(1)? as usize).copied()
    }
}

/// The cache. Zeroed memory is an empty cache. The cache is so large that it exists only as a place
/// in the address space, of which a part is mapped (`place.rs`): what precedes the table at first,
/// and of the arrays behind it what is in use.
#[repr(C)]
pub struct Regions {
    /// What a hit or a release reads of the cache, apart from its entry in the table and its
    /// region, is one line of the processor's cache: the end of the account, the table's shape, and
    /// the beginning of the log. A registration that misses writes to that line, and so does a
    /// change of memory; no hit does.
    pub account: Account,
    /// A copy of the shape of the table ([`Locked::add_entry`]).
    pub(super) shape: AtomicU32,
    /// The slots that are mapped.
    ready: AtomicU32,
    pub changes: Log,
    pub(super) lock: Lock,
    /// A task has died that held the lock.
    orphaned: AtomicBool,
    /// Slots that were ever in use.
    pub(super) grown: AtomicU32,
    /// Slots up to this one have been touched.
    touched: AtomicU32,
    pub(super) free: List,
    /// Claimed regions that wait to be deregistered.
    pub(super) evicted: List,
    /// Regions kept so far.
    pub(super) kept: AtomicU64,
    /// The summed length of the regions that were evicted since the cleaner last ended all of them.
    pub(super) evicted_bytes: AtomicU64,
    /// The cleaner has been woken because so many regions wait.
    pub(super) much_waits: AtomicBool,
    /// Claims so far.
    pub(super) claims: AtomicU64,
    /// Up to this number a thread has waited in vain for the ends of the claimed regions.
    claims_in_vain: AtomicU64,
    /// Regions that are claimed and not yet ended.
    pub(super) ending: AtomicU32,
    /// A futex: it grows whenever a region has ended while a thread waits.
    pub(super) ended: AtomicU32,
    /// Threads that wait on `ended`.
    pub(super) waiting: AtomicU32,
    /// Hits that overflowed the regions' own 32-bit counts.
    pub(super) many_hits: AtomicU64,
    pub(super) foreign: Foreign,
    pub(super) dropping: Dropping,
    /// Monitored ranges that are invalidated.
    pub(super) changed_monitored: AtomicU64,
    pub filter: Filter,
    pub(super) index: Index,
    pub(super) table: Table,
    pub(super) slots: Large<[CachedRegion; MOST]>,
}

#[cfg(not(loom))]
const _: () = {
    const START: usize = Account::LINE;
    const END: usize = core::mem::offset_of!(Regions, changes) + Log::READ_BY_HITS;
    assert!(START.is_multiple_of(64) && END == START + 64);
};

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

    pub(super) fn is_full(&self) -> bool {
        self.count == Batch::MOST
    }

    pub(super) fn push(&mut self, id: Id) {
        self.ids[self.count] = id;
        self.count += 1;
    }

    /// Removes the regions for which `stays` is false.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(Id) -> bool) {
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

impl Regions {
    /// The slot with this number.
    #[inline(always)]
    pub fn region(&self, id: Id) -> &CachedRegion {
        &self.slots[id.0 as usize]
    }

    pub(super) fn slots(&self) -> &[CachedRegion] {
        let grown = self.grown.load(Acquire) as usize;
        &self.slots[..grown.min(MOST)]
    }

    /// Every slot that was ever in use.
    pub fn each(&self) -> impl Iterator<Item = (Id, &CachedRegion)> {
        self.each_from(Id(0))
    }

    /// The same, from a slot on. (To skip the others would call the closure for each of them.)
    pub(super) fn each_from(&self, first: Id) -> impl Iterator<Item = (Id, &CachedRegion)> {
        let slots = self.slots().get(first.0 as usize..).unwrap_or_default();
        let slots = slots.iter().enumerate();
        slots.map(move |(n, region)| (Id(first.0 + n as u32), region))
    }

    /// What an empty cache needs: where each part begins, and how many bytes it has. The first part
    /// is all that precedes the table.
    pub const FIRST: [(usize, usize); 3] = {
        let to_index = core::mem::offset_of!(Regions, index) + Index::FIRST;
        [
            (0, to_index.next_multiple_of(PAGE_SIZE)),
            (
                core::mem::offset_of!(Regions, table),
                Table::FIRST.next_multiple_of(PAGE_SIZE),
            ),
            (
                core::mem::offset_of!(Regions, slots),
                Large::<[CachedRegion; MOST]>::next_size(0),
            ),
        ]
    };

    /// What [`Regions::FIRST`] names is mapped.
    pub fn has_first(&self) {
        self.table.has_first();
        let slots = Regions::FIRST[2].1 / size_of::<CachedRegion>();
        self.ready.store(slots.min(MOST) as u32, Release);
    }

    /// The bytes of so many slots, as they are mapped.
    fn bytes_of(slots: u32) -> usize {
        (slots as usize * size_of::<CachedRegion>()).next_multiple_of(PAGE_SIZE)
    }

    /// Maps more slots after the first `ready`. False if there is no room. Also false if another
    /// thread maps them at this moment: it may be stopped, so nobody waits for it.
    #[cold]
    fn map_slots(&self, ready: u32) -> bool {
        let from = Regions::bytes_of(ready);
        let to = Large::<[CachedRegion; MOST]>::next_size(from);
        if from >= to || !self.slots.map(from, to) {
            return false;
        }
        let slots = (to / size_of::<CachedRegion>()).min(MOST) as u32;
        // Before the first of them is handed out.
        #[cfg(not(test))]
        crate::cache::place::take(self.objects_to(slots));
        // The thread that has mapped them is the only one here.
        self.ready.store(slots, Release);
        true
    }

    /// Whether a slot is mapped, or has been mapped now.
    #[inline]
    fn has_slot(&self, slot: u32) -> bool {
        loop {
            let ready = self.ready.load(Acquire);
            if slot < ready {
                return true;
            }
            if !self.map_slots(ready) && self.ready.load(Acquire) == ready {
                return false;
            }
        }
    }

    /// The addresses of the objects that are mapped.
    pub fn objects(&self) -> core::ops::Range<usize> {
        self.objects_to(self.ready.load(Acquire))
    }

    fn objects_to(&self, slots: u32) -> core::ops::Range<usize> {
        let start = self.first_object();
        start..start + slots as usize * size_of::<CachedRegion>()
    }

    #[inline(always)]
    fn first_object(&self) -> usize {
        (&raw const *self.slots).expose_provenance()
    }

    /// Takes the lock for a thread of the program, which waits a moment at most. `None`: the lock
    /// stays held. The thread that holds it may be stopped until this one goes on, or be dead.
    pub fn lock_of_program(&self) -> Option<Locked<'_>> {
        self.lock_for(Owner::of_program(self.process()), Patience::While)
    }

    /// The same, for a call that cannot do without the lock: it waits longer.
    pub fn lock_patiently(&self) -> Option<Locked<'_>> {
        self.lock_for(Owner::of_program(self.process()), Patience::Long)
    }

    /// The same, in an interposed call, in a task that may have another thread's thread-local
    /// variables, or in a helper thread.
    pub fn lock_in_call(&self) -> Option<Locked<'_>> {
        self.lock_for(Owner::ask(), Patience::Moment)
    }

    /// For tests, in which nobody keeps the lock.
    #[cfg(test)]
    pub fn lock(&self) -> Locked<'_> {
        self.lock_patiently().expect("somebody keeps the lock")
    }

    /// A number that only this process has: a forked child has no cache.
    fn process(&self) -> usize {
        (&raw const *self).addr()
    }

    fn lock_for(&self, by: Owner, patience: Patience) -> Option<Locked<'_>> {
        if self.is_orphaned() {
            return None;
        }
        match self.lock.lock(by, patience) {
            Ok(held) => Some(Locked::new(self, held)),
            Err(owner) => {
                self.look_after(owner);
                None
            }
        }
    }

    /// This owner keeps the lock. If it is dead, what the lock guards may be half changed.
    #[cold]
    fn look_after(&self, owner: Owner) {
        if owner.has_ended() && !self.orphaned.swap(true, SeqCst) {
            self.changes.distrust();
            log::later(format_args!(
                "regions are not reused from now on: a task that shares this process's memory was \
                 killed while it worked on them"
            ));
        }
    }

    /// Whether a task has died that held the lock. Then nobody takes the lock any more, no region
    /// is used again, and each thread ends by itself what it finds to end.
    #[inline]
    pub fn is_orphaned(&self) -> bool {
        self.orphaned.load(Relaxed)
    }

    /// Whether it is of no use to try to take the lock now: a thread has just done so in vain.
    pub fn is_locked_in_vain(&self) -> bool {
        self.is_orphaned() || self.lock.is_in_vain()
    }

    /// Whether the table has an entry for this purpose. Has the processor fetch the slot that the
    /// entry leads to, to be written.
    #[inline(always)]
    pub fn fetch(&self, lookup_key: &LookupKey) -> bool {
        let shape = self.shape.load(Acquire);
        let Some(id) = self.table.find(shape, lookup_key, Some) else {
            return false;
        };
        #[cfg(target_arch = "x86_64")]
        if let Some(region) = self.slots.get(id.0 as usize) {
            use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: the instruction changes nothing that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>((&raw const *region).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = id;
        true
    }

    /// Takes a region that serves, for one more user.
    #[inline(always)]
    pub fn take(&self, lookup_key: &LookupKey) -> Option<(Id, Grant)> {
        let shape = self.shape.load(Acquire);
        self.table
            .find(shape, lookup_key, |id| self.take_this(id, lookup_key))
    }

    #[inline(always)]
    pub(super) fn take_this(&self, id: Id, lookup_key: &LookupKey) -> Option<(Id, Grant)> {
        let region = self.slots.get(id.0 as usize)?;
        let serves = |seen| lookup_key.may_share(seen) && region.serves(lookup_key);
        Some((id, region.state.take_if(serves)?))
    }

    /// Whether a slot is a monitored range of exactly this memory, unchanged as far as the log is
    /// applied.
    #[inline(always)]
    pub fn is_monitored_of(&self, id: Id, page_range: PageRange) -> bool {
        let region = self.region(id);
        region
            .state
            .is_monitored_that(|_| region.page_range() == page_range)
    }

    /// Whether the memory of a monitored range has changed that is still linked.
    pub fn has_changed_monitoreds(&self) -> bool {
        self.changed_monitored.load(Relaxed) > 0
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
    #[inline(never)]
    fn another(&self, id: Id) -> Option<&CachedRegion> {
        let slot = self.region(self.pop()?);
        slot.state.before_fields();
        slot.copy_object(self.region(id));
        slot.owner.store(Link::to(id));
        slot.state.make_handle();
        Some(slot)
    }

    /// The slot whose object is at this address, if there is one.
    #[inline(always)]
    fn slot_of(&self, object: usize) -> Option<Id> {
        let offset = object.checked_sub(self.first_object())?;
        let slot = offset / size_of::<CachedRegion>();
        let within = offset - slot * size_of::<CachedRegion>();
        let is_there = within == OBJECT_OFFSET && slot < self.ready.load(Relaxed) as usize;
        is_there.then_some(Id(slot as u32))
    }

    /// The handle whose object is at this address, if there is one. The handle may be released
    /// already.
    pub fn handle(&self, object: usize) -> Option<Handle> {
        let slot = self.slot_of(object)?;
        let region = self.region(slot);
        Some(if region.state.load().is_handle() {
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

    /// Ends one use of a region at the time `now` of the cache's clock. `None`: the handle is
    /// released already.
    pub fn release(&self, handle: Handle, now: u32) -> Option<Left> {
        let region = self.region(handle.region);
        if handle.grant == Grant::Another {
            if !self.region(handle.slot).state.release_handle() {
                return None;
            }
            self.push(handle.slot);
        }
        // Stored before the release: after it, the slot may belong to another region.
        region.released.store(now, Relaxed);
        region.state.release(handle.grant)
    }

    /// Ends the only use of the region whose own handle is this object, and leaves the region idle.
    /// `None` if this is not so; then nothing has changed.
    #[inline(always)]
    pub fn release_last(&self, object: usize, now: u32) -> Option<Id> {
        let id = self.slot_of(object)?;
        let region = self.region(id);
        // Stored before the release, as above.
        let store = || region.released.store(now, Relaxed);
        region.state.release_last(store).then_some(id)
    }

    /// Ends a use that `take` granted and that has no handle.
    pub fn give_back(&self, id: Id, grant: Grant) -> Option<Left> {
        self.region(id).state.release(grant)
    }

    /// The hits that the regions count, of those that have not ended. The lock keeps regions from
    /// ending. Without it, the hits of those that end meanwhile are missing.
    pub fn hits_of_regions(&self) -> u64 {
        let hits = self.each().map(|(_, region)| region.hits());
        self.many_hits.load(Relaxed) + hits.sum::<u64>()
    }

    /// Calls `each` for every idle region.
    pub fn each_idle(&self, mut each: impl FnMut(&CachedRegion)) {
        for (_, region) in self.each() {
            let seen = region.state.load();
            if seen.is_unused() || seen.is_ending() {
                each(region);
            }
        }
    }

    /// Whether the slots that were ever in use are more than so many.
    pub fn has_more_slots_than(&self, slots: u32) -> bool {
        self.grown.load(Relaxed) > slots
    }

    /// The number of idle regions and their summed length.
    pub fn idle(&self) -> (u64, u64) {
        let (mut count, mut bytes) = (0, 0);
        self.each_idle(|region| {
            count += 1;
            bytes += region.page_range().bytes();
        });
        (count, bytes)
    }

    /// Whether the idle regions have more than so many bytes together.
    pub fn is_more_idle_than(&self, bytes: u64) -> bool {
        let mut sum = 0;
        self.each().any(|(_, region)| {
            if region.state.load().is_unused() {
                sum += region.page_range().bytes();
            }
            sum > bytes
        })
    }

    /// Looks for idle regions that `which` selects, from slot `from` on, until the batch is full.
    /// Returns the slot to continue at, if any are left. This takes no lock: the caller claims the
    /// regions by [`Locked::claim_those`].
    pub fn find_idle(
        &self,
        from: Id,
        batch: &mut Batch,
        mut which: impl FnMut(&CachedRegion) -> bool,
    ) -> Option<Id> {
        self.find(from, batch, |region| {
            region.state.load().is_unused() && which(region)
        })
    }

    /// The same, for slots in any state.
    pub fn find(
        &self,
        from: Id,
        batch: &mut Batch,
        mut which: impl FnMut(&CachedRegion) -> bool,
    ) -> Option<Id> {
        for (id, region) in self.each_from(from) {
            if batch.is_full() {
                return Some(id);
            }
            if which(region) {
                batch.push(id);
            }
        }
        None
    }

    /// The number of regions in use and their summed length.
    pub fn in_use(&self) -> (u64, u64) {
        let used = self.each().filter(|(_, region)| {
            let seen = region.state.load();
            seen.is_registered() && seen.users() > 0 && !region.is_left()
        });
        used.fold((0, 0), |(count, bytes), (_, region)| {
            (count + 1, bytes + region.page_range().bytes())
        })
    }

    /// Whether a region that `of` selects has a user.
    pub fn is_used(&self, mut of: impl FnMut(&CachedRegion) -> bool) -> bool {
        self.each().any(|(_, region)| {
            let seen = region.state.load();
            seen.is_registered() && seen.users() > 0 && !region.is_left() && of(region)
        })
    }

    /// Whether a region is claimed and not yet ended.
    pub fn is_ending(&self) -> bool {
        self.ending() != 0
    }

    /// Whether so much waits to be deregistered that the cleaner must wake before its next tick.
    /// The answer is yes once, until the cleaner has ended what waits ([`Regions::nothing_waits`]).
    pub fn has_much_to_end(&self, regions: u32) -> bool {
        let bytes = self.account.limit().bytes as u64 / 16;
        let evicted_bytes = self.evicted_bytes.load(Relaxed);
        let much = (evicted_bytes > 0 && evicted_bytes >= bytes) || self.ending() >= regions;
        much && !self.much_waits.load(Relaxed) && !self.much_waits.swap(true, Relaxed)
    }

    /// Notes that nothing waits to be deregistered any more.
    pub fn nothing_waits(&self) {
        self.evicted_bytes.store(0, Relaxed);
        self.much_waits.store(false, Relaxed);
    }

    /// The number of regions that are claimed and not yet ended.
    pub fn ending(&self) -> u32 {
        self.ending.load(SeqCst)
    }

    /// Waits until no claim up to number `until` is left for the regions that `of` selects. False
    /// if no region has ended for so long that the threads that end them must be stopped.
    pub fn wait_for_claims(&self, until: u64, mut of: impl FnMut(&CachedRegion) -> bool) -> bool {
        /// The kernel may take seconds to unpin a region.
        const PATIENCE: Duration = Duration::from_secs(5);
        let now = || Duration::from_nanos(clock::monotonic_by_kernel());
        let (mut seen, mut since, mut all) = (self.ended.load(SeqCst), now(), true);
        self.waiting.fetch_add(1, SeqCst);
        // A slot that no such claim is left for never gets one: later claims have larger numbers.
        let mut from = Id(0);
        while self.is_ending() {
            let ended = self.ended.load(SeqCst);
            let waiting = self.each_from(from).find(|(_, region)| {
                region.state.load().is_ending() && region.claim.load(Relaxed) <= until && of(region)
            });
            match waiting {
                // A thread has waited for this one before.
                Some((_, region))
                    if region.claim.load(Relaxed) <= self.claims_in_vain.load(Relaxed) =>
                {
                    all = false;
                    break;
                }
                Some((id, _)) => from = id,
                None => break,
            }
            if ended != seen {
                (seen, since) = (ended, now());
            } else if now() - since > PATIENCE {
                self.claims_in_vain.fetch_max(until, Relaxed);
                all = false;
                break;
            }
            futex::wait(&self.ended, ended, Some(Duration::from_millis(100)));
        }
        self.waiting.fetch_sub(1, SeqCst);
        all
    }

    /// Calls `each` for the regions that overlap a range, until `each` returns false. `each` must
    /// not change the index. Under the lock.
    ///
    /// The index finds small regions by granules of a few pages, of which a large range has too
    /// many. The filter tells in which chunks there are small regions at all.
    pub(super) fn overlapping(
        &self,
        range: PageRange,
        mut each: impl FnMut(Id, &CachedRegion) -> bool,
    ) {
        self.each_overlapping(range, &mut each);
    }

    /// Calls `each` for the regions that reach into the chunks of a range, until `each` returns
    /// false: first for those that overlap `first`. `each` must not change the index. Under the
    /// lock.
    ///
    /// A chunk has hundreds of granules, each a cache miss or two. The filter tells when the
    /// regions in `first` are all that there are.
    pub(super) fn near(
        &self,
        range: PageRange,
        first: PageRange,
        mut each: impl FnMut(Id, &CachedRegion) -> bool,
    ) {
        self.each_near(range, first, &mut each);
    }

    /// There is one copy of this code, not one for each caller.
    fn each_near(
        &self,
        range: PageRange,
        first: PageRange,
        each: &mut dyn FnMut(Id, &CachedRegion) -> bool,
    ) {
        let chunks = range.extended(CHUNK);
        if chunks.bytes() > FEW {
            return self.each_overlapping(chunks, each);
        }
        // What is found must be among what the filter has counted.
        let first = first.common(chunks).unwrap_or(range);
        let (mut found, mut goes_on) = (0, true);
        self.overlapping(first, |id, region| {
            found += 1;
            goes_on = each(id, region);
            goes_on
        });
        if goes_on && found < self.filter.at_most(chunks) {
            self.overlapping(chunks, |id, region| {
                region.page_range().overlaps(first) || each(id, region)
            });
        }
    }

    fn each_overlapping(&self, range: PageRange, each: &mut dyn FnMut(Id, &CachedRegion) -> bool) {
        if range.end.saturating_sub(range.start) <= FEW {
            self.index
                .overlapping_of(u64::MAX, &*self.slots, range, each);
            return;
        }
        if Filter::is_too_large_to_look(range) {
            let mut all = self.each();
            all.all(|(id, region)| {
                !region.state.load().is_linked()
                    || !region.page_range().overlaps(range)
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
                    let start = region.page_range().start.max(range.start);
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

    /// Claims a region if it has no user. The caller must deregister it. Under the lock, or once a
    /// dead task has the lock: then no slot becomes another region's any more.
    pub(super) fn claim(&self, id: Id) -> bool {
        let region = self.region(id);
        // Counted before the claim: a waiting thread must not find the region ending while `ending`
        // is 0.
        self.ending.fetch_add(1, SeqCst);
        if !region.state.claim() {
            self.ending.fetch_sub(1, SeqCst);
            return false;
        }
        let claim = self.claims.fetch_add(1, Relaxed) + 1;
        region.claim.store(claim, Relaxed);
        true
    }

    /// A claimed region has ended, or the claim is taken back.
    pub(super) fn claim_ended(&self) {
        self.ending.fetch_sub(1, SeqCst);
        if self.waiting.load(SeqCst) != 0 {
            self.ended.fetch_add(1, SeqCst);
            futex::wake(&self.ended, i32::MAX);
        }
    }

    /// Claims so far.
    pub fn claims(&self) -> u64 {
        self.claims.load(Relaxed)
    }

    /// Queues a claimed region: the next thread to call [`Regions::next_evicted`] deregisters it.
    pub fn ends_later(&self, id: Id) {
        self.evicted.push(&*self.slots, id);
    }

    /// Takes a claimed region off the list of those that wait. The caller must deregister it.
    pub fn next_evicted(&self) -> Option<Id> {
        self.evicted.pop(&*self.slots)
    }

    /// Whether [`Regions::touch_ahead`] has something to do.
    pub fn has_to_touch(&self) -> bool {
        let grown = self.grown.load(Relaxed);
        let ahead = (grown + IN_HUGE_PAGE / 2).min(MOST as u32);
        (grown >= LARGE && self.touched.load(Relaxed) < ahead) || self.table.is_to_be_touched()
    }

    /// Touches memory in huge pages that registrations will need soon. The kernel clears 2 MiB
    /// then, and in a virtual machine the host finds memory for them: 5 ms, for which no
    /// registration waits here. Needs no lock.
    pub fn touch_ahead(&self) {
        // The exchange writes to the page, and changes nothing.
        let touch = |state: &AtomicU32| {
            let _ = state.compare_exchange(0, 0, Relaxed, Relaxed);
        };
        let grown = self.grown.load(Relaxed);
        if grown >= LARGE {
            let from = self.touched.load(Relaxed).max(grown);
            let to = (grown + IN_HUGE_PAGE).min(MOST as u32);
            let there = to == 0 || self.has_slot(to - 1);
            let slots = self.slots.iter().take(to as usize).skip(from as usize);
            if there {
                slots
                    .step_by(IN_PAGE)
                    .for_each(|slot| touch(&slot.refusals));
            }
            self.touched.store(to, Relaxed);
        }
        self.table.each_page_to_fill(touch);
    }

    pub(super) fn pop(&self) -> Option<Id> {
        self.free.pop(&*self.slots).or_else(|| {
            let grown = self.grown.fetch_update(AcqRel, Relaxed, |grown| {
                ((grown as usize) < MOST && self.has_slot(grown)).then_some(grown + 1)
            });
            grown.ok().map(Id)
        })
    }

    pub(super) fn push(&self, id: Id) {
        self.free.push(&*self.slots, id);
    }
}
