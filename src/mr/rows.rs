// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regions of ours on one device. Nothing else tells ours from those of a provider: bytes in the
//! object cannot, since a foreign one may hold anything there.
//!
//! A region has the row of its handle, the kernel's name for it on the device. Handles are small numbers,
//! the lowest that is free each time, and no two regions that exist have the same; so rows are an array,
//! an operation is one atomic exchange, and there is no lock that a thread could be interrupted, or
//! forked, while holding. (A hash map of addresses cost 2 % of a deregistration on soft-RoCE more.)
//!
//! It also makes the rows clean themselves. When a program deregisters a region of ours past us, with an
//! `ibv_dereg_mr` that it took from libibverbs by handle (NCCL and brpc do), its row stays behind; we say
//! that it has *vanished*. The kernel gives its handle to the next region, and so the row is found out by
//! the very next registration: by `insert` if that is ours, by `forget` if libibverbs makes or ends it. There are never more stale rows than there were regions at one time.
//!
//! Who changes what: `insert` fills a row, with the address of the object last (release); `claim` empties
//! it, if the object is the caller's, and only one of two threads that try succeeds; who has claimed a
//! region either lets go of it or, when the kernel refused, puts it back with `restore`. While it is
//! claimed the kernel still has the handle, so that nobody else fills the row.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// A region of ours; all zeros where there is none.
struct Row {
    /// The address of its `ibv_mr`.
    object: AtomicUsize,
    pd: AtomicUsize,
    length: AtomicUsize,
    lkey: AtomicU32,
}

/// What a row holds.
#[derive(Clone, Copy)]
pub struct Region {
    /// The address of its `ibv_mr`.
    pub object: usize,
    pub pd: usize,
    pub length: usize,
    pub lkey: u32,
}

/// Rows come in chunks, each twice as large as the one before, so that they never move.
const FIRST_CHUNK: usize = 256;

/// Enough for 33 million handles. A kernel that gave higher ones would leave those regions without a row,
/// to be deregistered by libibverbs.
const CHUNKS: usize = 17;

/// The rows of a device.
pub struct Rows {
    chunks: [AtomicPtr<Row>; CHUNKS],
}

/// What [`Rows::claim`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A region of ours, and now the caller's alone.
    Ours,
    /// A region of ours that another thread has just claimed.
    Gone,
    /// The row is not about that object.
    NotOurs,
}

impl Rows {
    /// No rows.
    pub const fn new() -> Self {
        Rows {
            chunks: [const { AtomicPtr::new(null_mut()) }; CHUNKS],
        }
    }

    /// The chunk of a handle, and the place there.
    fn place(handle: u32) -> (usize, usize) {
        let n = handle as usize + FIRST_CHUNK;
        let chunk = (n.ilog2() - FIRST_CHUNK.ilog2()) as usize;
        (chunk, n - (FIRST_CHUNK << chunk))
    }

    #[inline(always)]
    fn row(&self, handle: u32) -> Option<&Row> {
        let (chunk, place) = Self::place(handle);
        let start = self.chunks.get(chunk)?.load(Acquire);
        // SAFETY: null, or a chunk of `FIRST_CHUNK << chunk` rows, among which `place` is, that lives as
        // long as `self`.
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
        // All zeros are rows without a region.
        if slot
            .compare_exchange(null_mut(), new, AcqRel, Acquire)
            .is_err()
        {
            // SAFETY: another thread was quicker, and nobody has seen this one.
            unsafe { dealloc(new.cast(), layout) };
        }
        self.row(handle)
    }

    /// Adds a region that the kernel has just made. True if one of ours had its handle, which must have
    /// vanished.
    #[inline(always)]
    pub fn insert(&self, handle: u32, region: Region) -> bool {
        let Some(row) = self.row(handle).or_else(|| self.add_chunk(handle)) else {
            return false;
        };
        row.lkey.store(region.lkey, Relaxed);
        row.pd.store(region.pd, Relaxed);
        row.length.store(region.length, Relaxed);
        // Not a swap: nobody else fills this row, since the kernel has just given us its handle.
        let vanished = row.object.load(Relaxed) != 0;
        row.object.store(region.object, Release);
        vanished
    }

    /// Takes a region out, if the object is the one that the row is about. Then `mark` is called, before
    /// any other thread can find the row empty.
    #[inline(always)]
    pub fn claim(&self, handle: u32, object: usize, lkey: u32, mark: impl FnOnce()) -> Claim {
        let Some(row) = self.row(handle) else {
            return Claim::NotOurs;
        };
        if row.object.load(Acquire) != object || row.lkey.load(Relaxed) != lkey {
            return Claim::NotOurs;
        }
        mark();
        match row.object.compare_exchange(object, 0, AcqRel, Acquire) {
            Ok(_) => Claim::Ours,
            Err(_) => Claim::Gone,
        }
    }

    /// Takes a claim back: the region could not be deregistered, and stays usable.
    pub fn restore(&self, handle: u32, object: usize) {
        if let Some(row) = self.row(handle) {
            row.object.store(object, Release);
        }
    }

