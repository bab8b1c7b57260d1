// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides which memory may be populated beside its registration: memory where populating makes the
//! very same pages as the pin, and where it pays.
//!
//! Only memory that is entirely anonymous, private and writable qualifies. For each page of such
//! memory the pin takes a page of its own, even if the device will only read it. (The shared page
//! of zeros cannot stay pinned: the first write would leave the device with another page.)
//! MADV_POPULATE_WRITE makes exactly these pages.
//!
//! All other memory is left alone: shared memory and files (a write fault changes a file's time,
//! and a pin for reading causes none), memory that the pin would refuse, and memory for which a
//! userfaultfd tells the program of missing pages. A registration that the kernel refuses before it
//! looks at the memory (wrong access, RLIMIT_MEMLOCK) leaves the memory unchanged; so does this
//! module.

use super::{Pages, WatchedBy};
use crate::call::Request;
use crate::sys::proc;

/// Whether populating a registration's memory is allowed and pays.
pub fn is_suitable(request: &Request, pages: Pages, watch: WatchedBy) -> bool {
    // On-demand paging pins nothing. The checks run in ascending order of cost:
    !request.access.on_demand()
        && !is_refused(request, pages)
        && pages.lack_some()
        && can_populate()
        && is_within_limit(pages)
        && pages
            .are_private_memory()
            .is_some_and(|below| watch == WatchedBy::Own || pages.are_unwatched(below))
}

/// Whether the kernel refuses the registration whatever the memory is.
fn is_refused(request: &Request, pages: Pages) -> bool {
    let page = pages.size as u64;
    request.access.refusal().is_some()
        || !(request.addr.addr() as u64 ^ request.iova).is_multiple_of(page)
}

/// Whether this kernel can populate memory (Linux 5.14): it then accepts the advice for an empty
/// range.
fn can_populate() -> bool {
    const NONE: usize = 0;
    // SAFETY: advice on an empty range changes nothing.
    unsafe { libc::syscall(libc::SYS_madvise, NONE, NONE, libc::MADV_POPULATE_WRITE) == 0 }
}

/// The address space below the pages, which a search of the mappings passes first.
#[derive(Clone, Copy)]
struct Below {
    mappings: u64,
    bytes: u64,
}

/// Whether the kernel's limit lets the pages be pinned.
fn is_within_limit(pages: Pages) -> bool {
    let Some(limit) = proc::memlock_limit() else {
        return true;
    };
    proc::Status::read().is_some_and(|status| {
        status.may_lock || status.pinned_kib * 1024 + pages.bytes() as u64 <= limit
    })
}

impl Pages {
    /// Samples a few of the pages and tells whether one is missing. It samples one page in 32 MiB:
    /// a look costs 0.4 us, and the pin of 32 MiB of present pages 20 us with huge pages, 500 us
    /// with small ones. Missing pages between the samples are left to the registration, as before.
    fn lack_some(self) -> bool {
        const APART: usize = 32 << 20;
        let looks = self.bytes().div_ceil(APART);
        let apart = self.count() / looks;
        (0..looks).any(|look| !self.page(look * apart + apart / 2).are_present())
    }

    /// If all of the memory is certain to be anonymous, private and writable, the address space
    /// below it.
    fn are_private_memory(self) -> Option<Below> {
        let (mut at, end) = (self.start as u64, self.end as u64);
        let mut below = Below {
            mappings: 0,
            bytes: 0,
        };
        let read = proc::each_mapping(|mapping| {
            let range = mapping.range;
            if range.end <= at {
                below.mappings += 1;
                below.bytes += range.bytes();
                return true;
            }
            if range.start > at || !mapping.writable || !mapping.is_plain() {
                return false;
            }
            at = range.end;
            at < end
        });
        (read && at >= end).then_some(below)
    }

    /// Whether no userfaultfd has any of the memory. False also if the answer would take too long
    /// or cannot be had: then the registration takes as long as without helpers.
    fn are_unwatched(self, below: Below) -> bool {
        // In ns: see `each_mapping_with_flags`. At most an eighth of the time to pin missing pages.
        let resident = proc::resident_pages().unwrap_or(u64::MAX);
        let there = resident.min(below.bytes / self.size as u64);
        if below.mappings * 1200 + there * 24 > self.count() as u64 * (1200 / 8) {
            return false;
        }
        let (mut at, end) = (self.start as u64, self.end as u64);
        let read = proc::each_mapping_with_flags(|mapping, flags| {
            if mapping.range.end <= at {
                return true;
            }
            // Flags of userfaultfd (missing pages, minor faults, write protection) and of devices.
            const OTHERS: [&[u8]; 5] = [b"um", b"ui", b"uw", b"io", b"pf"];
            let mut flags = flags.split(|&byte| byte == b' ');
            if mapping.range.start > at || flags.any(|flag| OTHERS.contains(&flag)) {
                return false;
            }
            at = mapping.range.end;
            at < end
        });
        read && at >= end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::prefault::tests::Memory;

    const SIZE: usize = 64 << 20;

    #[test]
    fn fresh_memory_is_suitable_and_no_more_once_it_is_there() {
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        assert!(pages.lack_some());
        let below = pages.are_private_memory().unwrap();
        assert!(below.mappings > 0 && below.bytes > 0);
        assert!(pages.are_unwatched(below));
        for at in (0..SIZE).step_by(4096) {
            memory.write(at, 1);
        }
        assert!(!pages.lack_some());
    }

    #[test]
    fn one_page_of_another_kind_is_enough() {
        for protection in [libc::PROT_NONE, libc::PROT_READ] {
            let memory = Memory::new(SIZE);
            memory.protect(SIZE - 4096, protection);
            assert!(memory.pages().are_private_memory().is_none());
        }
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let beyond = Pages {
            end: pages.end + SIZE,
            ..pages
        };
        memory.guard();
        assert!(beyond.are_private_memory().is_none());
        assert!(pages.are_private_memory().is_some());
    }

    #[test]
    fn a_long_look_is_not_taken() {
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let mappings = 1 << 20;
        let bytes = 0;
        assert!(!pages.are_unwatched(Below { mappings, bytes }));
    }
}
