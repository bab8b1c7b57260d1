// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own threads that call libfabric, or register memory for it. They are ordinary
//! threads of the C library.

use core::mem::MaybeUninit;
use std::thread;

/// Starts a thread that blocks all signals, because signals are the application's. False if the
/// thread cannot be started.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset filled `all`, and `before` is writable.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let thread = thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10)
        .spawn(work);
    // SAFETY: the first pthread_sigmask filled `before`; this call returns no old set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    thread.is_ok()
}
