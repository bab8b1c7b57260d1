// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that is watched for a region: its chunks, as far as they are mapped without a gap.

use errno::{errno, set_errno};
use rdmamr_sys::pages::{PageRange, page_size};

/// The unit in which memory is watched, so that a huge page stays whole. The cache counts its
/// regions by the same unit.
pub const CHUNK: u64 = 2 << 20;

/// The pages of a region, extended to its chunks as far as memory is mapped without a gap. A later
/// mapping may fill the gap, and another userfaultfd of the process may register it.
pub fn around(page_range: PageRange) -> PageRange {
    let chunks = page_range.extended(CHUNK);
    let before = errno();
    let around = if is_mapped(chunks) {
        chunks
    } else {
        PageRange::new(
            reach(page_range.start, chunks.start),
            reach(page_range.end, chunks.end),
        )
    };
    set_errno(before);
    around
}

/// Whether memory is mapped without a gap. An error of any kind means that it may not be.
fn is_mapped(range: PageRange) -> bool {
    // SAFETY: without a flag the call changes and writes nothing. It looks at mappings only.
    unsafe { libc::syscall(libc::SYS_msync, range.start, range.bytes(), 0) == 0 }
}

/// How far memory is mapped without a gap from `near` towards `far`.
/// Most regions that are not in whole chunks are a mapping of their own, with gaps right beside them.
fn reach(near: u64, far: u64) -> u64 {
    let page = page_size();
    let is_mapped_to = |to: u64| is_mapped(PageRange::new(near.min(to), near.max(to)));
    let beside = if far < near { near - page } else { near + page };
    if near == far || !is_mapped_to(beside) {
        return near;
    }
    if is_mapped_to(far) {
        return far;
    }
    let (mut mapped, mut gap) = (beside, far);
    while mapped.abs_diff(gap) > page {
        let middle = mapped.midpoint(gap) & !(page - 1);
        if is_mapped_to(middle) {
            mapped = middle;
        } else {
            gap = middle;
        }
    }
    mapped
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn an_extent_ends_at_gaps_and_at_the_chunk() {
        let (page, length) = (page_size(), 4 * CHUNK as usize);
        let (read_write, private) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let memory =
            unsafe { libc::mmap(core::ptr::null_mut(), length, read_write, private, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let chunk = (memory.addr() as u64).next_multiple_of(CHUNK);
        let range = |from: u64, to: u64| PageRange::new(chunk + from * page, chunk + to * page);
        let unmap = |at: u64| {
            let address = memory.with_addr((chunk + at * page) as usize);
            // SAFETY: the page lies in the mapping that this test made.
            assert_eq!(unsafe { libc::munmap(address, page as usize) }, 0);
        };
        let pages = CHUNK / page;
        assert_eq!(around(range(7, 8)), range(0, pages));
        assert_eq!(around(range(0, pages)), range(0, pages));
        assert_eq!(around(range(7, pages + 1)), range(0, 2 * pages));
        for gap in [1, 3, pages - 2] {
            unmap(gap);
        }
        assert_eq!(around(range(0, 1)), range(0, 1));
        assert_eq!(around(range(2, 3)), range(2, 3));
        assert_eq!(around(range(4, 5)), range(4, pages - 2));
        assert_eq!(around(range(9, 10)), range(4, pages - 2));
        assert_eq!(around(range(pages - 1, pages)), range(pages - 1, pages));
        // SAFETY: the memory is the mapping that this test made.
        unsafe { libc::munmap(memory, length) };
    }
}
