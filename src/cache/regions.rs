// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Regions`], the memory of the cache that all threads share, and what any thread does with it
//! without the lock: it takes a region and releases it, waits for the end of claimed regions, sums.
//! `locked.rs` has what the holder of the lock does.
//!
//! Each transition of a region's *state* (`region/state.rs`) has one owner: the thread whose
//! compare-and-swap succeeds. Only the thread that makes a region writes the fields that a look-up
//! reads, before `keep` (release); other threads read them after the state (acquire). The holder of
//! the lock owns the tree, the table's entries and the applying of the ring. One thread deregisters a
//! claimed region, outside the lock, when it has no user and no thread can take it any more. The
//! lemmas are in `docs/proof.md`.

use crate::account::Account;
use crate::find::filter::Filter;
use crate::find::table::Table;
use crate::find::tree::Tree;
use crate::lock::Lock;
use crate::mapping::{HUGE_PAGE, Large, map, map_at, map_with, unmap};
use crate::noted::Noted;
use crate::region::slot::{Id, Link, LookupKey, OBJECT_OFFSET, Slot};
use crate::region::state::{AfterRelease, Grant, Seen};
use crate::watch::ring::Ring;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use core::time::Duration;
use rdmamr_mr::Mr;
use rdmamr_sys::futex::{self, Remaining};
use rdmamr_sys::pages::{FAR_AWAY, LARGEST_PAGE};

/// The largest number of slots: regions and further handles.
pub const MOST: usize = tiny_or!(48, 1 << 18);

/// The regions of a cache, and what finds them: the memory that all threads share. The process's
/// [`crate::instance::Cache`] adds its watch and its threads. Zeroed memory has no region. The
/// structure is so large that only parts of its address range are mapped ([`map_new`]): all fields before
/// the tables, and the parts in use of the arrays.
#[repr(C)]
pub struct Regions {
    /// Besides its table entry and its region, a hit or a release reads a single cache line: the
    /// end of the account, the table's shape, and the beginning of the ring. Events write
    /// to that line, and misses that make the cache full; hits do not.
    pub account: Account,
    /// The shape of the table in use ([`Table`]).
    pub(super) shape: AtomicU32,
    /// The number of mapped slots.
    pub(super) ready: AtomicU32,
    pub ring: Ring,
    pub(super) lock: Lock,
    /// The number of slots that were ever in use.
    pub(super) grown: AtomicU32,
    pub(super) free: List,
    /// Claimed regions that wait to be deregistered.
    pub(super) evicted: List,
    /// A thread has waited in vain for claimed regions to end, and none has ended since.
    pub(super) waited_in_vain: AtomicBool,
    /// The number of regions that are claimed and not yet ended.
    pub(super) ending: AtomicU32,
    /// A futex: it grows whenever a region has ended while a thread waits.
    pub(super) ended: AtomicU32,
    /// The number of threads that wait on `ended`.
    pub(super) waiting: AtomicU32,
    /// Hits that overflowed the regions' own 32-bit counts.
    pub(super) many_hits: AtomicU64,
    pub noted: Noted,
    /// The number of linked monitored ranges that are invalidated.
    pub(super) changed_monitored: AtomicU64,
    pub filter: Filter,
    pub(super) tree: Tree,
    pub(super) table: Table,
    pub(super) slots: Large<[Slot; MOST]>,
}

#[cfg(not(loom))]
const _: () = {
    const START: usize = Account::LINE;
    const END: usize = core::mem::offset_of!(Regions, ring) + Ring::READ_BY_HITS;
    assert!(START % 64 == 0 && END == START + 64);
};

/// Finds a place for the cache, and maps the part that an empty cache needs.
///
/// The range is as large as the cache may ever become, 66 MiB. Only the parts in use are mapped, some
/// 500 KiB at first: the process may be limited (RLIMIT_AS, RLIMIT_DATA), and mlockall(2) makes each
/// mapping resident. The rest of the range is not reserved. The range lies far from the addresses that
/// the kernel chooses. If a part cannot be mapped, because a limit is reached or something else is
/// mapped there, the cache does without that part.
///
/// A reference to the cache covers memory that is not mapped. The cache consists of atomics, so the
/// compiler does not assume that any part of it can be read. Each part knows which of its bytes are
/// mapped.
pub fn map_new() -> Option<&'static Regions> {
    const PLACES: usize = 8;
    const APART: usize = (size_of::<Regions>() + align_of::<Regions>()).next_multiple_of(32 << 20);
    let mut places = (0..PLACES)
        .map(|n| (FAR_AWAY + (1 << 24) + n * APART).next_multiple_of(align_of::<Regions>()));
    places.find_map(begin).or_else(|| begin(free_place()?))
}

