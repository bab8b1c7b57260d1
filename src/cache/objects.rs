// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses of the cache's objects, which distinguish a cached region from a plain one.

use core::sync::atomic::{AtomicUsize, Ordering::*};
use rdmamr_mr::Mr;

/// The addresses of the cache's objects, in this process or in the process that it was forked from:
/// the first address, and the end of the mapped part. No other object lies between the two.
static OBJECTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether this process or its parent has had a cache.
#[inline(always)]
pub fn was_taken() -> bool {
    OBJECTS[1].load(Acquire) != 0
}

/// The cache is about to have objects at these addresses.
pub fn take(objects: core::ops::Range<usize>) {
    OBJECTS[0].store(objects.start, Relaxed);
    OBJECTS[1].fetch_max(objects.end, Release);
}

/// Whether the region's object lies in a slot of a cache, of this process or of its parent: the region was
/// handed out to a relaxed call.
#[inline(always)]
pub fn is_in_slot(mr: Mr) -> bool {
    // Acquire: the thread that sees the end also sees the first address.
    mr.address() < OBJECTS[1].load(Acquire) && mr.address() >= OBJECTS[0].load(Relaxed)
}
