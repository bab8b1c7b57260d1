// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of deregistered regions, waiting to be used again, the oldest first.
//!
//! They wait so that a second `ibv_dereg_mr` of the same object can be told from a first: while an object
//! is here its memory is nobody else's. It also saves the calls of malloc and free. A queue after Dmitry Vyukov's bounded one, without a lock: an
//! operation that was interrupted midway makes others find the queue full or empty, never wait.

use core::sync::atomic::{AtomicUsize, Ordering::*};

/// How many objects wait at most; more are given back to the C library.
const MOST: usize = 1024;

/// How many wait at least, once there are as many, before one is used again.
const LEAST: usize = 64;

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

    /// Puts an object at the end. Returns those, as a rule none, that are to be freed because more wait
    /// than are kept.
    pub fn put(&self, object: usize) -> impl Iterator<Item = usize> + use<> {
        let mut given_back = [None, None];
        if !self.push(object) {
            // The oldest gives way; where another thread was quicker to fill its place, both go.
            given_back[0] = self.pop();
            given_back[1] = (!self.push(object)).then_some(object);
        }
        given_back.into_iter().flatten()
    }

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

    /// Takes the oldest object if it has waited behind enough others.
    pub fn take(&self) -> Option<usize> {
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
                assert_eq!(retired.take(), None, "too few wait");
                assert!(retired.push(round * MOST + n));
            }
            assert_eq!(retired.take(), Some(round * MOST + 1));
            assert_eq!(retired.take(), None, "the rest still rest");
            while retired.pop().is_some() {}
        }
        for n in 1..=MOST {
            assert!(retired.push(n));
        }
        assert!(!retired.push(0), "there is no room");
        assert_eq!(
            retired.put(0).collect::<Vec<_>>(),
            [1],
            "the oldest gives way"
        );
        for n in 2..=MOST {
            assert_eq!(retired.pop(), Some(n));
        }
        assert_eq!(retired.pop(), Some(0));
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
