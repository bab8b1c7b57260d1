// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of deregistered regions, waiting to be used again, the oldest first.
//!
//! They wait so that a second `ibv_dereg_mr` of the same object can be told from a first: while an object
//! is here its memory is nobody else's. A queue after Dmitry Vyukov's bounded one, without a lock: an
//! operation that was interrupted midway makes others find the queue full or empty, never wait.

use core::sync::atomic::{AtomicUsize, Ordering::*};

/// How many objects wait at most; more are given back to the C library.
pub const MOST: usize = 1024;

/// How many wait at least, once there are as many, before one is used again.
pub const LEAST: usize = 64;

struct Slot {
    /// The position for which this slot is ready to be filled; one more once it is filled.
    turn: AtomicUsize,
    object: AtomicUsize,
}

/// The queue, of addresses.
pub struct Retired {
    slots: [Slot; MOST],
    head: AtomicUsize,
    tail: AtomicUsize,
}

impl Retired {
    /// An empty queue.
    pub fn new() -> Self {
        Retired {
            slots: core::array::from_fn(|n| Slot {
                turn: AtomicUsize::new(n),
                object: AtomicUsize::new(0),
            }),
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        }
    }

    /// Puts an object at the end; false where there is no room.
    pub fn push(&self, object: usize) -> bool {
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
    pub fn pop(&self) -> Option<usize> {
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

    /// Takes the oldest object if it has waited behind enough others.
    pub fn pop_rested(&self) -> Option<usize> {
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
        let retired = Retired::new();
        assert_eq!(retired.pop(), None);
        for round in 0..3 {
            for n in 1..=LEAST + 1 {
                assert_eq!(retired.pop_rested(), None, "too few wait");
                assert!(retired.push(round * MOST + n));
            }
            assert_eq!(retired.pop_rested(), Some(round * MOST + 1));
            assert_eq!(retired.pop_rested(), None, "the rest still rest");
            while retired.pop().is_some() {}
        }
        for n in 1..=MOST {
            assert!(retired.push(n));
        }
        assert!(!retired.push(0), "there is no room");
        for n in 1..=MOST {
            assert_eq!(retired.pop(), Some(n));
        }
    }

    #[test]
    fn no_object_is_lost_or_doubled_among_threads() {
        let retired = Retired::new();
        let sum: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4usize)
                .map(|thread| {
                    let retired = &retired;
                    scope.spawn(move || {
                        let mut sum = 0usize;
                        for n in 0..5000usize {
                            if !retired.push(thread * 5000 + n) {
                                sum += thread * 5000 + n;
                            }
                            sum += retired.pop().unwrap_or(0);
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
        let rest: usize = core::iter::from_fn(|| retired.pop()).sum();
        assert_eq!(sum + rest, (0..20_000).sum());
    }
}
