// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's lock: a futex (futex(2)), which a thread unknown to the C library can also take.
//!
//! Such a thread cannot use std's mutex, which reports contention through errno, and a panic
//! through thread-local variables. While a thread holds the lock, it calls nothing that could wait
//! for a thread that wants the lock.

use crate::sys::clock;
use crate::sys::futex::{wait, wake};
use core::sync::atomic::{AtomicU32, Ordering::*};
use core::time::Duration;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The lock is held, and a thread waits for it.
const WANTED: u32 = 2;

/// A lock. Zeroed memory is a free lock.
#[repr(transparent)]
pub struct Lock(AtomicU32);

/// The lock is held until this guard is dropped.
pub struct Held<'a>(&'a Lock);

impl Lock {
    /// A free lock.
    pub fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> Held<'_> {
        if self
            .0
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .is_err()
        {
            while self.0.swap(WANTED, Acquire) != FREE {
                wait(&self.0, WANTED, None);
            }
        }
        Held(self)
    }

    /// As [`Lock::lock`], but waits at most so long. `None`: the lock is still held.
    pub fn lock_within(&self, limit: Duration) -> Option<Held<'_>> {
        if self
            .0
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .is_ok()
        {
            return Some(Held(self));
        }
        let now = || Duration::from_nanos(clock::monotonic_by_kernel());
        let end = now() + limit;
        while self.0.swap(WANTED, Acquire) != FREE {
            let left = end.checked_sub(now()).filter(|left| !left.is_zero())?;
            wait(&self.0, WANTED, Some(left));
        }
        Some(Held(self))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Release) == WANTED {
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
            let _held = self.lock.lock();
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
}
