// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who wants to hear of changes of memory, and so whether the cache is on.

use crate::cache;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Who wants to hear of changes of memory: a sum of the bits below.
static LISTENERS: AtomicU8 = AtomicU8::new(0);
/// The cache: it, or the memory monitor, has served a call of this process, or of the process that
/// it was forked from.
pub const CACHE: u8 = 1;
/// The ranges that were released, under `RDMAMR_CACHE`.
pub const RANGES: u8 = 2;

#[inline(always)]
pub fn listens(who: u8) -> bool {
    LISTENERS.load(Relaxed) & who != 0
}

/// Only the first call writes, because a store of each call would move the cache line from
/// processor to processor.
#[inline(always)]
fn listen(who: u8) {
    if !listens(who) {
        LISTENERS.fetch_or(who, Relaxed);
    }
}

/// Whether the cache is on.
#[inline(always)]
pub fn cache_is_on() -> bool {
    listens(CACHE)
}

/// Turns the cache on: a call is about to use it.
#[inline(always)]
pub fn turn_cache_on() {
    listen(CACHE);
}

/// A range was released that may come back.
#[inline(always)]
pub fn listen_for_ranges() {
    listen(RANGES);
}

/// The library itself has failed: no region that the cache keeps is used again.
#[cold]
pub fn distrust_cache() {
    if cache_is_on() {
        cache::distrust();
    }
}
