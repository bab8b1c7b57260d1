// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranges of memory for which libfabric's cache has entries, and the number of entries of each.
//!
//! A *subscription* is such a range. The library's cache watches it as a *monitored range*: a slot
//! that is linked, watched, kept and invalidated as a region is, and that is not a region
//! (`cache/region/state.rs`). A subscription has the number of its slot. The lists change only
//! under the lock of the library's cache; [`Set::find`] does not take that lock.

use core::sync::atomic::{AtomicU32, Ordering::*};
use rdmamr_cache::locked::Locked;
use rdmamr_cache::region::slot::{AtomicLink, Cause, Id, Link, Slot};
use rdmamr_cache::regions::{self, Regions};
use rdmamr_sys::pages::PageRange;

/// The most subscriptions at a time. A libfabric that does not unsubscribe leaves the subscriptions
/// of ended entries behind.
const MOST: u32 = if cfg!(test) { 8 } else { 16_384 };

/// The number of lists by which a subscription is found.
const LISTS: usize = if cfg!(test) { 2 } else { 1 << 14 };

/// A look-up without the lock gives up after this many subscriptions.
const LOOK_AT_MOST: usize = 64;

/// Values of [`Set::lost`].
const NOTHING: u32 = 0;
const LOST: u32 = 1;
const LEAVING: u32 = 2;

/// The subscriptions. Zeroed memory has none.
#[repr(C)]
pub struct Set {
    /// The number of subscriptions.
    count: AtomicU32,
    /// Whether libfabric has an entry without a subscription: `NOTHING`, `LOST`, or `LEAVING` while
    /// libfabric is being notified of all memory.
    lost: AtomicU32,
    /// The first subscription of each list.
    lists: [AtomicLink; LISTS],
    subscriptions: [Subscription; regions::MOST],
}

#[repr(C)]
struct Subscription {
    /// The next one in the list.
    next: AtomicLink,
    /// The number of libfabric's entries for the range, and the number of its earlier entries that
    /// will be gone once libfabric has been notified.
    entries: AtomicU32,
    leaving: AtomicU32,
}

/// Every subscription.
pub fn each(regions: &Regions) -> impl Iterator<Item = (Id, &Slot)> {
    regions
        .each()
        .filter(|(_, region)| region.state.load().is_monitored())
}

