// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a domain's regions. Memory of a closed region rests before it is used again, so
//! that the library can tell a second fi_close() of a region from the first. This file also counts
//! the open regions, because a domain that has any cannot be closed.
//!
//! Each thread has a place of its own, which needs no atomic read-modify-write. With such
//! operations (a shared count, one queue for all threads), a pair of fi_mr_reg() and fi_close()
//! that the cache serves took 60 ns more than without libfabric's objects. Most of these 60 ns were
//! the atomic operations.

use crate::sys::thread;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of closed regions that a thread lets rest before it uses the oldest again.
const LEAST: usize = 16;

/// The largest number of closed regions that a thread keeps. More go back to the C library.
const MOST: usize = 32;

/// The number of threads that get a place of their own. Later threads share one place, with a lock.
const THREADS: usize = 64;
const _: () = assert!(THREADS.is_power_of_two());

/// A thread's closed regions, by address, first in first out. Only the owning thread changes them.
#[derive(Default)]
#[repr(align(64))]
struct Place {
    resting: [AtomicUsize; MOST],
    put: AtomicUsize,
    taken: AtomicUsize,
    /// `new` counts the regions made in new memory, `freed` the regions whose memory was given
    /// back. With `put` and `taken`, they give the number of open regions.
    new: AtomicUsize,
    freed: AtomicUsize,
}

/// Adds 1 to a number that only this thread changes. The store is a release: a thread that reads
/// the new number with acquire sees the earlier writes. It thus sees a region's opening before its
/// close by another thread, and the memory that was put to rest.
#[inline(always)]
fn count(number: &AtomicUsize) -> usize {
    let before = number.load(Relaxed);
    number.store(before.wrapping_add(1), Release);
    before
}

impl Place {
    #[inline(always)]
    fn open(&self) -> Option<usize> {
        let taken = self.taken.load(Relaxed);
        if self.put.load(Relaxed).wrapping_sub(taken) < LEAST {
            count(&self.new);
            return None;
        }
        count(&self.taken);
        Some(self.resting[taken % MOST].load(Relaxed))
    }

    /// Lets the memory of a region rest. Returns the oldest resting region, if there are too many.
    #[inline(always)]
    fn close(&self, region: usize) -> Option<usize> {
        let (put, taken) = (self.put.load(Relaxed), self.taken.load(Relaxed));
        let place = &self.resting[put % MOST];
        let oldest = (put.wrapping_sub(taken) == MOST).then(|| {
            count(&self.taken);
            count(&self.freed);
            place.load(Relaxed)
        });
        place.store(region, Relaxed);
        count(&self.put);
        oldest
    }

    fn drain(&self) -> impl Iterator<Item = usize> {
        let (put, taken) = (self.put.load(Relaxed), self.taken.load(Relaxed));
        (0..put.wrapping_sub(taken))
            .map(move |n| self.resting[taken.wrapping_add(n) % MOST].load(Relaxed))
    }

    /// The number of regions that this place's thread has closed.
    fn closed(&self) -> usize {
        let (put, freed) = (self.put.load(Acquire), self.freed.load(Acquire));
        put.wrapping_add(freed)
    }

    /// The number of regions that this place's thread has opened.
    fn opened(&self) -> usize {
        let (taken, new) = (self.taken.load(Acquire), self.new.load(Acquire));
        taken.wrapping_add(new)
    }
}

/// A thread and its place, if it has one.
#[derive(Default)]
struct Seat {
    /// The thread pointer of the owner, [`thread::pointer`].
    owner: AtomicUsize,
    place: AtomicPtr<Place>,
}

/// The memory of a domain's regions.
pub struct Rest {
    seats: [Seat; THREADS],
    late: Mutex<Place>,
}