/// A place where nothing is mapped, for an address space that does not reach as far as the others.
fn free_place() -> Option<usize> {
    let size = size_of::<Regions>() + align_of::<Regions>();
    let start = map_with(0, size, libc::PROT_NONE)?;
    unmap(start, size);
    Some(start.next_multiple_of(align_of::<Regions>()))
}

fn begin(address: usize) -> Option<&'static Regions> {
    if !map_at(address, Regions::FIRST.next_multiple_of(LARGEST_PAGE)) {
        return None;
    }
    let regions = core::ptr::with_exposed_provenance::<Regions>(address);
    // SAFETY: zeroed memory is an empty cache, and each of its parts knows which of its bytes are
    // mapped. The address is aligned, and nothing is unmapped from now on.
    Some(unsafe { &*regions })
}

/// The slots: those that were ever in use, those that are mapped, those that are free.
impl Regions {
    /// The number of bytes, from its start on, that an empty cache needs mapped.
    pub const FIRST: usize = core::mem::offset_of!(Regions, table) + Table::FIRST;

    #[inline(always)]
    pub fn region(&self, id: Id) -> &Slot {
        &self.slots.0[id.0 as usize]
    }

    pub fn slots(&self) -> &[Slot] {
        let grown = self.grown.load(Acquire) as usize;
        &self.slots.0[..grown.min(MOST)]
    }

    /// Every slot that was ever in use.
    pub fn each(&self) -> impl Iterator<Item = (Id, &Slot)> {
        let slots = self.slots().iter().enumerate();
        slots.map(|(n, region)| (Id(n as u32), region))
    }

    /// Maps more slots after the first `ready`. False if they cannot be mapped. Also false if
    /// another thread maps them at this moment: that thread may be stopped, so no thread waits for
    /// it.
    #[cold]
    fn map_slots(&self, ready: u32) -> bool {
        let from = (ready as usize * size_of::<Slot>()).next_multiple_of(LARGEST_PAGE);
        let all = size_of_val(&self.slots.0).next_multiple_of(LARGEST_PAGE);
        // A few at first, and huge pages once the array is large.
        let to = all.min(from + from.clamp(64 << 10, HUGE_PAGE));
        if from >= to || !map(&raw const self.slots.0, from, to) {
            return false;
        }
        let slots = (to / size_of::<Slot>()).min(MOST) as u32;
        // Stored before the first of these slots is handed out.
        #[cfg(not(any(test, feature = "tiny")))]
        take_objects(self.objects(slots));
        // Only the thread that has mapped the slots gets here.
        self.ready.store(slots, Release);
        true
    }

    /// Whether a slot is mapped: one of those, or the next one, which this maps if it is not.
    #[inline]
    fn has_slot(&self, slot: u32) -> bool {
        let ready = self.ready.load(Acquire);
        slot < ready || self.map_slots(ready) || slot < self.ready.load(Acquire)
    }

    /// The addresses of the objects of the first `slots` slots.
    pub fn objects(&self, slots: u32) -> core::ops::Range<usize> {
        let start = self.first_object();
        start..start + slots as usize * size_of::<Slot>()
    }

    #[inline(always)]
    pub(super) fn first_object(&self) -> usize {
        (&raw const self.slots.0).expose_provenance()
    }

    pub(super) fn pop(&self) -> Option<Id> {
        self.free.pop(&self.slots.0).or_else(|| {
            let grown = self.grown.fetch_update(AcqRel, Relaxed, |grown| {
                ((grown as usize) < MOST && self.has_slot(grown)).then_some(grown + 1)
            });
            grown.ok().map(Id)
        })
    }

    pub(super) fn push(&self, id: Id) {
        self.free.push(&self.slots.0, id);
    }
}

/// The link to the first slot, and above it a counter that makes each value of the head new. The
/// counter prevents the ABA problem: a head that was read before other threads popped and pushed
/// the same slot differs from the present one. Zeroed memory is an empty list.
#[repr(transparent)]
pub struct List(AtomicU64);

fn head(before: u64, first: Link) -> u64 {
    ((before >> 32) + 1) << 32 | u64::from(first.bits())
}

impl List {
    /// Takes the first slot.
    pub fn pop(&self, slots: &[Slot]) -> Option<Id> {
        let first = |seen| Link::from_bits(seen as u32).id();
        let rest = |seen| Some(head(seen, slots[first(seen)?.0 as usize].next.load()));
        first(self.0.fetch_update(AcqRel, Acquire, rest).ok()?)
    }

