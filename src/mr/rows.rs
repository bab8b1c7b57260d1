// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of our regions on one device. Only this table tells our regions from those of a
//! provider: bytes in the object cannot, because a foreign object may hold any value there.
//!
//! A region's row is at the index of its handle, the kernel's name for the region on the device.
//! The kernel always gives out the lowest free handle, and no two live regions share a handle. The
//! rows therefore form an array, and each operation is one atomic exchange. There is no lock, so a
//! signal or a fork can never hit a thread that holds one. (A hash map of addresses made a
//! deregistration on soft-RoCE 2 % slower.)
//!
//! Reused handles also clean the table. A program can deregister a region of ours without calling
//! us, by an `ibv_dereg_mr` that it took from libibverbs with dlsym (NCCL and brpc do). We say that
//! the region has *ended elsewhere*. Its provider calls our `ibv_cmd_dereg_mr`, unless the provider
//! is bound to libibverbs' own; then the region's row stays behind. The kernel gives the handle to
//! the next region, so the very next registration finds the stale row: `insert` finds it if we
//! register, `forget` if libibverbs registers or deregisters. The number of stale rows never
//! exceeds the largest number of regions that were live at one time.
//!
//! Transitions: `insert` fills a row and stores the address of the object last (release). `claim`
//! empties the row if it holds the caller's object; of two threads only one succeeds. The claiming
//! thread either gives the region up or, if the kernel refused, puts it back with `restore`. During
//! a claim the kernel still holds the handle, so no other thread fills the row.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use rdmamr_stats::{self as stats, Change, counter};
use rdmamr_sys::thread;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// One region of ours; all zeros if the row is empty.
pub struct Row {
    /// The address of the region's `ibv_mr`.
    object: AtomicUsize,
    pd: AtomicUsize,
    length: AtomicUsize,
    lkey: AtomicU32,
}

impl Row {
    /// The change of the totals when the row's region ends.
    #[inline(always)]
    fn ended(&self) -> Change {
        Change::less(self.length.load(Relaxed) as u64)
    }
}

/// The content of a row.
#[derive(Clone, Copy)]
pub struct Known {
    /// The address of the region's `ibv_mr`.
    pub object: usize,
    pub pd: usize,
    pub length: usize,
    pub lkey: u32,
}

/// Rows come in chunks, each twice as large as the one before it, so rows never move.
const FIRST_CHUNK: usize = 256;

/// Enough for 33 million handles. A region with a higher handle would have no row, and libibverbs
/// would deregister it.
const CHUNKS: usize = 17;

/// The rows of one device.
pub struct Rows {
    chunks: [AtomicPtr<Row>; CHUNKS],
    /// The place of the device in the counters.
    place: AtomicU32,
}

impl Rows {
    pub const fn new() -> Self {
        Rows {
            chunks: [const { AtomicPtr::new(null_mut()) }; CHUNKS],
            place: AtomicU32::new(0),
        }
    }

    /// Sets the place in the counters in which the rows' changes are counted from now on.
    pub fn set_place(&self, place: stats::Device) {
        self.place.store(place.index(), Relaxed);
    }

    /// The place of the device in the counters.
    #[inline(always)]
    pub fn counted_at(&self) -> stats::Device {
        stats::Device::at(self.place.load(Relaxed))
    }

    #[inline(never)]
    fn count(&self, change: Change) {
        stats::counters().change(thread::number(), self.counted_at(), change);
    }

    /// The chunk of a handle, and the index in that chunk.
    fn place(handle: u32) -> (usize, usize) {
        let n = handle as usize + FIRST_CHUNK;
        let chunk = (n.ilog2() - FIRST_CHUNK.ilog2()) as usize;
        (chunk, n - (FIRST_CHUNK << chunk))
    }

    #[inline(always)]
    fn row(&self, handle: u32) -> Option<&Row> {
        let (chunk, place) = Self::place(handle);
        let start = self.chunks.get(chunk)?.load(Acquire);
        // SAFETY: `start` is null or points to `FIRST_CHUNK << chunk` rows that live as long as
        // `self`; `place` is less than that count.
        (!start.is_null()).then(|| unsafe { &*start.wrapping_add(place) })
    }

