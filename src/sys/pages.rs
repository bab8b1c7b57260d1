// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole pages: the unit that the kernel pins, and so the unit that a region of the cache covers.

use core::num::NonZeroUsize;
use once_cell::race::OnceNonZeroUsize;

/// The address for the library's own mappings if the kernel has room there. It is far from the
/// program's mappings, so that no mapping of the library fills a hole that the program has just
/// made.
pub const FAR_AWAY: usize = 0x2d72_0000_0000;

/// The largest page size that a kernel of this architecture may have.
pub const LARGEST_PAGE: usize = if cfg!(target_arch = "aarch64") {
    65536
} else {
    4096
};

/// The size of a page in bytes. The kernel is asked once.
#[inline(always)]
pub fn page_size() -> u64 {
    // x86-64 has a single base page size; on other architectures the kernel was built with one of
    // several.
    if cfg!(target_arch = "x86_64") {
        return 4096;
    }
    static SIZE: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let ask = || {
        // SAFETY: sysconf has no preconditions.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        NonZeroUsize::new(size as usize).unwrap_or(NonZeroUsize::MIN.saturating_add(4095))
    };
    SIZE.get_or_init(ask).get() as u64
}

/// Addresses from `start` up to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRange {
    pub start: u64,
    pub end: u64,
}

impl PageRange {
    /// All addresses.
    pub const ALL: PageRange = PageRange {
        start: 0,
        end: u64::MAX,
    };

    pub const fn new(start: u64, end: u64) -> PageRange {
        PageRange { start, end }
    }

    /// The whole pages that hold the memory. `None` if the length is 0 or the memory runs past the
    /// last page.
    #[inline(always)]
    pub fn around(addr: u64, length: u64) -> Option<PageRange> {
        let page = page_size();
        let end = addr.checked_add(length)?.checked_add(page - 1)? & !(page - 1);
        let start = addr & !(page - 1);
        (length > 0).then_some(PageRange::new(start, end))
    }

    /// The smallest range that contains both.
    pub fn joined_with(self, other: PageRange) -> PageRange {
        PageRange::new(self.start.min(other.start), self.end.max(other.end))
    }

    /// The length in bytes.
    pub fn bytes(self) -> u64 {
        self.end - self.start
    }

    /// The length in pages.
    #[inline(always)]
    pub fn pages(self) -> u64 {
        self.bytes() / page_size()
    }

    /// Whether the ranges share an address.
    pub fn overlaps(self, other: PageRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The addresses that both ranges share, if any.
    pub fn common(self, other: PageRange) -> Option<PageRange> {
        let common = PageRange::new(self.start.max(other.start), self.end.min(other.end));
        self.overlaps(other).then_some(common)
    }

    /// Whether `other` lies within this range.
    #[inline(always)]
    pub fn contains(self, other: PageRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The range, extended to multiples of `unit`, a power of two.
    pub fn extended(self, unit: u64) -> PageRange {
        let end = self.end.saturating_add(unit - 1);
        PageRange::new(self.start & !(unit - 1), end & !(unit - 1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn page_ranges() {
        let page = page_size();
        let page_range = |addr, length| {
            PageRange::around(addr, length).map(|page_range| (page_range.start, page_range.end))
        };
        assert_eq!(page_range(page + 1, 1), Some((page, 2 * page)));
        assert_eq!(page_range(page, page), Some((page, 2 * page)));
        assert_eq!(page_range(2 * page - 1, 2), Some((page, 3 * page)));
        assert_eq!(page_range(page, 0), None);
        assert_eq!(page_range(u64::MAX - 10, 11), None);
        assert_eq!(page_range(u64::MAX - 10, 12), None);
        assert_eq!(
            page_range(u64::MAX - 2 * page, 5),
            Some((0u64.wrapping_sub(3 * page), !(page - 1)))
        );
    }

    #[test]
    fn ranges() {
        let range = |start, end| PageRange { start, end };
        assert!(range(1, 3).overlaps(range(2, 9)) && !range(1, 3).overlaps(range(3, 9)));
        assert!(range(1, 9).contains(range(1, 9)) && !range(2, 9).contains(range(1, 3)));
        assert_eq!(range(5, 17).extended(8), range(0, 24));
        assert_eq!(range(1, 5).common(range(3, 9)), Some(range(3, 5)));
        assert_eq!(range(1, 5).common(range(5, 9)), None);
    }
}
