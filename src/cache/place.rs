// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's address range, and its mapped parts.
//!
//! The range is as large as the cache may ever become, 66 MiB. Only the parts in use are mapped,
//! some 500 KiB at first: the process may be limited (RLIMIT_AS, RLIMIT_DATA), and mlockall(2)
//! makes each mapping resident. The rest of the range is not reserved. The range lies far from the
//! addresses that the kernel chooses. If a part cannot be mapped, because a limit is reached or
//! something else is mapped there, the cache does without that part.
//!
//! A reference to the cache covers memory that is not mapped. The cache consists of atomics, so the
//! compiler does not assume that any part of it can be read. Each part knows which of its bytes are
//! mapped.

use crate::layout::Regions;
use crate::mapping::{map_at, map_with, unmap};
use rdmamr_sys::process::{FAR_AWAY, PAGE_SIZE};

/// Finds a place for the cache, and maps the part that an empty cache needs.
pub fn find() -> Option<&'static Regions> {
    const PLACES: usize = 8;
    const APART: usize = (size_of::<Regions>() + align_of::<Regions>()).next_multiple_of(32 << 20);
    let mut places = (0..PLACES)
        .map(|n| (FAR_AWAY + (1 << 24) + n * APART).next_multiple_of(align_of::<Regions>()));
    places.find_map(begin).or_else(|| begin(free_place()?))
}

/// A place where nothing is mapped, for an address space that does not reach as far as the others.
fn free_place() -> Option<usize> {
    let size = size_of::<Regions>() + align_of::<Regions>();
    let start = map_with(0, size, libc::PROT_NONE)?;
    unmap(start, size);
    Some(start.next_multiple_of(align_of::<Regions>()))
}

fn begin(address: usize) -> Option<&'static Regions> {
    if !map_at(address, Regions::FIRST.next_multiple_of(PAGE_SIZE)) {
        return None;
    }
    let regions = core::ptr::with_exposed_provenance::<Regions>(address);
    // SAFETY: zeroed memory is an empty cache, and each of its parts knows which of its bytes are
    // mapped. The address is aligned, and nothing is unmapped from now on.
    Some(unsafe { &*regions })
}