    #[cold]
    fn add_chunk(&self, handle: u32) -> Option<&Row> {
        let chunk = Self::place(handle).0;
        let slot = self.chunks.get(chunk)?;
        let layout = Layout::array::<Row>(FIRST_CHUNK << chunk).ok()?;
        // SAFETY: the layout is not empty.
        let new = unsafe { alloc_zeroed(layout) }.cast::<Row>();
        if new.is_null() {
            return None;
        }
        // Zeroed memory is a chunk of empty rows.
        let published = slot.compare_exchange(null_mut(), new, AcqRel, Acquire);
        if published.is_err() {
            // SAFETY: another thread published its chunk first, so only this thread knows `new`.
            unsafe { dealloc(new.cast(), layout) };
        }
        self.row(handle)
    }

    /// Adds a region that the kernel has just made. True if the row still held a region of ours
    /// with the same handle: that region has ended elsewhere.
    #[inline(always)]
    pub fn insert(&self, handle: u32, region: Known) -> bool {
        let Some(row) = self.row(handle).or_else(|| self.add_chunk(handle)) else {
            return false;
        };
        let before = row.length.load(Relaxed) as u64;
        row.lkey.store(region.lkey, Relaxed);
        row.pd.store(region.pd, Relaxed);
        row.length.store(region.length, Relaxed);
        // No swap is needed: the kernel has just given us the handle, so no other thread fills this
        // row.
        let is_stale = row.object.load(Relaxed) != 0;
        row.object.store(region.object, Release);
        if is_stale {
            self.count(Change::less(before));
            self.count_ended_elsewhere();
        }
        self.count(Change::more(region.length as u64));
        is_stale
    }

    /// Removes a region if the row holds `object`: of two threads one alone gets true. Calls `mark`
    /// before the row is emptied, so a thread that loses the race also sees the mark.
    #[inline(always)]
    pub fn claim(&self, handle: u32, object: usize, lkey: u32, mark: impl FnOnce()) -> bool {
        let Some(row) = self.row(handle) else {
            return false;
        };
        if row.object.load(Acquire) != object || row.lkey.load(Relaxed) != lkey {
            return false;
        }
        mark();
        let claimed = row.object.compare_exchange(object, 0, AcqRel, Acquire);
        if claimed.is_ok() {
            self.count(row.ended());
        }
        claimed.is_ok()
    }

    /// Undoes a claim: the kernel refused to deregister the region, which stays usable.
    pub fn restore(&self, handle: u32, object: usize) {
        if let Some(row) = self.row(handle) {
            self.count(Change::more(row.length.load(Relaxed) as u64));
            row.object.store(object, Release);
        }
    }

    /// Empties the row of a handle that belongs to another region. True if the row still held a
    /// region of ours: that region has ended elsewhere.
    pub fn forget(&self, handle: u32) -> bool {
        self.row(handle)
            .is_some_and(|row| self.empty(row, row.object.load(Relaxed)))
    }

    /// Empties a row if it still holds `object`, whose region has ended elsewhere.
    fn empty(&self, row: &Row, object: usize) -> bool {
        let exchange = || row.object.compare_exchange(object, 0, AcqRel, Relaxed);
        let is_emptied = object != 0 && exchange().is_ok();
        if is_emptied {
            self.count(row.ended());
            self.count_ended_elsewhere();
        }
        is_emptied
    }

    /// Counts a region of ours that was deregistered without a call to this library.
    #[cold]
    pub fn count_ended_elsewhere(&self) {
        stats::counters().add(thread::number(), counter!(ended_elsewhere), 1);
    }

    fn all(&self) -> impl Iterator<Item = &Row> {
        self.chunks.iter().enumerate().flat_map(|(chunk, start)| {
            let start = start.load(Acquire);
            let rows = usize::from(!start.is_null()) * (FIRST_CHUNK << chunk);
            // SAFETY: `place` is an index of this chunk, whose rows live as long as `self`.
            (0..rows).map(move |place| unsafe { &*start.wrapping_add(place) })
        })
    }

    /// The number of regions and the sum of their lengths.
    pub fn total(&self) -> (u64, u64) {
        let live = self.all().filter(|row| row.object.load(Acquire) != 0);
        live.fold((0, 0u64), |(count, bytes), row| {
            let length = row.length.load(Relaxed) as u64;
            (count + 1, length.wrapping_add(bytes))
        })
    }

    /// The rows and objects of a domain's regions.
    pub fn of_pd(&self, pd: usize) -> Vec<(&Row, usize)> {
        let rows = self.all().filter(|row| row.pd.load(Relaxed) == pd);
        rows.map(|row| (row, row.object.load(Acquire)))
            .filter(|&(_, object)| object != 0)
            .collect()
    }