    /// Empties the row of a handle that is a region of libibverbs'. True if one of ours was there, which
    /// must have vanished.
    pub fn forget(&self, handle: u32) -> bool {
        self.row(handle)
            .is_some_and(|row| row.object.swap(0, AcqRel) != 0)
    }

    fn all(&self) -> impl Iterator<Item = (u32, &Row)> {
        self.chunks.iter().enumerate().flat_map(|(chunk, start)| {
            let start = start.load(Acquire);
            let rows = if start.is_null() {
                0
            } else {
                FIRST_CHUNK << chunk
            };
            (0..rows).map(move |place| {
                let handle = (FIRST_CHUNK << chunk) - FIRST_CHUNK + place;
                // SAFETY: `place` is among the chunk's rows, which live as long as `self`.
                (handle as u32, unsafe { &*start.wrapping_add(place) })
            })
        })
    }

    /// How many regions there are, and the sum of their lengths.
    pub fn total(&self) -> (u64, u64) {
        let live = self.all().filter(|(_, row)| row.object.load(Acquire) != 0);
        live.fold((0, 0u64), |(count, bytes), (_, row)| {
            let length = row.length.load(Relaxed) as u64;
            (count + 1, length.wrapping_add(bytes))
        })
    }

    /// The regions of a domain, as handle and object.
    pub fn of_pd(&self, pd: usize) -> Vec<(u32, usize)> {
        let rows = self.all().filter(|(_, row)| row.pd.load(Relaxed) == pd);
        rows.map(|(handle, row)| (handle, row.object.load(Acquire)))
            .filter(|&(_, object)| object != 0)
            .collect()
    }

    /// Empties a row if it is still about that object.
    pub fn orphan(&self, handle: u32, object: usize) -> bool {
        let row = self.row(handle);
        row.is_some_and(|row| {
            row.object
                .compare_exchange(object, 0, AcqRel, Relaxed)
                .is_ok()
        })
    }

    /// Empties all rows. Returns how many held a region.
    pub fn clear(&self) -> u64 {
        let rows = self.all();
        rows.map(|(_, row)| u64::from(row.object.swap(0, AcqRel) != 0))
            .sum()
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        for (chunk, start) in self.chunks.iter_mut().enumerate() {
            let start = *start.get_mut();
            if let (false, Ok(layout)) =
                (start.is_null(), Layout::array::<Row>(FIRST_CHUNK << chunk))
            {
                // SAFETY: allocated with that layout by `add_chunk`, and nobody is left who knows it.
                unsafe { dealloc(start.cast(), layout) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region whose key is its object's address.
    fn region(object: usize, pd: usize, length: usize) -> Region {
        Region {
            object,
            pd,
            length,
            lkey: object as u32,
        }
    }

    fn insert(rows: &Rows, handle: u32, object: usize) -> bool {
        rows.insert(handle, region(object, 0x20, 4096))
    }

    fn claim(rows: &Rows, handle: u32, object: usize) -> Claim {
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
            assert_eq!(claim(&rows, handle, 0x100), Claim::NotOurs);
            assert!(!insert(&rows, handle, 0x100));
            assert_eq!(claim(&rows, handle, 0x100), Claim::Ours);
            assert_eq!(claim(&rows, handle, 0x100), Claim::NotOurs);
            rows.restore(handle, 0x100);
            assert_eq!(claim(&rows, handle, 0x100), Claim::Ours);
        }
        assert_eq!(rows.total(), (0, 0));
    }

    #[test]
    fn a_vanished_region_is_found_out_by_its_successor() {
        let rows = Rows::new();
        insert(&rows, 7, 0x100);
        assert!(insert(&rows, 7, 0x200));
        assert_eq!(claim(&rows, 7, 0x300), Claim::NotOurs);
        assert!(rows.forget(7) && !rows.forget(7));
        assert!(!rows.forget(u32::MAX));
    }

    #[test]
    fn another_key_in_the_same_object_is_another_region() {
        let rows = Rows::new();
        insert(&rows, 7, 0x100);
        let claim = rows.claim(7, 0x100, 0xffff, || panic!("it is not ours to mark"));
        assert_eq!(claim, Claim::NotOurs);
    }

    #[test]
    fn a_handle_beyond_the_rows_is_foreign() {
        let rows = Rows::new();
        assert!(!insert(&rows, u32::MAX, 0x100));
        assert_eq!(claim(&rows, u32::MAX, 0x100), Claim::NotOurs);
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
        let forgotten = orphans
            .iter()
            .filter(|(handle, object)| rows.orphan(*handle, *object));
        assert_eq!(forgotten.count(), 499, "one has a successor");
        assert_eq!(rows.total(), (501, 5010));
        assert_eq!(rows.clear(), 501);
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
                let threads: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| claim() == Claim::Ours))
                    .collect();
                let claimed = threads.into_iter().map(|thread| thread.join().unwrap());
                claimed.map(usize::from).sum()
            });
            assert_eq!(claimed, 1);
        }
    }
}
