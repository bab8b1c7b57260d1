// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's lock: a futex (futex(2)), which a thread unknown to the C library can also take.
//!
//! Such a thread cannot use std's mutex, which reports contention through errno, and a panic
//! through thread-local variables. While a thread holds the lock, it calls nothing that could wait
//! for a thread that wants the lock.
//!
//! The lock is tried: no thread waits for it without a limit, and who does not get it goes on
//! without. A garbage collector may stop the thread that holds it, by a signal, and a task that
//! shares the memory may be killed while it holds it. A thread that has waited in vain marks the
//! word: until the lock is free again, only calls that cannot do without the lock wait ([`LONG`]).

use core::sync::atomic::{AtomicU32, Ordering::*};
use core::time::Duration;
use rdmamr_sys::futex::{Remaining, wake};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// A thread waits for the lock.
const WANTED: u32 = 2;
/// A thread has waited in vain for the present holder.
const IN_VAIN: u32 = 4;

/// How long an interposed call or a helper thread waits for the lock. Threads hold it for microseconds.
pub const MOMENT: Duration = Duration::from_millis(20);

/// How long a registration or a release waits for the lock: a region that is not kept costs it more
/// than an interposed call.
pub const WHILE: Duration = Duration::from_millis(200);

/// How long a call waits that cannot do without the lock: a flush, the end of a domain. By then a
/// thread that holds the lock and merely lacks a processor has got one.
pub const LONG: Duration = Duration::from_secs(1);

/// A thread waits in this many parts. If the process is stopped in one, the holder has the others.
const PARTS: u32 = 8;

/// A lock. Zeroed memory is a free lock.
#[repr(transparent)]
pub struct Lock(AtomicU32);

/// A guard. The lock is held until the guard is dropped.
pub struct Held<'a>(&'a Lock);

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes the lock, or waits for it until `limit` has passed.
    #[inline]
    pub fn lock(&self, limit: Duration) -> Option<Held<'_>> {
        match self.0.compare_exchange(FREE, HELD, Acquire, Relaxed) {
            Ok(_) => Some(Held(self)),
            Err(word) => self.wait(limit, word),
        }
    }

    #[cold]
    fn wait(&self, limit: Duration, mut word: u32) -> Option<Held<'_>> {
        let mut remaining = Remaining::new(limit, limit / PARTS);
        loop {
            let exchange = |new| self.0.compare_exchange(word, new, Acquire, Relaxed);
            if word == FREE {
                // Other threads may wait as well.
                match exchange(HELD | WANTED) {
                    Ok(_) => return Some(Held(self)),
                    Err(other) => word = other,
                }
                continue;
            }
            if word & IN_VAIN != 0 && limit < LONG {
                return None;
            }
            let new = if remaining.is_over() { IN_VAIN } else { WANTED };
            if word & new == 0 {
                if let Err(other) = exchange(word | new) {
                    word = other;
                    continue;
                }
            }
            if remaining.is_over() {
                return None;
            }
            remaining.wait(&self.0, word | WANTED);
            word = self.0.load(Relaxed);
        }
    }

    /// Whether a thread has waited in vain for the present holder.
    pub fn is_in_vain(&self) -> bool {
        self.0.load(Relaxed) & IN_VAIN != 0
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Release) & WANTED != 0 {
            wake(&self.0.0, 1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;

    struct Guarded {
        lock: Lock,
        number: UnsafeCell<u64>,
    }
    // SAFETY: `add` alone touches the number, while it holds the lock.
    unsafe impl Sync for Guarded {}

    impl Guarded {
        fn add(&self) {
            let _held = loop {
                // A busy machine may keep the holder waiting for longer.
                if let Some(held) = self.lock.lock(LONG) {
                    break held;
                }
            };
            // SAFETY: `_held` keeps the lock, so no other thread has a reference to the number.
            unsafe { *self.number.get() += 1 };
        }
    }

    #[test]
    fn only_one_at_a_time() {
        let guarded = Guarded {
            lock: Lock::new(),
            number: UnsafeCell::new(0),
        };
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..rounds).for_each(|_| guarded.add()));
            }
        });
        assert_eq!(guarded.number.into_inner(), 4 * rounds);
    }

    #[test]
    fn nobody_waits_for_a_holder_that_stays() {
        let lock = Lock::new();
        let held = lock.lock(MOMENT);
        assert!(held.is_some() && !lock.is_in_vain());
        for _ in 0..1000 {
            assert!(lock.lock(MOMENT).is_none() && lock.is_in_vain());
        }
        drop(held);
        assert!(!lock.is_in_vain() && lock.lock(MOMENT).is_some());
    }
}
