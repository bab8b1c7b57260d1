// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this program inherited, and Rust's runtime changes before `main`: it ignores SIGPIPE, and
//! opens /dev/null where a standard descriptor is closed. The program that `rdmamr run` starts would
//! inherit that.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

static IGNORED: AtomicBool = AtomicBool::new(false);
/// A bit for each of the descriptors 0 to 2.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Runs before Rust's runtime.
unsafe extern "C" fn remember() {
    // The runtime of LeakSanitizer, if the user has preloaded it for the program, is ready from the first
    // allocation on, and not before.
    // SAFETY: malloc has no preconditions.
    let memory = std::hint::black_box(unsafe { libc::malloc(1) });
    // SAFETY: malloc has returned it.
    unsafe { libc::free(memory) };
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call changes nothing, and the structure is writable.
    unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) };
    IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Relaxed);
    for number in 0..3 {
        // SAFETY: the call takes no pointers.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << number, Relaxed);
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: unsafe extern "C" fn() = remember;

pub fn restore_sigpipe() {
    if !IGNORED.load(Relaxed) {
        // SAFETY: the call sets no handler, and no other thread runs yet.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}

/// Closes the standard descriptors that were closed, before this program becomes another one.
pub fn close_again() {
    for number in (0..3).filter(|number| CLOSED.load(Relaxed) >> number & 1 == 1) {
        // SAFETY: this program has done with its standard descriptors.
        unsafe { libc::close(number) };
    }
}
