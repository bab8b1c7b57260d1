// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of our own that call libfabric, or register for it: ordinary ones of the C library.

use core::mem::MaybeUninit;
use std::thread;

/// Starts a thread. It takes no signals, which are the application's. False if there can be none.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is writable.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first was filled by the call before, the second is writable.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let thread = thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10)
        .spawn(work);
    // SAFETY: filled by the call before; nothing is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    thread.is_ok()
}
