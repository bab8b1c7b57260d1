// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping on a word of memory and waking the sleepers, futex(2). Threads that the C library does
//! not know may call these functions, which preserve errno.

use super::clock;
use super::thread::keep_errno;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

/// Sleeps while the word has that value, at most for `limit`. It may return early.
pub fn wait(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let timeout = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    });
    let timeout = timeout
        .as_ref()
        .map_or(core::ptr::null(), |timeout| timeout);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the timeout are readable, and the call writes nothing.
    keep_errno(|| unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout)
    });
}

/// Sleeps for a time. It may return early.
pub fn pause(time: Duration) {
    wait(&AtomicU32::new(0), 0, Some(time));
}

/// Wakes at most `sleepers` of the threads that sleep on the word.
pub fn wake(word: &AtomicU32, sleepers: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses only the word's address.
    keep_errno(|| unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, sleepers) });
}

/// The time that a thread still waits for other threads, in parts. While the process is stopped
/// (SIGSTOP, the freezer of a control group, a suspended machine) none of them goes on, so each part
/// counts for its own length at most.
pub struct Remaining {
    left: Duration,
    part: Duration,
}

impl Remaining {
    pub fn new(limit: Duration, part: Duration) -> Remaining {
        Remaining { left: limit, part }
    }

    pub fn is_over(&self) -> bool {
        self.left.is_zero()
    }

    /// Sleeps for a part of the time while the word has that value, as [`wait`] does.
    pub fn wait(&mut self, word: &AtomicU32, value: u32) {
        let now = || Duration::from_nanos(clock::monotonic_by_kernel());
        let (begun, part) = (now(), self.part.min(self.left));
        wait(word, value, Some(part));
        // A clock that the process may not read stands still, or falls back to 0.
        let took = now().saturating_sub(begun).min(part);
        self.left -= if took.is_zero() { part } else { took };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_does_not_lose_its_patience() {
        const PARTS: u32 = 8;
        let part = Duration::from_millis(50);
        // SAFETY: the child only sleeps and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let (mut remaining, mut parts) = (Remaining::new(PARTS * part, part), 0);
            while !remaining.is_over() {
                remaining.wait(&AtomicU32::new(0), 0);
                parts += 1;
            }
            // SAFETY: _exit ends the child.
            unsafe { libc::_exit(parts) };
        }
        let kill = |signal| {
            // SAFETY: the child exists until it is waited for.
            assert_eq!(unsafe { libc::kill(child, signal) }, 0);
        };
        std::thread::sleep(2 * part);
        kill(libc::SIGSTOP);
        std::thread::sleep(2 * PARTS * part);
        kill(libc::SIGCONT);
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        // A signal may end a sleep early.
        assert!(libc::WEXITSTATUS(status) >= PARTS as i32);
    }

    #[test]
    fn patience_ends() {
        let part = Duration::from_millis(1);
        let mut remaining = Remaining::new(2 * part, part);
        remaining.wait(&AtomicU32::new(1), 0);
        assert!(!remaining.is_over());
        (0..2).for_each(|_| remaining.wait(&AtomicU32::new(0), 0));
        assert!(remaining.is_over());
    }
}
