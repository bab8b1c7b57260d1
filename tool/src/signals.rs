// SPDX-License-Identifier: MIT OR Apache-2.0
//! The disposition of SIGPIPE as this program inherited it. Rust's runtime ignores the signal
//! before `main`, and the program that `rdmamr run` starts would inherit that.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IGNORED: AtomicBool = AtomicBool::new(false);

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
}

#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: unsafe extern "C" fn() = remember;

/// Restores the disposition.
pub fn restore() {
    if !IGNORED.load(Relaxed) {
        // SAFETY: the call sets no handler, and no other thread runs yet.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}
