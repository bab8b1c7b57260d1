// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a domain's regions. Memory of a closed region is in quarantine before it is used
//! again, so that the library can tell a second fi_close() of a region from the first. This file
//! also counts the open regions, because a domain that has any cannot be closed.
//!
//! Each thread has its private list, which needs no atomic read-modify-write. With such
//! operations (a shared count, one queue for all threads), a pair of fi_mr_reg() and fi_close()
//! that the cache serves took 60 ns more than without libfabric's objects. Most of these 60 ns were
//! the atomic operations.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use rdmamr_sys::thread;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of closed regions that a thread keeps in quarantine before it uses the oldest again.
const LEAST: usize = 16;

/// The largest number of closed regions that a thread keeps. More go back to the C library.
const MOST: usize = 32;

/// The number of threads that get a private list. Later threads share one list, with a lock.
const THREADS: usize = 64;
const _: () = assert!(THREADS.is_power_of_two());

/// A thread's closed regions, by address, first in first out. Only the owning thread changes them.
#[derive(Default)]
#[repr(align(64))]
struct List {
    waiting: [AtomicUsize; MOST],
    put: AtomicUsize,
    taken: AtomicUsize,
    /// `new` counts the regions made in new memory, `freed` the regions whose memory was given
    /// back. With `put` and `taken`, they give the number of open regions.
    new: AtomicUsize,
    freed: AtomicUsize,
}

/// Adds 1 to a number that only this thread changes. The store is a release: a thread that reads
/// the new number with acquire sees the earlier writes. It thus sees a region's opening before its
/// close by another thread, and the memory that was put into quarantine.
#[inline(always)]
fn count(number: &AtomicUsize) -> usize {
    let before = number.load(Relaxed);
    number.store(before.wrapping_add(1), Release);
    before
}

impl List {
    #[inline(always)]
    fn open(&self) -> Option<usize> {
        let taken = self.taken.load(Relaxed);
        if self.put.load(Relaxed).wrapping_sub(taken) < LEAST {
            count(&self.new);
            return None;
        }
        count(&self.taken);
        Some(self.waiting[taken % MOST].load(Relaxed))
    }

    /// Puts the memory of a region into quarantine. Returns the oldest there, if there are too
    /// many.
    #[inline(always)]
    fn close(&self, region: usize) -> Option<usize> {
        let (put, taken) = (self.put.load(Relaxed), self.taken.load(Relaxed));
        let entry = &self.waiting[put % MOST];
        let oldest = (put.wrapping_sub(taken) == MOST).then(|| {
            count(&self.taken);
            count(&self.freed);
            entry.load(Relaxed)
        });
        entry.store(region, Relaxed);
        count(&self.put);
        oldest
    }

    fn drain(&self) -> impl Iterator<Item = usize> {
        let (put, taken) = (self.put.load(Relaxed), self.taken.load(Relaxed));
        (0..put.wrapping_sub(taken))
            .map(move |n| self.waiting[taken.wrapping_add(n) % MOST].load(Relaxed))
    }

    /// The number of regions that this list's thread has closed.
    fn closed(&self) -> usize {
        let (put, freed) = (self.put.load(Acquire), self.freed.load(Acquire));
        put.wrapping_add(freed)
    }

    /// The number of regions that this list's thread has opened.
    fn opened(&self) -> usize {
        let (taken, new) = (self.taken.load(Acquire), self.new.load(Acquire));
        taken.wrapping_add(new)
    }
}

/// A thread and its list, if it has one.
#[derive(Default)]
struct Seat {
    /// The thread pointer of the owner, [`thread::pointer`].
    owner: AtomicUsize,
    list: AtomicPtr<List>,
}

/// The memory of a domain's regions.
pub struct Quarantine {
    seats: [Seat; THREADS],
    late: Mutex<List>,
}

impl Quarantine {
    pub fn new() -> Quarantine {
        Quarantine {
            seats: core::array::from_fn(|_| Seat::default()),
            late: Mutex::default(),
        }
    }

    /// The seat that a thread tries first. Thread pointers usually lie one stack size apart. The
    /// highest bits of the product spread these few distances.
    #[inline(always)]
    fn first_seat(thread: usize) -> usize {
        ((thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - THREADS.ilog2()))
            as usize
    }

    /// This thread's list.
    #[inline(always)]
    fn list(&self) -> Option<&List> {
        let thread = thread::pointer();
        let seat = &self.seats[Self::first_seat(thread)];
        if seat.owner.load(Relaxed) == thread {
            // SAFETY: the pointer is null or a box of `look_for_list`, which only `drop` frees.
            let list = unsafe { seat.list.load(Relaxed).as_ref() };
            if list.is_some() {
                return list;
            }
        }
        self.look_for_list(thread)
    }

