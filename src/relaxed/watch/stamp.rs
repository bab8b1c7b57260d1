// SPDX-License-Identifier: MIT OR Apache-2.0
//! A check of a region's pages, for RDMAMR_RELAXED_STRICT=1: whether all pages are present, in
//! mappings that userfaultfd watches. A mapping that was replaced without an event is no longer
//! watched. The check uses PAGEMAP_SCAN, Linux 6.7 (Documentation/admin-guide/mm/pagemap.rst).

use crate::sys::pages::PageRange;

const PAGE_IS_WPALLOWED: u64 = 1 << 0;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const BOTH: u64 = PAGE_IS_WPALLOWED | PAGE_IS_PRESENT;

#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const _: () = assert!(size_of::<Scan>() == 0x60);

#[repr(C)]
#[derive(Default)]
struct Found {
    start: u64,
    end: u64,
    categories: u64,
}

/// /proc/self/pagemap of this process.
#[derive(Clone, Copy)]
pub struct Stamp(i32);

impl Stamp {
    /// Opens the file. `None` if the kernel has no PAGEMAP_SCAN.
    pub fn open() -> Option<Stamp> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path ends with a NUL.
        let fd = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), flags) };
        if fd < 0 {
            return None;
        }
        let stamp = Stamp(fd);
        if stamp.scan(PageRange { start: 0, end: 0 }).is_none() {
            // SAFETY: this function opened `fd`, and nothing else uses it.
            unsafe { libc::close(fd) };
            return None;
        }
        Some(stamp)
    }

    /// Whether every page of the range is present and watched.
    pub fn holds(self, range: PageRange) -> bool {
        self.scan(range) == Some(range)
    }

    /// Returns the first stretch of pages that are present and watched.
    fn scan(self, range: PageRange) -> Option<PageRange> {
        let mut found = Found::default();
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: range.start,
            end: range.end,
            vec: (&raw mut found).expose_provenance() as u64,
            vec_len: 1,
            category_mask: BOTH,
            return_mask: BOTH,
            ..Scan::default()
        };
        let errno = errno::errno();
        // SAFETY: `scan` is the call's `struct pm_scan_arg`, and its `vec` points to room for one
        // answer.
        let count = unsafe { libc::ioctl(self.0, PAGEMAP_SCAN, &raw mut scan) };
        errno::set_errno(errno);
        (count >= 0).then_some(PageRange {
            start: found.start,
            end: found.end,
        })
    }
}
