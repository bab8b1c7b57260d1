// SPDX-License-Identifier: MIT OR Apache-2.0
//! The extent of a region: the memory around it, as far as that is mapped without a gap.
//!
//! The watch of a region includes the 2 MiB around it, but never reaches across a gap. A later
//! mapping may fill the gap. This library has not registered such a mapping, and another
//! userfaultfd of the process may register it.

use errno::{errno, set_errno};
use rdmamr_sys::pages::{PageRange, page_size};

/// The unit in which memory is watched, so that a huge page stays whole. The cache counts its
/// regions by the same unit.
pub const CHUNK: u64 = 2 << 20;

/// Returns the pages of a region, extended to its 2 MiB chunks as far as memory is mapped without a
/// gap.
///
/// Most regions are a mapping of their own, with gaps right beside them, or lie in chunks without a
/// gap. msync(2) tells that in half the time of mincore(2), which needs a page for its answer.
pub fn around(page_range: PageRange) -> PageRange {
    let (chunks, page) = (page_range.extended(CHUNK), page_size());
    let before = errno();
    let below =
        chunks.start < page_range.start && is_mapped(page_range.start - page, page_range.start);
    let above = page_range.end < chunks.end && is_mapped(page_range.end, page_range.end + page);
    let most = PageRange {
        start: if below {
            chunks.start
        } else {
            page_range.start
        },
        end: if above { chunks.end } else { page_range.end },
    };
    let extent = if most == page_range || is_mapped(most.start, most.end) {
        most
    } else {
        PageRange::new(
            down(most.start, page_range.start),
            up(page_range.end, most.end),
        )
    };
    set_errno(before);
    extent
}

/// Whether memory is mapped without a gap. An error of any kind means that it may not be.
fn is_mapped(start: u64, end: u64) -> bool {
    // SAFETY: without a flag the call changes and writes nothing. It looks at mappings only.
    unsafe { libc::syscall(libc::SYS_msync, start, end - start, 0) == 0 }
}

/// The largest number of pages of a chunk that lie beside a region.
const PAGES: usize = (CHUNK / 4096) as usize;

/// A value that mincore(2) never writes.
const UNSEEN: u8 = 0xff;

/// Returns how many pages are mapped from `start` on without a gap.
fn mapped(start: u64, end: u64) -> u64 {
    let mut seen = [UNSEEN; PAGES];
    let pages = ((end - start) / page_size()) as usize;
    // SAFETY: the call writes one byte a page, and part of a chunk has at most `PAGES` pages.
    unsafe { libc::syscall(libc::SYS_mincore, start, end - start, seen.as_mut_ptr()) };
    // If a gap ends the kernel's walk, mincore(2) has written the bytes of the pages below the gap.
    seen.iter()
        .take(pages)
        .take_while(|&&byte| byte != UNSEEN)
        .count() as u64
}

fn up(start: u64, limit: u64) -> u64 {
    if start >= limit {
        return start;
    }
    start + mapped(start, limit) * page_size()
}

fn down(limit: u64, end: u64) -> u64 {
    let page = page_size();
    let reaches = |start: u64| mapped(start, end) * page == end - start;
    if end <= limit || !reaches(end - page) {
        return end;
    }
    if reaches(limit) {
        return limit;
    }
    let (mut gap, mut start) = (limit, end - page);
    while start - gap > page {
        let middle = (gap + (start - gap) / 2) & !(page - 1);
        if reaches(middle) {
            start = middle;
        } else {
            gap = middle;
        }
    }
    start
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
