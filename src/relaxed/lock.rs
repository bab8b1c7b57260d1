// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's lock: a futex, futex(2), that also a thread can take which the C library does not know.
//!
//! std's mutex cannot be used by one: it reports contention through errno, and a panic through the thread's
//! own variables. Nothing is called while the lock is held that could wait for the one who wants it.

use core::sync::atomic::{AtomicU32, Ordering::*};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody waits.
const WANTED: u32 = 2;

/// A lock. All zeros is a free one.
#[repr(transparent)]
pub struct Lock(AtomicU32);

/// Held until it is dropped.
pub struct Held<'a>(&'a Lock);

impl Lock {
    /// A free one.
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
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Release) == WANTED {
            wake(&self.0.0, 1);
        }
    }
}

/// Sleeps while the word has that value, at most that long. It may return early.
pub fn wait(word: &AtomicU32, value: u32, limit: Option<core::time::Duration>) {
    let timeout = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    });
    let timeout = timeout
        .as_ref()
        .map_or(core::ptr::null(), |timeout| timeout);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let errno = errno::errno();
    // SAFETY: the word and the timeout are readable, and the call writes nothing.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout) };
    errno::set_errno(errno);
}

/// Wakes up to so many of those who sleep on the word.
pub fn wake(word: &AtomicU32, sleepers: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let errno = errno::errno();
    // SAFETY: the kernel only takes the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, sleepers) };
    errno::set_errno(errno);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;

    struct Guarded {
        lock: Lock,
        number: UnsafeCell<u64>,
    }
    // SAFETY: the number is only touched while the lock is held.
    unsafe impl Sync for Guarded {}

    impl Guarded {
        fn add(&self) {
            let _held = self.lock.lock();
            // SAFETY: the lock is held.
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
