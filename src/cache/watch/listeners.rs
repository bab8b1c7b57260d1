// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listeners that must be told of changes of memory. Without a listener, an interposed memory
//! call costs one load. And whether the program filters its system calls: then no thread of it makes one
//! for the cache.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// A sum of the bits below.
static LISTENERS: AtomicU8 = AtomicU8::new(0);
/// The cache, of this process or of the process that it was forked from.
pub const CACHE: u8 = 1;
/// The table of the ranges that were released, under `RDMAMR_CACHE`.
pub const RANGES: u8 = 2;

/// Whether any of these listens.
#[inline(always)]
pub fn listens(who: u8) -> bool {
    LISTENERS.load(Relaxed) & who != 0
}

/// These listen from now on. Only the first call writes, because a store of each call would move
/// the cache line from processor to processor.
#[inline(always)]
pub fn listen(who: u8) {
    if !listens(who) {
        LISTENERS.fetch_or(who, Relaxed);
    }
}

/// Whether the program filters its system calls.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// From now on no watch starts, and no thread makes a system call for the cache.
pub fn set_filtered() {
    FILTERED.store(true, SeqCst);
}

/// Whether [`set_filtered`] was called.
#[inline(always)]
pub fn is_filtered() -> bool {
    FILTERED.load(Relaxed)
}