impl Rest {
    pub fn new() -> Rest {
        Rest {
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

    /// This thread's place.
    #[inline(always)]
    fn place(&self) -> Option<&Place> {
        let thread = thread::pointer();
        let seat = &self.seats[Self::first_seat(thread)];
        if seat.owner.load(Relaxed) == thread {
            // SAFETY: the pointer is null or a box of `look_for_place`, which only `drop` frees.
            let place = unsafe { seat.place.load(Relaxed).as_ref() };
            if place.is_some() {
                return place;
            }
        }
        self.look_for_place(thread)
    }

    #[cold]
    fn look_for_place(&self, thread: usize) -> Option<&Place> {
        let first = Self::first_seat(thread);
        let mut seats = (0..THREADS).map(|n| &self.seats[(first + n) % THREADS]);
        let seat = seats.find(|seat| {
            let taken = seat.owner.compare_exchange(0, thread, Relaxed, Relaxed);
            taken.is_ok() || taken == Err(thread)
        })?;
        let mut place = seat.place.load(Relaxed);
        if place.is_null() {
            place = Box::into_raw(Box::<Place>::default());
            // Only the owner makes its place. The thread that closes the domain reads the pointer
            // later.
            seat.place.store(place, Release);
        }
        // SAFETY: `look_for_place` made the box, and only `drop` frees it.
        unsafe { place.as_ref() }
    }

    /// Counts a region, and returns memory for it if a region has rested long enough.
    #[inline(always)]
    pub fn open(&self) -> Option<usize> {
        match self.place() {
            Some(place) => place.open(),
            None => self.late().open(),
        }
    }

    /// Counts off a region for which no memory was left.
    #[cold]
    pub fn count_off(&self) {
        match self.place() {
            Some(place) => count(&place.freed),
            None => count(&self.late().freed),
        };
    }

    /// Counts a region off, and lets its memory rest. Returns the memory that the caller must free.
    #[inline(always)]
    pub fn close(&self, region: usize) -> Option<usize> {
        match self.place() {
            Some(place) => place.close(region),
            None => self.late().close(region),
        }
    }

    #[cold]
    fn late(&self) -> MutexGuard<'_, Place> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn each_place(&self) -> impl Iterator<Item = &Place> {
        self.seats.iter().filter_map(|seat| {
            // SAFETY: the pointer is null or a box of `look_for_place`, which only `drop` frees.
            unsafe { seat.place.load(Acquire).as_ref() }
        })
    }

    /// The number of open regions. One thread may open a region, and another close it. This
    /// function therefore counts the closed regions first: for each close that it counts, it also
    /// counts the opening.
    pub fn open_now(&self) -> usize {
        let late = self.late();
        let sum = |late: usize, of: fn(&Place) -> usize| {
            self.each_place()
                .fold(late, |sum, place| sum.wrapping_add(of(place)))
        };
        let closed = sum(late.closed(), Place::closed);
        sum(late.opened(), Place::opened).wrapping_sub(closed)
    }

    /// All resting memory. The caller must free it.
    pub fn drain(&self) -> Vec<usize> {
        let late = self.late();
        self.each_place()
            .flat_map(Place::drain)
            .chain(late.drain())
            .collect()
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        for seat in &self.seats {
            let place = seat.place.load(Acquire);
            if !place.is_null() {
                // SAFETY: `look_for_place` made the box, and `&mut self` proves that no thread uses
                // it.
                drop(unsafe { Box::from_raw(place) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_used_again() {
        let rest = Rest::new();
        for n in 1..=LEAST {
            assert_eq!(rest.open(), None);
            assert_eq!(rest.close(n), None);
        }
        for n in 1..100 {
            assert_eq!(rest.open(), Some((n - 1) % LEAST + 1));
            assert_eq!(rest.open_now(), 1);
            assert_eq!(rest.close((n - 1) % LEAST + 1), None);
        }
        assert_eq!(rest.open_now(), 0);
        assert_eq!(rest.drain().len(), LEAST);
    }

    #[test]
    fn too_many_go() {
        let rest = Rest::new();
        let freed: Vec<_> = (1..=MOST + 3).filter_map(|n| rest.close(n)).collect();
        assert_eq!(freed, [1, 2, 3]);
        let mut drained = rest.drain();
        drained.sort();
        assert_eq!(drained, (4..=MOST + 3).collect::<Vec<_>>());
    }

    #[test]
    fn what_one_thread_opens_another_closes() {
        let rest = Rest::new();
        let all_there = std::sync::Barrier::new(THREADS + 3);
        std::thread::scope(|scope| {
            for _ in 0..THREADS + 3 {
                scope.spawn(|| {
                    rest.open();
                    all_there.wait();
                });
            }
        });
        assert_eq!(rest.each_place().count(), THREADS);
        assert_eq!(rest.late().new.load(Relaxed), 3);
        assert_eq!(rest.open_now(), THREADS + 3);
        for n in 0..THREADS + 3 {
            rest.close(n + 1);
        }
        assert_eq!(rest.open_now(), 0);
    }
}
