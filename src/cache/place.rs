// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's place in the address space, and which parts of it are mapped.
//!
//! The place is as large as the cache may ever become, 64 MiB. Only what is in use is mapped, some
//! 500 KiB at first: a process may have little room (RLIMIT_AS, RLIMIT_DATA), and mlockall(2) makes
//! each mapping resident. Nothing is reserved. The place lies far from where the kernel maps, and
//! what cannot be mapped there, for want of room or since something else has come there, the cache
//! does without.
//!
//! A reference to the cache covers memory that is not mapped. The cache consists of atomics, so the
//! compiler assumes of no part of it that it can be read, and each part says what of it may be.

use crate::layout::Regions;
use crate::mapping::{map_at, map_with, unmap};
use rdmamr_sys::process::FAR_AWAY;

/// Finds a place for the cache, and maps what an empty cache needs.
pub fn find() -> Option<&'static Regions> {
    const PLACES: usize = 8;
    const APART: usize = (size_of::<Regions>() + align_of::<Regions>()).next_multiple_of(32 << 20);
    let mut places = (0..PLACES)
        .map(|n| (FAR_AWAY + (1 << 24) + n * APART).next_multiple_of(align_of::<Regions>()));
    places.find_map(begin).or_else(|| begin(free_place()?))
}

/// A place where nothing is mapped, in an address space that does not reach so far.
fn free_place() -> Option<usize> {
    let size = size_of::<Regions>() + align_of::<Regions>();
    let start = map_with(0, size, libc::PROT_NONE)?;
    unmap(start, size);
    Some(start.next_multiple_of(align_of::<Regions>()))
}

fn begin(address: usize) -> Option<&'static Regions> {
    let first = Regions::FIRST.map(|(from, length)| (address + from, length));
    for (n, &(start, length)) in first.iter().enumerate() {
        if !map_at(start, length) {
            first[..n]
                .iter()
                .for_each(|&(start, length)| unmap(start, length));
            return None;
        }
    }
    let regions = core::ptr::with_exposed_provenance::<Regions>(address);
    // SAFETY: zeroed memory is an empty cache, whose parts say what of them is mapped. The address
    // is aligned, and nothing is unmapped from now on.
    let regions = unsafe { &*regions };
    regions.has_first();
    Some(regions)
}
