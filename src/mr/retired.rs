// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of deregistered regions, kept for reuse in the order of their deregistration.
//!
//! The delay lets us tell a second `ibv_dereg_mr` of an object from the first: while an object is
//! in a queue, its memory belongs to this library. Reuse also saves the calls of malloc and free.
//!
//! The queues have no lock, and no thread waits: each slot changes hands by one exchange. If a thread
//! is interrupted between its number and its exchange, it finds the slot empty or with another
//! object, which is then the one that it owns.

use crate::sys::thread;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// The capacity of a queue. A full queue gives objects back to the C library.
const MOST: usize = 128;

/// The queue reuses an object only while more than this many wait. The number is small, so that a
/// reused object is still in the processor's cache: with 64 of 1024 a pair cost 1 % more.
const LEAST: usize = 16;

/// Threads share these queues in turn, so that few threads write to the same cache lines.
const QUEUES: usize = 8;

/// The objects kept for reuse.
pub struct Retired([Queue; QUEUES]);

impl Retired {
    /// Empty queues.
    pub const fn new() -> Self {
        Retired([const { Queue::new() }; QUEUES])
    }

    /// The queue of a thread.
    #[inline(always)]
    pub fn of(&self, thread: thread::Number) -> &Queue {
        &self.0[thread.index() % QUEUES]
    }
}

/// A queue of addresses, first in first out. The object with number `n` lies in slot `n % MOST`.
#[repr(align(128))]
pub struct Queue {
    slots: [AtomicUsize; MOST],
    /// How many objects were taken.
    taken: AtomicUsize,
    /// How many objects were put.
    put: AtomicUsize,
}

impl Queue {
    const fn new() -> Self {
        Queue {
            slots: [const { AtomicUsize::new(0) }; MOST],
            taken: AtomicUsize::new(0),
            put: AtomicUsize::new(0),
        }
    }

    /// Keeps an object. If the queue is full, returns the oldest one, which the caller must free.
    #[inline(always)]
    pub fn put(&self, object: usize) -> Option<usize> {
        let number = self.put.fetch_add(1, Relaxed);
        let displaced = self.slots[number % MOST].swap(object, AcqRel);
        (displaced != 0).then_some(displaced)
    }

    /// Takes the oldest object if enough newer objects wait behind it.
    #[inline(always)]
    pub fn take(&self) -> Option<usize> {
        let (taken, put) = (self.taken.load(Relaxed), self.put.load(Relaxed));
        let waiting = put.wrapping_sub(taken);
        if waiting <= LEAST {
            return None;
        }
        // Of a full queue, newer objects have displaced those before.
        let number = if waiting > MOST {
            put.wrapping_sub(MOST)
        } else {
            taken
        };
        // Two threads may take the same number. The exchange gives the object to one of them.
        self.taken.store(number.wrapping_add(1), Relaxed);
        let object = self.slots[number % MOST].swap(0, AcqRel);
        (object != 0).then_some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_within_bounds() {
        let queue = Queue::new();
        assert_eq!(queue.take(), None);
        for n in 1..=LEAST {
            assert_eq!(queue.put(n), None);
            assert_eq!(queue.take(), None, "too few wait");
        }
        for n in LEAST + 1..10 * MOST {
            assert_eq!(queue.put(n), None);
            assert_eq!(queue.take(), Some(n - LEAST));
            assert_eq!(queue.take(), None, "the rest still rest");
        }
        let queue = Queue::new();
        for n in 1..=MOST {
            assert_eq!(queue.put(n), None);
        }
        assert_eq!(queue.put(MOST + 1), Some(1), "the oldest gives way");
        for n in 2..=MOST + 1 - LEAST {
            assert_eq!(queue.take(), Some(n));
        }
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn no_object_is_lost_or_doubled_among_threads() {
        let queue = Queue::new();
        let sum: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4usize)
                .map(|thread| {
                    let queue = &queue;
                    scope.spawn(move || {
                        let mut sum = 0usize;
                        for n in 1..=5000usize {
                            sum += queue.put(thread * 5000 + n).unwrap_or(0);
                            sum += queue.take().unwrap_or(0);
                        }
                        sum
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        let rest: usize = queue.slots.iter().map(|slot| slot.load(Relaxed)).sum();
        assert_eq!(sum + rest, (1..=20_000).sum());
    }
}
