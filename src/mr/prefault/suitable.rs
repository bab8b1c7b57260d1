// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which memory may be populated beside its registration: where that would make the very same pages, and where
//! it is worth it.
//!
//! Only anonymous private memory that can be written to, all of it. The pin takes a page of its own for each
//! page of such memory, also where the device will only read it (a shared page of zeros cannot stay pinned:
//! the first write would leave the device with another page), and MADV_POPULATE_WRITE makes just these.
//! Everything else is left alone: shared memory and files (a write fault changes a file's time, and a pin
//! for reading makes none), what the pin would refuse, and memory of which userfaultfd tells the program when
//! a page is missing. And a registration that the kernel refuses before it looks at the memory leaves that
//! as it was: wrong access, RLIMIT_MEMLOCK.

use super::{Pages, Watch};
use crate::mr::Request;
use crate::proc;

/// Whether the memory of a registration may be populated, and is to be.
pub fn is_suitable(request: &Request, pages: Pages, watch: Watch) -> bool {
    // What is paged on demand is not pinned. In ascending order of the cost:
    !request.access.on_demand()
        && !is_refused(request, pages)
        && pages.lack_some()
        && can_populate()
        && is_within_limit(pages)
        && pages
            .are_private_memory()
            .is_some_and(|below| watch == Watch::Own || pages.are_unwatched(below))
}

/// Whether the kernel refuses it whatever the memory is.
fn is_refused(request: &Request, pages: Pages) -> bool {
    let page = pages.size as u64;
    request.access.refusal().is_some()
        || !(request.addr.addr() as u64 ^ request.iova).is_multiple_of(page)
}

/// Whether this kernel can populate memory, Linux 5.14: it takes the advice, for no memory.
fn can_populate() -> bool {
    const NONE: usize = 0;
    // SAFETY: advice on no memory changes nothing.
    unsafe { libc::syscall(libc::SYS_madvise, NONE, NONE, libc::MADV_POPULATE_WRITE) == 0 }
}

/// What can be below the pages in the address space, and is to be looked at before them.
#[derive(Clone, Copy)]
struct Below {
    mappings: u64,
    bytes: u64,
}

/// Whether the kernel lets so much be pinned.
fn is_within_limit(pages: Pages) -> bool {
    let Some(limit) = proc::memlock_limit() else {
        return true;
    };
    let status = proc::Status::read();
    status.may_lock || status.pinned_kib * 1024 + pages.bytes() as u64 <= limit
}

impl Pages {
    /// Looks at a few of them, and says whether one is not there. One in 32 MiB: a look costs 0.4 us, and the pin
    /// of 32 MiB that are there in huge pages 20 us, in small ones 500 us. What is missing between is left to
    /// the registration, as before.
    fn lack_some(self) -> bool {
        const APART: usize = 32 << 20;
        let looks = self.bytes().div_ceil(APART);
        let apart = self.count() / looks;
        (0..looks).any(|look| !self.page(look * apart + apart / 2).are_present())
    }

    /// Whether all of it is anonymous private memory that can be written to; then what is below.
    fn are_private_memory(self) -> Option<Below> {
        let (mut at, end) = (self.start as u64, self.end as u64);
        let mut below = Below {
            mappings: 0,
            bytes: 0,
        };
        proc::each_mapping(|mapping| {
            if mapping.end <= at {
                below.mappings += 1;
                below.bytes += mapping.end - mapping.start;
                return true;
            }
            let suitable = mapping.writable && !mapping.shared && mapping.inode == 0;
            if mapping.start > at || !suitable {
                return false;
            }
            at = mapping.end;
            at < end
        });
        (at >= end).then_some(below)
    }

    /// Whether no userfaultfd has any of it; false also where it would take too long to find out, or cannot be:
    /// then the registration is as long as it was.
    fn are_unwatched(self, below: Below) -> bool {
        // In ns: see `each_mapping_with_flags`. An eighth of what the pin of what is missing takes, at most.
        let there = proc::resident_pages().min(below.bytes / self.size as u64);
        if below.mappings * 1200 + there * 24 > self.count() as u64 * (1200 / 8) {
            return false;
        }
        let (mut at, end) = (self.start as u64, self.end as u64);
        proc::each_mapping_with_flags(|mapping, flags| {
            if mapping.end <= at {
                return true;
            }
            // Of userfaultfd: missing pages, pages that are not mapped, write protection; of devices.
            const OTHERS: [&[u8]; 5] = [b"um", b"ui", b"uw", b"io", b"pf"];
            let mut flags = flags.split(|&byte| byte == b' ');
            if mapping.start > at || flags.any(|flag| OTHERS.contains(&flag)) {
                return false;
            }
            at = mapping.end;
            at < end
        });
        at >= end
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