    /// Puts a slot in front.
    pub fn push(&self, slots: &[Slot], id: Id) {
        let longer = |seen| {
            let first = Link::from_bits(seen as u32);
            slots[id.0 as usize].next.store(first);
            Some(head(seen, Link::to(id)))
        };
        let _ = self.0.fetch_update(AcqRel, Relaxed, longer);
    }
}

/// The addresses of the cache's objects, in this process or in the process that it was forked from:
/// the first address, and the end of the mapped part. No other object lies between the two.
static OBJECTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether this process or its parent has had a cache.
#[inline(always)]
pub fn has_had_cache() -> bool {
    OBJECTS[1].load(Acquire) != 0
}

/// The cache is about to have objects at these addresses.
pub fn take_objects(objects: core::ops::Range<usize>) {
    OBJECTS[0].store(objects.start, Relaxed);
    OBJECTS[1].fetch_max(objects.end, Release);
}

/// Whether the region's object lies in a slot of a cache, of this process or of its parent: the region was
/// handed out to a relaxed call.
#[inline(always)]
pub fn is_in_slot(mr: Mr) -> bool {
    // Acquire: the thread that sees the end also sees the first address.
    mr.address() < OBJECTS[1].load(Acquire) && mr.address() >= OBJECTS[0].load(Relaxed)
}

/// Uses: a registration takes a region, a release gives it back.
impl Regions {
    /// Whether the table has an entry for this key. Has the processor prefetch the slot that the
    /// entry leads to, because the hit will write to it.
    #[inline(always)]
    pub fn fetch(&self, lookup_key: &LookupKey) -> bool {
        let shape = self.shape.load(Acquire);
        let Some(id) = self.table.find(shape, lookup_key, Some) else {
            return false;
        };
        #[cfg(target_arch = "x86_64")]
        if let Some(region) = self.slots.0.get(id.0 as usize) {
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
        self.table.find(shape, lookup_key, |id| {
            let region = self.slots.0.get(id.0 as usize)?;
            let is_free = |seen: Seen| !lookup_key.exclusive || seen.users() == 0;
            let serves = |seen| is_free(seen) && region.serves(lookup_key);
            Some((id, region.state.take_if(serves)?))
        })
    }

    /// Whether the memory of a monitored range that is still linked has changed.
    pub fn has_changed_monitored_range(&self) -> bool {
        self.changed_monitored.load(Relaxed) > 0
    }

    /// The object for a grant, with the program's address and length. `None` if another handle is
    /// needed and no slot is free.
    #[inline(always)]
    pub fn object(&self, id: Id, grant: Grant, addr: u64, length: u64) -> Option<usize> {
        let region = self.region(id);
        let holder = match grant {
            Grant::Own => {
                if region.count_hit() {
                    self.many_hits.fetch_add(1 << u32::BITS, Relaxed);
                }
                region
            }
            Grant::Another => self.another(id)?,
        };
        holder.set_memory(addr, length);
        Some(holder.object())
    }

    #[cold]
    #[inline(never)]
    fn another(&self, id: Id) -> Option<&Slot> {
        let slot = self.region(self.pop()?);
        slot.state.before_fields();
        self.region(id).was_shared.store(1, Relaxed);
        slot.copy_object(self.region(id));
        slot.owner.store(Link::to(id));
        slot.state.make_handle();
        Some(slot)
    }

    /// The slot whose object is at this address, if there is one.
    #[inline(always)]
    fn slot_of(&self, object: usize) -> Option<Id> {
        let offset = object.checked_sub(self.first_object())?;
        let slot = offset / size_of::<Slot>();
        let within = offset - slot * size_of::<Slot>();
        let is_there = within == OBJECT_OFFSET && slot < self.ready.load(Relaxed) as usize;
        is_there.then_some(Id(slot as u32))
    }

    /// The region of the handle whose object is at this address, if there is one. The handle may be
    /// released already.
    pub fn region_of(&self, object: usize) -> Option<Id> {
        let slot = self.slot_of(object)?;
        let found = self.region(slot);
        match found.state.load().is_handle() {
            true => found.owner.load().id(),
            false => Some(slot),
        }
    }

    /// Ends the use of a region by the handle whose object is at this address, at the time `now` of
    /// the cache's clock. `None` if there is no such handle, or if it is released already.
    pub fn release(&self, object: usize, now: u32) -> Option<(Id, AfterRelease)> {
        let (slot, id) = (self.slot_of(object)?, self.region_of(object)?);
        let mut grant = Grant::Own;
        if slot != id {
            grant = Grant::Another;
            if !self.region(slot).state.release_handle() {
                return None;
            }
            self.push(slot);
        }
        let region = self.region(id);
        // Stored before the release: after it, the slot may belong to another region.
        region.released.store(now, Relaxed);
        Some((id, region.state.release(grant)?))
    }

    /// Ends the only use of the region whose own handle is this object, and leaves the region idle.
    /// `None` if there is no such use; then nothing has changed.
    #[inline(always)]
    pub fn release_last(&self, object: usize, now: u32) -> Option<Id> {
        let id = self.slot_of(object)?;
        let region = self.region(id);
        // Stored before the release, as above.
        let store = || region.released.store(now, Relaxed);
        region.state.release_last(store).then_some(id)
    }
}

/// Claimed regions: the list of those that wait to be deregistered, and the threads that wait for their
/// end.
impl Regions {
    /// Records that a claimed region has ended, or that its claim is taken back.
    pub(super) fn claim_ended(&self) {
        self.ending.fetch_sub(1, SeqCst);
        self.waited_in_vain.store(false, Relaxed);
        if self.waiting.load(SeqCst) != 0 {
            self.ended.fetch_add(1, SeqCst);
            futex::wake(&self.ended, i32::MAX);
        }
    }

