// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's lock: a futex (futex(2)), which a thread unknown to the C library can also take.
//!
//! Such a thread cannot use std's mutex, which reports contention through errno, and a panic
//! through thread-local variables. While a thread holds the lock, it calls nothing that could wait
//! for a thread that wants the lock.
//!
//! No thread waits for the lock without a limit. A garbage collector may stop the thread that holds
//! the lock, by a signal, and a task that shares the memory may be killed while it holds the lock.
//! So the word of the lock names its owner. A thread that has waited in vain marks the word: until
//! the owner frees the lock, no other thread waits as long. An owner that no longer exists never
//! frees it.

use core::sync::atomic::{AtomicU32, Ordering::*};
use core::time::Duration;
use rdmamr_sys::futex::{Remaining, wake};
use rdmamr_sys::thread;

const FREE: u32 = 0;
/// The number of the task that holds the lock. (The kernel numbers no task higher than 2^22.)
const OWNER: u32 = (1 << 29) - 1;
/// A thread waits for the lock.
const WANTED: u32 = 1 << 31;
/// A thread has waited in vain for the present owner of the lock: for [`MOMENT`], for [`LONG`].
const IN_VAIN: u32 = 1 << 30;
const LONG_IN_VAIN: u32 = 1 << 29;

/// How long an interposed call waits for the lock. Threads hold it for microseconds.
const MOMENT: Duration = Duration::from_millis(20);

/// How long a registration or a release waits for the lock: a region that is not kept costs it more
/// than an interposed call.
const WHILE: Duration = Duration::from_millis(200);

/// The same, for an owner for which a thread has already waited in vain.
const BRIEFLY: Duration = Duration::from_millis(2);

/// How long a call waits that cannot do without the lock: a flush, the end of a domain. By then a
/// thread that holds the lock and merely lacks a processor has got one.
const LONG: Duration = Duration::from_secs(1);

/// A thread waits in this many parts. If the process is stopped in one, its owner has the others.
const PARTS: u32 = 8;

/// A lock. Zeroed memory is a free lock.
#[repr(transparent)]
pub struct Lock(AtomicU32);

/// A guard. The lock is held until the guard is dropped.
pub struct Held<'a>(&'a Lock);

/// The owner of a lock, by the number of its task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u32);

impl Owner {
    /// The calling thread of the program. It asks the kernel for its number once. `process` is a
    /// number that only this process has.
    #[inline]
    pub fn of_program(process: usize) -> Owner {
        Owner(thread::id(process) & OWNER)
    }

    /// The calling task, which may have no thread-local variables, or those of the thread that made
    /// it.
    pub fn ask() -> Owner {
        Owner(thread::id_by_kernel() & OWNER)
    }

    /// Whether the owner has ended. The answer is no if another task has got its number since.
    pub fn has_ended(self) -> bool {
        !thread::exists(self.0)
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    Moment,
    While,
    Long,
}

impl Patience {
    fn limit(self) -> Duration {
        match self {
            Patience::Moment => MOMENT,
            Patience::While => WHILE,
            Patience::Long => LONG,
        }
    }

    /// The mark of a wait in vain, and of a longer one.
    fn marks(self) -> u32 {
        match self {
            Patience::Moment | Patience::While => IN_VAIN,
            Patience::Long => IN_VAIN | LONG_IN_VAIN,
        }
    }

    /// The mark that makes a wait of this length useless.
    fn own_mark(self) -> u32 {
        match self {
            Patience::Moment | Patience::While => IN_VAIN,
            Patience::Long => LONG_IN_VAIN,
        }
    }
}

impl Lock {
    pub fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes the lock. An error is the owner that still holds it.
    #[inline]
    pub fn lock(&self, by: Owner, patience: Patience) -> Result<Held<'_>, Owner> {
        match self.0.compare_exchange(FREE, by.0, Acquire, Relaxed) {
            Ok(_) => Ok(Held(self)),
            Err(word) => self.wait(by, patience, word),
        }
    }

    #[cold]
    fn wait(&self, by: Owner, patience: Patience, mut word: u32) -> Result<Held<'_>, Owner> {
        let (first, limit) = (word & OWNER, patience.limit());
        let mut remaining = Remaining::new(limit, limit / PARTS);
        loop {
            let exchange = |new| self.0.compare_exchange(word, new, Acquire, Relaxed);
            if word == FREE {
                // Other threads may wait as well.
                match exchange(by.0 | WANTED) {
                    Ok(_) => return Ok(Held(self)),
                    Err(other) => word = other,
                }
                continue;
            }
            let owner = Owner(word & OWNER);
            if word & patience.own_mark() != 0 {
                if !matches!(patience, Patience::While) {
                    return Err(owner);
                }
                // If the owner merely lacks a processor, it gets this thread's. Otherwise this
                // thread would meanwhile go on without the lock thousands of times.
                remaining.shorten(BRIEFLY);
            }
            if remaining.is_over() {
                // Several owners may have had the lock in turn.
                if owner.0 != first {
                    return Err(owner);
                }
                match exchange(word | patience.marks()) {
                    Ok(_) => return Err(owner),
                    Err(other) => word = other,
                }
                continue;
            }
            if word & WANTED == 0 {
                if let Err(other) = exchange(word | WANTED) {
                    word = other;
                    continue;
                }
            }
            remaining.wait(&self.0, word | WANTED);
            word = self.0.load(Relaxed);
        }
    }

    /// Whether this task holds the lock.
    pub fn is_held_by(&self, owner: Owner) -> bool {
        self.0.load(Relaxed) & OWNER == owner.0
    }

    /// Whether a thread has waited in vain for the present owner.
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
            let by = Owner::of_program(1);
            let _held = loop {
                // A busy machine may keep the owner waiting for longer.
                if let Ok(held) = self.lock.lock(by, Patience::Long) {
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
    fn nobody_waits_twice_for_an_owner_that_stays() {
        let lock = Lock::new();
        let by = Owner::of_program(1);
        let held = lock.lock(by, Patience::Moment).ok();
        assert!(held.is_some() && !lock.is_in_vain());
        for patience in [Patience::Moment, Patience::Moment, Patience::Long] {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| lock.lock(Owner::of_program(1), patience).err());
                assert_eq!(other.join().unwrap(), Some(by));
            });
            assert!(lock.is_in_vain());
        }
        assert!(!by.has_ended());
        drop(held);
        assert!(!lock.is_in_vain() && lock.lock(by, Patience::Moment).is_ok());
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for tasks")]
    fn an_owner_that_has_ended_is_told_from_one_that_lives() {
        let lock = Lock::new();
        let owner = std::thread::scope(|scope| {
            let ends = scope.spawn(|| {
                let owner = Owner::ask();
                assert_eq!(owner, Owner::of_program(1));
                core::mem::forget(lock.lock(owner, Patience::Moment));
                owner
            });
            ends.join().unwrap()
        });
        let by = Owner::of_program(1);
        assert_eq!(lock.lock(by, Patience::Moment).err(), Some(owner));
        // The kernel frees the number a moment after the join.
        while !owner.has_ended() {
            std::thread::yield_now();
        }
    }
}