    #[cold]
    fn look_for_list(&self, thread: usize) -> Option<&List> {
        let first = Self::first_seat(thread);
        let mut seats = (0..THREADS).map(|n| &self.seats[(first + n) % THREADS]);
        let seat = seats.find(|seat| {
            let taken = seat.owner.compare_exchange(0, thread, Relaxed, Relaxed);
            taken.is_ok() || taken == Err(thread)
        })?;
        let mut list = seat.list.load(Relaxed);
        if list.is_null() {
            list = Box::into_raw(Box::<List>::default());
            // Only the owner makes its list. The thread that closes the domain reads the pointer
            // later.
            seat.list.store(list, Release);
        }
        // SAFETY: `look_for_list` made the box, and only `drop` frees it.
        unsafe { list.as_ref() }
    }

    /// Counts a region, and returns memory for it if a region has been in quarantine long enough.
    #[inline(always)]
    pub fn open(&self) -> Option<usize> {
        match self.list() {
            Some(list) => list.open(),
            None => self.late().open(),
        }
    }

    /// Counts off a region for which no memory was left.
    #[cold]
    pub fn count_off(&self) {
        match self.list() {
            Some(list) => count(&list.freed),
            None => count(&self.late().freed),
        };
    }

    /// Counts a region off, and puts its memory into quarantine. Returns memory that the caller
    /// must free.
    #[inline(always)]
    pub fn close(&self, region: usize) -> Option<usize> {
        match self.list() {
            Some(list) => list.close(region),
            None => self.late().close(region),
        }
    }

    #[cold]
    fn late(&self) -> MutexGuard<'_, List> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn each_list(&self) -> impl Iterator<Item = &List> {
        self.seats.iter().filter_map(|seat| {
            // SAFETY: the pointer is null or a box of `look_for_list`, which only `drop` frees.
            unsafe { seat.list.load(Acquire).as_ref() }
        })
    }

    /// The number of open regions. One thread may open a region, and another close it. This
    /// function therefore counts the closed regions first: for each close that it counts, it also
    /// counts the opening.
    pub fn open_now(&self) -> usize {
        let late = self.late();
        let sum = |late: usize, of: fn(&List) -> usize| {
            self.each_list()
                .fold(late, |sum, list| sum.wrapping_add(of(list)))
        };
        let closed = sum(late.closed(), List::closed);
        sum(late.opened(), List::opened).wrapping_sub(closed)
    }

    /// All waiting memory. The caller must free it.
    pub fn drain(&self) -> Vec<usize> {
        let late = self.late();
        self.each_list()
            .flat_map(List::drain)
            .chain(late.drain())
            .collect()
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        for seat in &self.seats {
            let list = seat.list.load(Acquire);
            if !list.is_null() {
                // SAFETY: `look_for_list` made the box, and `&mut self` proves that no thread uses
                // it.
                drop(unsafe { Box::from_raw(list) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_used_again() {
        let quarantine = Quarantine::new();
        for n in 1..=LEAST {
            assert_eq!(quarantine.open(), None);
            assert_eq!(quarantine.close(n), None);
        }
        for n in 1..100 {
            assert_eq!(quarantine.open(), Some((n - 1) % LEAST + 1));
            assert_eq!(quarantine.open_now(), 1);
            assert_eq!(quarantine.close((n - 1) % LEAST + 1), None);
        }
        assert_eq!(quarantine.open_now(), 0);
        assert_eq!(quarantine.drain().len(), LEAST);
    }

    #[test]
    fn too_many_go() {
        let quarantine = Quarantine::new();
        let freed: Vec<_> = (1..=MOST + 3).filter_map(|n| quarantine.close(n)).collect();
        assert_eq!(freed, [1, 2, 3]);
        let mut drained = quarantine.drain();
        drained.sort();
        assert_eq!(drained, (4..=MOST + 3).collect::<Vec<_>>());
    }

    #[test]
    fn what_one_thread_opens_another_closes() {
        let quarantine = Quarantine::new();
        let all_there = std::sync::Barrier::new(THREADS + 3);
        std::thread::scope(|scope| {
            for _ in 0..THREADS + 3 {
                scope.spawn(|| {
                    quarantine.open();
                    all_there.wait();
                });
            }
        });
        assert_eq!(quarantine.each_list().count(), THREADS);
        assert_eq!(quarantine.late().new.load(Relaxed), 3);
        assert_eq!(quarantine.open_now(), THREADS + 3);
        for n in 0..THREADS + 3 {
            quarantine.close(n + 1);
        }
        assert_eq!(quarantine.open_now(), 0);
    }
}
