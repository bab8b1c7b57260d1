// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping on a word of memory and waking the sleepers, futex(2). Threads that the C library does
//! not know may call these functions, which preserve errno.

use core::sync::atomic::AtomicU32;

/// Sleeps while the word has that value, at most for `limit`. It may return early.
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

/// Wakes at most `sleepers` of the threads that sleep on the word.
pub fn wake(word: &AtomicU32, sleepers: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let errno = errno::errno();
    // SAFETY: the kernel uses only the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, sleepers) };
    errno::set_errno(errno);
}
