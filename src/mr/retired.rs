// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of deregistered regions, kept for reuse in the order of their deregistration.
//!
//! The delay lets us tell a second `ibv_dereg_mr` of an object from the first: while an object is
//! in a queue, its memory belongs to this library. Reuse also saves the calls of malloc and free.
//!
//! The queues follow Dmitry Vyukov's bounded queue and have no lock. If an operation is interrupted
//! midway, other threads find the queue full or empty; they never wait.

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
pub struct Retired([Lane; QUEUES]);

impl Retired {
    /// Empty queues.
    pub const fn new() -> Self {
        Retired([const { Lane::new() }; QUEUES])
    }

    fn queue(&self, thread: thread::Number) -> &Lane {
        &self.0[thread.index() % QUEUES]
    }

    /// Keeps an object. Returns the objects, usually none, that the caller must free because the
    /// queue is full.
    #[inline(always)]
    pub fn put(
        &self,
        thread: thread::Number,
        object: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        self.queue(thread).put(object)
    }

    /// Takes the oldest object if enough newer objects wait behind it.
    #[inline(always)]
    pub fn take(&self, thread: thread::Number) -> Option<usize> {
        self.queue(thread).take()
    }
}

struct RetiredPlace {
    /// The position for which this slot is empty and ready; that position plus one once the slot is
    /// full.
    turn: AtomicUsize,
    object: AtomicUsize,
}

/// A queue of addresses, first in first out.
#[repr(align(128))]
struct Lane {
    slots: [RetiredPlace; MOST],
    head: AtomicUsize,
    tail: AtomicUsize,
}

impl Lane {
    const fn new() -> Self {
        let mut slots = [const {
            RetiredPlace {
                turn: AtomicUsize::new(0),
                object: AtomicUsize::new(0),
            }
        }; MOST];
        let mut n = 0;
        while n < MOST {
            slots[n].turn = AtomicUsize::new(n);
            n += 1;
        }
        Lane {
            slots,
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        }
    }

    #[inline(always)]
    fn put(&self, object: usize) -> impl Iterator<Item = usize> + use<> {
        let mut given_back = [None, None];
        if !self.push(object) {
            // The oldest object gives way. If another thread fills that slot first, both objects
            // go.
            given_back[0] = self.pop();
            given_back[1] = (!self.push(object)).then_some(object);
        }
        given_back.into_iter().flatten()
    }

    /// Appends an object. False if the queue is full.
    fn push(&self, object: usize) -> bool {
        let mut tail = self.tail.load(Relaxed);
        loop {
            let slot = &self.slots[tail % MOST];
            let turn = slot.turn.load(Acquire);
            if turn == tail {
                match self
                    .tail
                    .compare_exchange_weak(tail, tail.wrapping_add(1), Relaxed, Relaxed)
                {
                    Ok(_) => {
                        slot.object.store(object, Relaxed);
                        slot.turn.store(tail.wrapping_add(1), Release);
                        return true;
                    }
                    Err(now) => tail = now,
                }
            } else if (turn.wrapping_sub(tail) as isize) < 0 {
                return false;
            } else {
                tail = self.tail.load(Relaxed);
            }
        }
    }

    /// Removes the oldest object.
    fn pop(&self) -> Option<usize> {
        let mut head = self.head.load(Relaxed);
        loop {
            let slot = &self.slots[head % MOST];
            let turn = slot.turn.load(Acquire);
            if turn == head.wrapping_add(1) {
                match self
                    .head
                    .compare_exchange_weak(head, head.wrapping_add(1), Relaxed, Relaxed)
                {
                    Ok(_) => {
                        let object = slot.object.load(Relaxed);
                        slot.turn.store(head.wrapping_add(MOST), Release);
                        return Some(object);
                    }
                    Err(now) => head = now,
                }
            } else if (turn.wrapping_sub(head.wrapping_add(1)) as isize) < 0 {
                return None;
            } else {
                head = self.head.load(Relaxed);
            }
        }
    }

    #[inline(always)]
    fn take(&self) -> Option<usize> {
        let waiting = self
            .tail
            .load(Relaxed)
            .wrapping_sub(self.head.load(Relaxed));
        if waiting > LEAST && waiting <= MOST {
            self.pop()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_within_bounds() {
        let queue = Lane::new();
        assert_eq!(queue.pop(), None);
        for round in 0..3 {
            for n in 1..=LEAST + 1 {
                assert_eq!(queue.take(), None, "too few wait");
                assert!(queue.push(round * MOST + n));
            }
            assert_eq!(queue.take(), Some(round * MOST + 1));
            assert_eq!(queue.take(), None, "the rest still rest");
            while queue.pop().is_some() {}
        }
        for n in 1..=MOST {
            assert!(queue.push(n));
        }
        assert!(!queue.push(0), "there is no room");
        assert_eq!(
            queue.put(0).collect::<Vec<_>>(),
            [1],
            "the oldest gives way"
        );
        for n in 2..=MOST {
            assert_eq!(queue.pop(), Some(n));
        }
        assert_eq!(queue.pop(), Some(0));
    }

    #[test]
    fn no_object_is_lost_or_doubled_among_threads() {
        let queue = Lane::new();
        let sum: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4usize)
                .map(|thread| {
                    let queue = &queue;
                    scope.spawn(move || {
                        let mut sum = 0usize;
                        for n in 0..5000usize {
                            if !queue.push(thread * 5000 + n) {
                                sum += thread * 5000 + n;
                            }
                            sum += queue.pop().unwrap_or(0);
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
        let rest: usize = core::iter::from_fn(|| queue.pop()).sum();
        assert_eq!(sum + rest, (0..20_000).sum());
    }
}
