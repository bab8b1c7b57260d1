// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of deregistered regions, waiting to be used again, the oldest first.
//!
//! They wait so that a second `ibv_dereg_mr` of the same object can be told from a first: while an object
//! is here its memory is nobody else's. It also saves the calls of malloc and free.
//!
//! The queues are after Dmitry Vyukov's bounded one, without a lock: an operation that was interrupted
//! midway makes others find the queue full or empty, never wait.

use crate::thread;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// How many objects wait in a queue at most; more are given back to the C library.
const MOST: usize = 128;

/// How many wait at least, once there are as many, before one is used again. Few, so that what is used
/// again is still in the processor's cache: with 64 of 1024 a pair cost 1 % more.
const LEAST: usize = 16;

/// Threads share these queues in turn, so that few write to the same lines.
const QUEUES: usize = 8;

/// The objects that wait.
pub struct Retired([Queue; QUEUES]);

impl Retired {
    /// None.
    pub const fn new() -> Self {
        Retired([const { Queue::new() }; QUEUES])
    }

    fn queue(&self, thread: thread::Number) -> &Queue {
        &self.0[thread.index() % QUEUES]
    }

    /// Puts an object away. Returns those, as a rule none, that are to be freed because more wait than are
    /// kept.
    #[inline(always)]
    pub fn put(
        &self,
        thread: thread::Number,
        object: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        self.queue(thread).put(object)
    }

    /// Takes the oldest object if it has waited behind enough others.
    #[inline(always)]
    pub fn take(&self, thread: thread::Number) -> Option<usize> {
        self.queue(thread).take()
    }
}

struct Slot {
    /// The position for which this slot is ready to be filled; one more once it is filled.
    turn: AtomicUsize,
    object: AtomicUsize,
}

/// A queue of addresses, first in first out.
#[repr(align(128))]
struct Queue {
    slots: [Slot; MOST],
    head: AtomicUsize,
    tail: AtomicUsize,
}

impl Queue {
    const fn new() -> Self {
        let mut slots = [const {
            Slot {
                turn: AtomicUsize::new(0),
                object: AtomicUsize::new(0),
            }
        }; MOST];
        let mut n = 0;
        while n < MOST {
            slots[n].turn = AtomicUsize::new(n);
            n += 1;
        }
        Queue {
            slots,
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        }
    }

    #[inline(always)]
    fn put(&self, object: usize) -> impl Iterator<Item = usize> + use<> {
        let mut given_back = [None, None];
        if !self.push(object) {
            // The oldest gives way; where another thread was quicker to fill its place, both go.
            given_back[0] = self.pop();
            given_back[1] = (!self.push(object)).then_some(object);
        }
        given_back.into_iter().flatten()
    }

    /// Puts an object at the end; false where there is no room.
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

    /// Takes the oldest object.
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
        let queue = Queue::new();
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
        let queue = Queue::new();
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
