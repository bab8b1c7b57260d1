// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's threads that call libfabric, or register memory for it. They are threads of
//! pthread_create(3): Rust's std allocates past the library's own allocator for a thread, and ends the
//! process if there is no memory.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use rdmamr_cache::dispatch;
use std::panic::catch_unwind;

/// Bytes of a thread's stack.
const STACK: usize = 256 << 10;

/// The name and the work of a thread.
pub struct Background {
    /// At most 15 bytes.
    pub name: &'static CStr,
    pub work: fn(),
}

/// Starts a thread that blocks all signals, because signals are the application's, but for those of
/// the C library itself, as setuid(2) needs them. False if the thread cannot be started.
pub fn start(thread: &'static Background) -> bool {
    extern "C" fn run(thread: *mut c_void) -> *mut c_void {
        // SAFETY: `start` passed a `&'static Background`.
        let thread = unsafe { &*thread.cast::<Background>() };
        // SAFETY: the name ends with a NUL.
        unsafe { libc::prctl(libc::PR_SET_NAME, thread.name.as_ptr()) };
        if catch_unwind(thread.work).is_err() {
            dispatch::panicked();
        }
        null_mut()
    }

    let mut attr = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: `attr` is writable.
    unsafe { libc::pthread_attr_init(attr.as_mut_ptr()) };
    // SAFETY: pthread_attr_init filled `attr`.
    unsafe { libc::pthread_attr_setstacksize(attr.as_mut_ptr(), STACK) };
    // SAFETY: pthread_attr_init filled `attr`.
    unsafe { libc::pthread_attr_setdetachstate(attr.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED) };
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset filled `all`, and `before` is writable.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let mut id = MaybeUninit::<libc::pthread_t>::uninit();
    let argument = (&raw const *thread).cast_mut().cast();
    // SAFETY: `id` is writable, `attr` is filled, and `run` takes the argument.
    let ret = unsafe { libc::pthread_create(id.as_mut_ptr(), attr.as_ptr(), run, argument) };
    // SAFETY: the first pthread_sigmask filled `before`; this call returns no old set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    // SAFETY: pthread_attr_init filled `attr`, which is not used again.
    unsafe { libc::pthread_attr_destroy(attr.as_mut_ptr()) };
    ret == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmamr_config::disabled;
    use std::time::Duration;

    static PANICS: Background = Background {
        name: c"panics",
        work: || panic!(),
    };

    fn a_panic_disables() -> bool {
        std::panic::set_hook(Box::new(|_| {}));
        let was_enabled = !disabled();
        let started = start(&PANICS);
        for _ in 0..6000 {
            if disabled() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        was_enabled && started && disabled()
    }

    #[test]
    fn a_panic_disables_the_library() {
        // In a child: the other tests need the library.
        // SAFETY: the child runs only the code below, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let failed = i32::from(!a_panic_disables());
            // SAFETY: the call does not return.
            unsafe { libc::_exit(failed) };
        }
        let mut status = -1;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