    /// Empties the rows that still hold these objects, which [`Rows::of_pd`] returned.
    pub fn forget_those(&self, regions: &[(&Row, usize)]) {
        for &(row, object) in regions {
            self.empty(row, object);
        }
    }

    pub fn clear(&self) {
        for row in self.all() {
            self.empty(row, row.object.load(Relaxed));
        }
    }
}

/// A device keeps its rows forever. Only tests drop rows.
#[cfg(test)]
impl Drop for Rows {
    fn drop(&mut self) {
        for (chunk, start) in self.chunks.iter_mut().enumerate() {
            let start = *start.get_mut();
            if let (false, Ok(layout)) =
                (start.is_null(), Layout::array::<Row>(FIRST_CHUNK << chunk))
            {
                // SAFETY: `add_chunk` allocated this memory with the same layout, and `drop` has
                // the last reference.
                unsafe { dealloc(start.cast(), layout) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region whose key is its object's address.
    fn region(object: usize, pd: usize, length: usize) -> Known {
        Known {
            object,
            pd,
            length,
            lkey: object as u32,
        }
    }

    fn insert(rows: &Rows, handle: u32, object: usize) -> bool {
        rows.insert(handle, region(object, 0x20, 4096))
    }

    fn claim(rows: &Rows, handle: u32, object: usize) -> bool {
        rows.claim(handle, object, object as u32, || {})
    }

    #[test]
    fn places_are_one_after_the_other() {
        let mut expected = (0, 0);
        for handle in 0..100_000 {
            assert_eq!(Rows::place(handle), expected);
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(Rows::place(u32::MAX).0 >= CHUNKS);
    }

    #[test]
    fn a_region_is_claimed_once() {
        let rows = Rows::new();
        for handle in [0, 1, 255, 256, 1_000_000] {
            assert!(!claim(&rows, handle, 0x100));
            assert!(!insert(&rows, handle, 0x100));
            assert!(claim(&rows, handle, 0x100));
            assert!(!claim(&rows, handle, 0x100));
            rows.restore(handle, 0x100);
            assert!(claim(&rows, handle, 0x100));
        }
        assert_eq!(rows.total(), (0, 0));
    }

    #[test]
    fn a_region_that_ended_elsewhere_is_found_out_by_its_successor() {
        let rows = Rows::new();
        insert(&rows, 7, 0x100);
        assert!(insert(&rows, 7, 0x200));
        assert!(!claim(&rows, 7, 0x300));
        assert!(rows.forget(7) && !rows.forget(7));
        assert!(!rows.forget(u32::MAX));
    }

    #[test]
    fn another_key_in_the_same_object_is_another_region() {
        let rows = Rows::new();
        insert(&rows, 7, 0x100);
        assert!(!rows.claim(7, 0x100, 0xffff, || panic!("it is not ours to mark")));
    }

    #[test]
    fn a_handle_beyond_the_rows_is_foreign() {
        let rows = Rows::new();
        assert!(!insert(&rows, u32::MAX, 0x100));
        assert!(!claim(&rows, u32::MAX, 0x100));
    }

    #[test]
    fn totals_domains_and_the_end() {
        let rows = Rows::new();
        for handle in 0..1000 {
            rows.insert(
                handle,
                region(0x100 + handle as usize, (handle % 2) as usize, 10),
            );
        }
        assert_eq!(rows.total(), (1000, 10_000));
        let orphans = rows.of_pd(1);
        assert_eq!(orphans.len(), 500);
        rows.insert(1, region(0x9999, 1, 10));
        rows.forget_those(&orphans);
        assert_eq!(rows.total(), (501, 5010), "one has a successor");
        rows.clear();
        assert_eq!(rows.total(), (0, 0));
    }

    #[test]
    fn of_many_threads_one_claims() {
        let rows = Rows::new();
        for handle in 0..300 {
            insert(&rows, handle, 0x100);
            let marked = std::sync::atomic::AtomicBool::new(false);
            let claim = || {
                let claim = rows.claim(handle, 0x100, 0x100, || marked.store(true, Relaxed));
                assert!(marked.load(Relaxed), "who finds it gone finds the mark");
                claim
            };
            let claimed: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
                let claimed = threads.into_iter().map(|thread| thread.join().unwrap());
                claimed.map(usize::from).sum()
            });
            assert_eq!(claimed, 1);
        }
    }
}