impl Set {
    fn list(&self, page_range: PageRange) -> &AtomicLink {
        let mixed =
            (page_range.start ^ page_range.end.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.lists[(mixed >> 40) as usize % LISTS]
    }

    fn of(&self, id: Id) -> &Subscription {
        &self.subscriptions[id.0 as usize]
    }

    fn in_list(&self, page_range: PageRange) -> impl Iterator<Item = Id> {
        let first = self.list(page_range).load().id();
        core::iter::successors(first, |&id| self.of(id).next.load().id())
    }

    /// The subscription for exactly this memory, if the memory has not changed as far as the ring is
    /// applied. Takes no lock. While other threads change the lists, a link may lead anywhere, so
    /// each slot identifies itself.
    #[inline(always)]
    pub fn find(&self, regions: &Regions, page_range: PageRange) -> Option<Id> {
        self.in_list(page_range).take(LOOK_AT_MOST).find(|&id| {
            let range = regions.region(id);
            let is_it = |_| range.page_range() == page_range;
            range.state.is_monitored_that(is_it)
        })
    }

    /// The subscription for exactly this memory, changed or not.
    pub fn get(&self, locked: &Locked<'_>, page_range: PageRange) -> Option<Id> {
        self.in_list(page_range)
            .find(|&id| locked.regions().region(id).page_range() == page_range)
    }

    /// Counts a new entry of libfabric's. Returns the subscription if it is new too.
    pub fn adds_entry(&self, locked: &Locked<'_>, page_range: PageRange) -> Option<Id> {
        if let Some(id) = self.get(locked, page_range) {
            add(&self.of(id).entries, 1);
            return None;
        }
        let full = self.count.load(Relaxed) >= MOST;
        let Some(id) = (!full).then(|| locked.make_monitored(page_range)).flatten() else {
            self.lose();
            return None;
        };
        add(&self.count, 1);
        let (new, list) = (self.of(id), self.list(page_range));
        new.entries.store(1, Relaxed);
        new.leaving.store(0, Relaxed);
        new.next.store(list.load());
        list.store(Link::to(id));
        Some(id)
    }

    /// Uncounts an entry. True if it was the last one: the caller must end the subscription.
    pub fn removes_entry(&self, locked: &Locked<'_>, id: Id) -> bool {
        let subscription = self.of(id);
        // Entries that are about to leave are uncounted first: a count that is too large is safe.
        let entries = match subscription.leaving.load(Relaxed) {
            0 => &subscription.entries,
            _ => &subscription.leaving,
        };
        entries.store(entries.load(Relaxed).saturating_sub(1), Relaxed);
        self.leaves_if_empty(locked, id)
    }

    /// Marks the present entries of an invalidated subscription as leaving: they will be gone once
    /// libfabric has been notified of the memory. Returns that memory.
    pub fn entries_leave(&self, locked: &Locked<'_>, id: Id) -> Option<PageRange> {
        let region = locked.regions().region(id);
        // Checked under the lock: the slot may belong to another region by now.
        let seen = region.state.load();
        (seen.is_monitored() && seen.is_stale()).then(|| {
            let subscription = self.of(id);
            let more = subscription.entries.swap(0, Relaxed);
            add(&subscription.leaving, more);
            region.page_range()
        })
    }

    /// Invalidates all subscriptions and marks their entries as leaving.
    pub fn all_leave(&self, locked: &Locked<'_>) {
        self.lost.store(LEAVING, SeqCst);
        for (id, _) in each(locked.regions()) {
            locked.invalidate(id, Cause::Pressure);
            self.entries_leave(locked, id);
        }
    }

    /// Uncounts the leaving entries, since libfabric has been notified. True if no entry is left:
    /// the caller must end the subscription.
    pub fn has_left(&self, locked: &Locked<'_>, id: Id) -> bool {
        self.of(id).leaving.store(0, Relaxed);
        self.leaves_if_empty(locked, id)
    }

    /// Uncounts all entries of a subscription, since libfabric has none. The caller must end the
    /// subscription.
    pub fn forget(&self, locked: &Locked<'_>, id: Id) {
        self.of(id).entries.store(0, Relaxed);
        self.has_left(locked, id);
    }

    fn leaves_if_empty(&self, locked: &Locked<'_>, id: Id) -> bool {
        let subscription = self.of(id);
        if subscription.entries.load(Relaxed) + subscription.leaving.load(Relaxed) > 0 {
            return false;
        }
        let list = self.list(locked.regions().region(id).page_range());
        let before = self.before(list, id);
        before.store(subscription.next.load());
        add(&self.count, u32::MAX);
        // The watch of the memory ends with the subscription: from now on no answer is yes.
        locked.invalidate(id, Cause::Flush);
        true
    }

    /// The link in a list that leads to a subscription.
    fn before<'a>(&'a self, list: &'a AtomicLink, id: Id) -> &'a AtomicLink {
        let mut link = list;
        while let Some(here) = link.load().id().filter(|&here| here != id) {
            link = &self.of(here).next;
        }
        link
    }

    /// Records that libfabric has an entry without a subscription.
    pub fn lose(&self) {
        self.lost.store(LOST, SeqCst);
    }

    /// Whether libfabric has an entry without a subscription.
    pub fn has_lost(&self) -> bool {
        self.lost.load(SeqCst) != NOTHING
    }

    /// Records that every entry of libfabric's has a subscription.
    pub fn know_all(&self) {
        self.lost.store(NOTHING, SeqCst);
    }

    /// Records that libfabric was notified of all memory since [`Set::all_leave`], unless another
    /// entry was left without a subscription meanwhile.
    pub fn found(&self) {
        let _ = self.lost.compare_exchange(LEAVING, NOTHING, SeqCst, SeqCst);
    }

    /// Whether libfabric must be notified of something.
    pub fn is_due(&self, regions: &Regions) -> bool {
        regions.has_changed_monitored_range() || self.has_lost()
    }
}

/// Adds to a number that changes only under the lock, and so needs no locked instruction.
fn add(number: &AtomicU32, amount: u32) {
    number.store(number.load(Relaxed).wrapping_add(amount), Relaxed);
}

#[cfg(all(test, not(loom)))]
impl Set {
    /// The sum of the entries.
    pub fn entries(&self, regions: &Regions) -> u32 {
        each(regions)
            .map(|(id, _)| self.of(id).entries.load(Relaxed))
            .sum()
    }
}
