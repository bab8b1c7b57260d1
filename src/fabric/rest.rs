// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a domain's regions: closed ones rest before they are used again, so that a second fi_close() of
//! the same can be told from a first. And how many regions there are, which is asked when the domain closes.
//!
//! Each thread has a place of its own, where it needs no atomic operation: with those (a shared count, a queue
//! for all threads) a pair of fi_mr_reg() and fi_close() that the pool serves took 60 ns more than
//! without libfabric's objects, and most of it was they.

use crate::thread;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many closed regions a thread lets rest before it uses the oldest again.
const LEAST: usize = 16;

/// How many it keeps; what comes after goes back to the C library.
const MOST: usize = 32;

/// So many threads have a place of their own. Those that come later share one, with a lock.
const THREADS: usize = 64;
const _: () = assert!(THREADS.is_power_of_two());

/// A thread's closed regions, first in first out, by address. Only its thread changes it.
#[derive(Default)]
#[repr(align(64))]
struct Place {
    resting: [AtomicUsize; MOST],
    put: AtomicUsize,
    taken: AtomicUsize,
    /// Regions whose memory was new, and that was given back: with those that rest they say how many there are.
    new: AtomicUsize,
    freed: AtomicUsize,
}

/// Adds to a number that only this thread changes. Release: who reads it sees what was before, a region's opening
/// before its closing by another thread, and what was put to rest.
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

    /// Returns the oldest, if there are too many.
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

    /// Regions that were closed here.
    fn closed(&self) -> usize {
        let (put, freed) = (self.put.load(Acquire), self.freed.load(Acquire));
        put.wrapping_add(freed)
    }

    /// Regions that were opened here.
    fn opened(&self) -> usize {
        let (taken, new) = (self.taken.load(Acquire), self.new.load(Acquire));
        taken.wrapping_add(new)
    }
}

/// A thread's place, once it has one.
#[derive(Default)]
struct Seat {
    /// The thread, [`thread::pointer`].
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

    /// Where a thread looks first. Thread pointers are a stack apart as a rule: in the highest bits of the product
    /// their few distances spread.
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
            // SAFETY: null, or a box of `take_seat`, which `drop` frees.
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
            // Only its owner makes a place; whoever closes the domain comes after it.
            seat.place.store(place, Release);
        }
        // SAFETY: made here, and freed by `drop`.
        unsafe { place.as_ref() }
    }

    /// Counts a region; its memory, if one has rested long enough.
    #[inline(always)]
    pub fn open(&self) -> Option<usize> {
        match self.place() {
            Some(place) => place.open(),
            None => self.late().open(),
        }
    }

    /// Counts off a region for which there was no memory.
    #[cold]
    pub fn count_off(&self) {
        match self.place() {
            Some(place) => count(&place.freed),
            None => count(&self.late().freed),
        };
    }

    /// Counts a region off again, and lets its memory rest. Returns what is to be freed.
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
            // SAFETY: null, or a box of `look_for_place`.
            unsafe { seat.place.load(Acquire).as_ref() }
        })
    }

    /// How many regions there are. One may be opened by one thread and closed by another: what is closed is counted first,
    /// so that with each closing its opening is.
    pub fn open_now(&self) -> usize {
        let late = self.late();
        let sum = |late: usize, of: fn(&Place) -> usize| {
            self.each_place()
                .fold(late, |sum, place| sum.wrapping_add(of(place)))
        };
        let closed = sum(late.closed(), Place::closed);
        sum(late.opened(), Place::opened).wrapping_sub(closed)
    }

    /// All memory that rests, for its last use.
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
                // SAFETY: a box of `look_for_place`, for the last time.
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
