// SPDX-License-Identifier: MIT OR Apache-2.0
//! `clone` of the C library, by which a program makes a task that shares its memory and is a
//! process of its own. The cache must learn of such a task before it exists
//! (`cache/ended.rs`).
//!
//! As in `memory.rs`, the symbol has no version node, and the next function is looked up when the
//! library is loaded. The C library makes its own threads, and the children of posix_spawn(3),
//! without this symbol.
//!
//! # Safety
//! **Same contract**: the function has the contract of clone(2), and forwards its arguments
//! unchanged to a function with that same contract. The new task runs on a stack of its own, so it
//! never returns into this function.

use super::forward::next;
use super::ret;
use core::ffi::{c_int, c_void};
use rdmamr_cache::dispatch::{self, End};
use rdmamr_sys::helper_thread::{__clone, Task};

next! {
    // Variadic here as in C, since some ABIs pass variadic arguments differently.
    CLONE = c"clone":
        unsafe extern "C" fn(Option<Task>, *mut c_void, c_int, *mut c_void, ...) -> c_int;
}

/// In C the last three arguments are present only with some flags. In the ABIs of Linux they lie
/// where fixed arguments would lie. If they are absent, the function forwards whatever lies there,
/// as the C library does, and does not look at it.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn clone(
    function: Option<Task>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    tls: *mut c_void,
    child: *mut c_void,
) -> c_int {
    if flags & (libc::CLONE_VM | libc::CLONE_THREAD) == libc::CLONE_VM {
        ret::always((), || dispatch::end_for_good(End::Task));
    }
    match CLONE.get() {
        // SAFETY: same contract: the arguments are the caller's, unchanged.
        Some(next) => unsafe { next(function, stack, flags, argument, parent, tls, child) },
        // The call precedes the lookup at load.
        // SAFETY: same contract: the arguments are the caller's, unchanged.
        None => unsafe { __clone(function, stack, flags, argument, parent, tls, child) },
    }
}
