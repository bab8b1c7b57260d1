// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who must hear of changes of memory. While nobody must, an interposed memory call costs one load.
//! And whether the cache has ended for good, and hears of none any more.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// A sum of the bits below.
static LISTENERS: AtomicU8 = AtomicU8::new(0);
/// The cache, of this process or of the process that it was forked from.
pub const CACHE: u8 = 1;
/// The table of the ranges that were released, under `RDMAMR_CACHE`.
pub const RANGES: u8 = 2;

/// Whether some of these listen.
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

/// Whether the cache has ended, or never starts.
static RETIRED: AtomicBool = AtomicBool::new(false);

/// From now on no watch starts, and no thread asks the kernel for the cache. False if that was said
/// before.
pub fn retire() -> bool {
    !RETIRED.swap(true, SeqCst)
}

/// Whether [`retire`] was called.
#[inline(always)]
pub fn is_retired() -> bool {
    RETIRED.load(Relaxed)
}
