// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of deregistered regions, kept for reuse in the order of their deregistration.
//!
//! The delay lets us tell a second `ibv_dereg_mr` of an object from the first: while an object is
//! in a queue, its memory belongs to this library. Reuse also saves the calls of malloc and free.
//!
//! A thread has a queue to itself for as long as an operation takes, and never waits for one: if
//! another thread has the queue, or this thread was interrupted in an operation on it, the thread
//! takes the next queue.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use rdmamr_sys::thread;

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
    pub const fn new() -> Self {
        Retired([const { Queue::new() }; QUEUES])
    }

    /// Keeps an object. Returns the object, usually none, that the caller must free instead: the
    /// oldest of a full queue, or this one if other threads have all queues.
    #[inline(always)]
    pub fn put(&self, thread: thread::Number, object: usize) -> Option<usize> {
        self.alone(thread, |queue| queue.put(object))
            .unwrap_or(Some(object))
    }

    /// Takes the oldest object if enough newer objects wait behind it.
    #[inline(always)]
    pub fn take(&self, thread: thread::Number) -> Option<usize> {
        self.alone(thread, Queue::take).flatten()
    }

    /// Runs an operation on a queue that no other thread has.
    #[inline(always)]
    fn alone<T>(&self, thread: thread::Number, operate: impl FnOnce(&Queue) -> T) -> Option<T> {
        let first = &self.0[thread.index() % QUEUES];
        let queue = if first.enter() {
            first
        } else {
            self.enter_any()?
        };
        let result = operate(queue);
        queue.busy.store(false, Release);
        Some(result)
    }

    #[cold]
    fn enter_any(&self) -> Option<&Queue> {
        self.0.iter().find(|queue| queue.enter())
    }
}

/// A queue of addresses, first in first out. The object with number `n` lies in slot `n % MOST`.
/// Only the thread that has set `busy` uses the rest.
#[repr(align(128))]
struct Queue {
    busy: AtomicBool,
    /// How many objects were taken, and how many were put.
    taken: AtomicUsize,
    put: AtomicUsize,
    slots: [AtomicUsize; MOST],
}

impl Queue {
    const fn new() -> Self {
        Queue {
            busy: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
            put: AtomicUsize::new(0),
            slots: [const { AtomicUsize::new(0) }; MOST],
        }
    }

    /// Takes the queue for this thread. False if another operation has it.
    #[inline(always)]
    fn enter(&self) -> bool {
        !self.busy.swap(true, Acquire)
    }

    fn waiting(&self) -> usize {
        let (put, taken) = (self.put.load(Relaxed), self.taken.load(Relaxed));
        put.wrapping_sub(taken)
    }

    #[inline(always)]
    fn put(&self, object: usize) -> Option<usize> {
        let displaced = (self.waiting() == MOST).then(|| self.oldest());
        let number = self.put.load(Relaxed);
        self.slots[number % MOST].store(object, Relaxed);
        self.put.store(number.wrapping_add(1), Relaxed);
        displaced
    }

    #[inline(always)]
    fn take(&self) -> Option<usize> {
        (self.waiting() > LEAST).then(|| self.oldest())
    }

    /// Removes the oldest object. The queue is not empty.
    #[inline(always)]
    fn oldest(&self) -> usize {
        let number = self.taken.load(Relaxed);
        self.taken.store(number.wrapping_add(1), Relaxed);
        self.slots[number % MOST].load(Relaxed)
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
        let retired = Retired::new();
        let sum: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4usize)
                .map(|thread| {
                    let retired = &retired;
                    scope.spawn(move || {
                        let number = thread::Number::HELPER;
                        let mut sum = 0usize;
                        for n in 1..=5000usize {
                            sum += retired.put(number, thread * 5000 + n).unwrap_or(0);
                            sum += retired.take(number).unwrap_or(0);
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
        let rest = |queue: &Queue| (0..queue.waiting()).map(|_| queue.oldest()).sum::<usize>();
        let rest: usize = retired.0.iter().map(rest).sum();
        assert_eq!(sum + rest, (1..=20_000).sum());
    }

    #[test]
    fn nobody_waits_for_a_thread_that_stays_in_a_queue() {
        let retired = Retired::new();
        let number = thread::number();
        for n in 1..=QUEUES {
            assert_eq!(retired.put(number, n), None);
            retired.alone(number, |_| {
                assert_eq!(retired.put(number, n), None);
            });
        }
        let stays = |queue: &Queue| queue.busy.store(true, Release);
        retired.0.iter().for_each(stays);
        assert_eq!(retired.put(number, 7), Some(7));
        assert_eq!(retired.take(number), None);
    }
}