    /// Whether a region is claimed and not yet ended.
    pub fn is_ending(&self) -> bool {
        self.ending() != 0
    }

    /// The number of regions that are claimed and not yet ended.
    pub fn ending(&self) -> u32 {
        self.ending.load(SeqCst)
    }

    /// Queues a claimed region: the next thread to call [`Regions::next_evicted`] deregisters it.
    pub fn queue(&self, id: Id) {
        self.evicted.push(&self.slots.0, id);
    }

    /// Removes a claimed region from that list. The caller must deregister it.
    pub fn next_evicted(&self) -> Option<Id> {
        self.evicted.pop(&self.slots.0)
    }

    /// Waits for the end of those claimed regions that `of` selects. False if no region has ended for
    /// so long that the threads that end regions are probably stopped.
    pub fn wait_for_claimed(&self, of: impl Fn(&Slot) -> bool) -> bool {
        /// The kernel may take seconds to unpin a region.
        const TIMEOUT: Duration = Duration::from_secs(5);
        if !self.is_ending() {
            return true;
        }
        let timeout = || Remaining::new(TIMEOUT, Duration::from_millis(100));
        let (mut ended, mut remaining) = (self.ended.load(SeqCst), timeout());
        self.waiting.fetch_add(1, SeqCst);
        // Each slot is looked at once: a region that is claimed from now on need not be waited for.
        let all = self.each().all(|(_, region)| {
            let seen = region.state.load();
            if !(seen.is_ending() && of(region)) {
                return true;
            }
            let still_ends = || {
                let now = region.state.load();
                self.is_ending() && now.is_ending() && now.generation() == seen.generation()
            };
            loop {
                let now = self.ended.load(SeqCst);
                if !still_ends() {
                    return true;
                }
                if ended != now {
                    (ended, remaining) = (now, timeout());
                }
                if remaining.is_over() || self.waited_in_vain.load(Relaxed) {
                    return false;
                }
                remaining.wait(&self.ended, now);
            }
        });
        self.waiting.fetch_sub(1, SeqCst);
        if !all {
            // The next thread does not wait, unless a region has ended meanwhile.
            self.waited_in_vain.store(true, Relaxed);
        }
        all
    }

    /// Waits until a region has ended, for a millisecond at most.
    pub fn wait_for_an_end(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let ended = self.ended.load(SeqCst);
        if self.is_ending() {
            futex::wait(&self.ended, ended, Some(Duration::from_millis(1)));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }
}

/// Sums, which read all slots.
impl Regions {
    /// The hits that the regions count, without those that have ended. Under the lock no region
    /// ends. Without the lock, the hits of regions that end meanwhile are missing.
    pub fn hits_of_regions(&self) -> u64 {
        let hits = self.each().map(|(_, region)| region.hits());
        self.many_hits.load(Relaxed) + hits.sum::<u64>()
    }

    /// The regions without users, those that are being ended included.
    pub fn each_without_users(&self) -> impl Iterator<Item = &Slot> {
        let regions = self.each().map(|(_, region)| region);
        regions.filter(|region| {
            let seen = region.state.load();
            seen.is_unused() || seen.is_ending()
        })
    }

    /// The regions in use.
    pub fn each_used(&self) -> impl Iterator<Item = &Slot> {
        let regions = self.each().map(|(_, region)| region);
        regions.filter(|region| {
            let seen = region.state.load();
            seen.is_live() && seen.users() > 0 && !region.has_no_file()
        })
    }
}
