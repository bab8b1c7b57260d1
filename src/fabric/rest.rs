// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a domain's regions: closed ones rest before they are used again, so that a second fi_close() of
//! the same can be told from a first. And how many regions there are, which is asked when the domain closes.
//!
//! Each thread has a place of its own, where it needs no atomic operation: with those (a shared count, a queue
//! for all threads) a pair of fi_mr_reg() and fi_close() that the pool serves took 60 ns more than
//! without libfabric's objects, and most of it was they.

use crate::thread;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// How many closed regions a thread lets rest before it uses the oldest again.
const LEAST: usize = 16;

/// How many it keeps; what comes after goes back to the C library.
const MOST: usize = 32;

/// So many threads have a place of their own. Those that come later share one, with a lock.
const THREADS: usize = 64;

/// A thread's closed regions, first in first out, by address. Only its thread changes it.
#[derive(Default)]
struct Place {
    resting: [AtomicUsize; MOST],
    put: AtomicUsize,
    taken: AtomicUsize,
    opened: AtomicUsize,
    closed: AtomicUsize,
}

/// Adds to a number that only this thread changes.
#[inline(always)]
fn count(number: &AtomicUsize) -> usize {
    let before = number.load(Relaxed);
    number.store(before.wrapping_add(1), Relaxed);
    before
}

impl Place {
    #[inline(always)]
    fn open(&self) -> Option<usize> {
        count(&self.opened);
        let taken = self.taken.load(Relaxed);
        if self.put.load(Relaxed).wrapping_sub(taken) < LEAST {
            return None;
        }
        count(&self.taken);
        Some(self.resting[taken % MOST].load(Relaxed))
    }

    /// Returns the oldest, if there are too many.
    #[inline(always)]
    fn close(&self, region: usize) -> Option<usize> {
        count(&self.closed);
        let (put, taken) = (self.put.load(Relaxed), self.taken.load(Relaxed));
        let place = &self.resting[put % MOST];
        let oldest = (put.wrapping_sub(taken) == MOST).then(|| {
            count(&self.taken);
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

    fn open_now(&self) -> usize {
        self.opened
            .load(Relaxed)
            .wrapping_sub(self.closed.load(Relaxed))
    }
}

/// The memory of a domain's regions.
pub struct Rest {
    places: [AtomicPtr<Place>; THREADS],
    late: Mutex<Place>,
}

impl Rest {
    pub fn new() -> Rest {
        Rest {
            places: [const { AtomicPtr::new(core::ptr::null_mut()) }; THREADS],
            late: Mutex::default(),
        }
    }

    #[inline(always)]
    fn place(&self, thread: thread::Number) -> Option<&Place> {
        let place = self.places.get(thread.index())?;
        // SAFETY: null, or a box of `make_place`, which `drop` frees.
        let found = unsafe { place.load(Relaxed).as_ref() };
        found.or_else(|| Some(Self::make_place(place)))
    }

    #[cold]
    fn make_place(place: &AtomicPtr<Place>) -> &Place {
        let new = Box::into_raw(Box::<Place>::default());
        // Only this thread makes its place; whoever closes the domain comes after it.
        place.store(new, Release);
        // SAFETY: just made, and freed by `drop`.
        unsafe { &*new }
    }

    /// Counts a region; its memory, if one has rested long enough.
    #[inline(always)]
    pub fn open(&self, thread: thread::Number) -> Option<usize> {
        match self.place(thread) {
            Some(place) => place.open(),
            None => self
                .late
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .open(),
        }
    }

    /// Counts off a region for which there was no memory.
    #[cold]
    pub fn count_off(&self, thread: thread::Number) {
        match self.place(thread) {
            Some(place) => count(&place.closed),
            None => count(
                &self
                    .late
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .closed,
            ),
        };
    }

    /// Counts a region off again, and lets its memory rest. Returns what is to be freed.
    #[inline(always)]
    pub fn close(&self, thread: thread::Number, region: usize) -> Option<usize> {
        match self.place(thread) {
            Some(place) => place.close(region),
            None => self
                .late
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .close(region),
        }
    }

    fn each_place(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().filter_map(|place| {
            // SAFETY: null, or a box of `make_place`.
            unsafe { place.load(Acquire).as_ref() }
        })
    }

    /// How many regions there are. One may be opened by one thread and closed by another.
    pub fn open_now(&self) -> usize {
        let late = self
            .late
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .open_now();
        self.each_place()
            .fold(late, |sum, place| sum.wrapping_add(place.open_now()))
    }

    /// All memory that rests, for its last use.
    pub fn drain(&self) -> Vec<usize> {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        self.each_place()
            .flat_map(Place::drain)
            .chain(late.drain())
            .collect()
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        for place in &self.places {
            let place = place.load(Acquire);
            if !place.is_null() {
                // SAFETY: a box of `make_place`, for the last time.
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
        let thread = thread::number();
        for n in 1..=LEAST {
            assert_eq!(rest.open(thread), None);
            assert_eq!(rest.close(thread, n), None);
        }
        for n in 1..100 {
            assert_eq!(rest.open(thread), Some((n - 1) % LEAST + 1));
            assert_eq!(rest.open_now(), 1);
            assert_eq!(rest.close(thread, (n - 1) % LEAST + 1), None);
        }
        assert_eq!(rest.open_now(), 0);
        assert_eq!(rest.drain().len(), LEAST);
    }

    #[test]
    fn too_many_go() {
        let rest = Rest::new();
        let thread = thread::number();
        let freed: Vec<_> = (1..=MOST + 3)
            .filter_map(|n| rest.close(thread, n))
            .collect();
        assert_eq!(freed, [1, 2, 3]);
        let mut drained = rest.drain();
        drained.sort();
        assert_eq!(drained, (4..=MOST + 3).collect::<Vec<_>>());
    }

    #[test]
    fn what_one_thread_opens_another_closes() {
        let rest = Rest::new();
        std::thread::scope(|scope| {
            for _ in 0..THREADS + 3 {
                scope.spawn(|| rest.open(thread::number()));
            }
        });
        assert_eq!(rest.open_now(), THREADS + 3);
        for n in 0..THREADS + 3 {
            rest.close(thread::number(), n + 1);
        }
        assert_eq!(rest.open_now(), 0);
    }
}
