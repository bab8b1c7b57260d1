// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the program filters its system calls, seccomp(2), by a call that came to this library.
//! The filter allows the calls that the program makes itself, and may kill at any other.

use core::sync::atomic::{AtomicBool, Ordering::*};

static FILTERED: AtomicBool = AtomicBool::new(false);

/// From now on no watch starts, and no thread makes a system call for the cache, or to learn which
/// stack it is on.
pub fn set_filtered() {
    FILTERED.store(true, SeqCst);
}

/// Whether [`set_filtered`] was called.
#[inline(always)]
pub fn is_filtered() -> bool {
    FILTERED.load(Relaxed)
}
