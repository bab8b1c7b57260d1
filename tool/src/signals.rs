// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGPIPE as this program found it. Rust's runtime ignores it before `main`, and the program that is run would
//! inherit that.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime.
unsafe extern "C" fn remember() {
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only asks; the structure is writable.
    unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) };
    IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Relaxed);
}

#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: unsafe extern "C" fn() = remember;

/// Puts it back.
pub fn restore() {
    if !IGNORED.load(Relaxed) {
        // SAFETY: no handler, and no other thread yet.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}
