// SPDX-License-Identifier: MIT OR Apache-2.0
//! Populating memory during its registration, and reporting registrations that take long.
//!
//! The kernel pins the pages of a registration one after the other, on one core. A page that was
//! never touched it must first find and clear: 1 us for 4 KiB. With `RDMAMR_PREFAULT=N` helper
//! threads join in: while the kernel pins from the start, N - 1 threads populate from the end
//! (`team.rs`), on the memory's own node (`nodes.rs`). They populate only pages that the pin would
//! have made (`suitable.rs`, `kind.rs`), so that only the time differs afterwards. Every failure is
//! left to the registration itself.
//!
//! The helpers run beside the registration, not before it: the registering thread then makes the
//! pages that it needs next and pins them at once. To populate all of 1 GiB with two threads and
//! pin it afterwards took a sixth longer.

mod huge;
mod kind;
mod nodes;
mod progress;
mod suitable;
mod team;

use crate::call::Request;
use crate::config::{config, disabled};
use crate::report::log::{self, Level};
use crate::sys::pagemap::{Entry, PageMap};
use crate::sys::pages::{PageRange, page_size};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use kind::Kind;
use progress::Progress;
use team::Team;

/// From this many bytes on, the checks and the threads pay off.
const LEAST: usize = 16 << 20;

/// Registrations of more bytes than this go through [`around`]. If `around` has no work in this
/// process, it raises the limit so that no registration goes through it.
static LARGE: AtomicUsize = AtomicUsize::new(LEAST - 1);

/// Whether a registration must go through [`around`].
#[inline(always)]
pub fn is_large(length: usize) -> bool {
    length > LARGE.load(Relaxed)
}

/// What the caller knows of userfaultfd on the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchedBy {
    Unknown,
    /// All of it is watched by the cache itself, so by no other, and none of its pages is
    /// protected.
    Own,
}

/// Runs `register` for large memory, with helper threads and a report where they apply.
#[cold]
pub fn around<T>(request: &Request, watch: WatchedBy, register: impl FnOnce() -> T) -> T {
    let threads = config().prefault;
    let told = log::wants(Level::Info) || config().progress;
    if disabled() || (threads < 2 && !told) {
        LARGE.store(usize::MAX, Relaxed);
        return register();
    }
    let errno = errno::errno();
    let pages = Pages::of(request);
    let found = pages
        .filter(|_| threads > 1)
        .and_then(|pages| suitable::find(request, pages, watch));
    let progress = pages
        .filter(|_| told)
        .and_then(|pages| Progress::start(pages, found.map(|found| found.kind)));
    let both = pages.zip(found);
    let team = both.and_then(|(pages, found)| Team::start(pages, found, threads - 1));
    errno::set_errno(errno);
    let result = register();
    let errno = errno::errno();
    let threads = 1 + team.map_or(0, Team::stop);
    if let Some(progress) = progress {
        progress.stop(threads);
    }
    errno::set_errno(errno);
    result
}

/// The pages that a range of addresses touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pages {
    start: usize,
    end: usize,
    /// The size of one page.
    size: usize,
}

impl Pages {
    /// `None` if the range is empty or runs past the end of the address space.
    fn of(request: &Request) -> Option<Pages> {
        let page_range = PageRange::around(request.addr.addr() as u64, request.length as u64)?;
        Some(Pages {
            start: page_range.start as usize,
            end: page_range.end as usize,
            size: page_size() as usize,
        })
    }

    fn bytes(self) -> usize {
        self.end - self.start
    }

    fn count(self) -> usize {
        self.bytes() / self.size
    }

    /// The page with that index.
    fn page(self, number: usize) -> Pages {
        let start = self.start + number * self.size;
        let end = start + self.size;
        Pages { start, end, ..self }
    }

    /// That many pages, one in each of as many parts. The place within the part differs, so that a
    /// pattern in the memory does not hide from all of them.
    fn samples(self, count: usize) -> impl Iterator<Item = Pages> {
        let apart = self.count() / count.max(1);
        (0..count).map(move |number| {
            // Multiples of the golden ratio spread evenly, whatever their number.
            const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
            let spread = (number as u64 + 1).wrapping_mul(GOLDEN) >> 32;
            self.page(number * apart + ((spread * apart as u64) >> 32) as usize)
        })
    }

    /// Whether the page is in memory, mapped or not. False if the kernel does not tell.
    fn is_in_memory(self) -> bool {
        let mut there = 0u8;
        // A raw system call, here and in the threads: this library's own wrappers of the memory
        // calls must not see it.
        // SAFETY: one page has one byte.
        let failed =
            unsafe { libc::syscall(libc::SYS_mincore, self.start, self.size, &raw mut there) } != 0;
        !failed && there & 1 == 1
    }

    /// The percentage of pages that the pin finds as it needs them, estimated from as many samples.
    /// `None` if the kernel does not tell.
    fn percent_there(self, kind: Kind) -> Option<usize> {
        let map = PageMap::open()?;
        let mut percent = 0;
        for page in self.samples(100) {
            let mut entry = [Entry::default()];
            if !map.read(page.start, &mut entry) {
                return None;
            }
            percent += usize::from(kind.is_there(entry[0]));
        }
        Some(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Access;
    use core::ffi::c_void;

    /// Anonymous memory in small pages, and a page behind it that can be made inaccessible.
    pub struct Memory(*mut c_void, usize);

    impl Memory {
        pub fn new(size: usize) -> Memory {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let null = core::ptr::null_mut();
            // SAFETY: the call makes a new mapping and touches no other.
            let start = unsafe { libc::mmap(null, size + 4096, protection, flags, -1, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            // SAFETY: advice on that mapping.
            unsafe { libc::madvise(start, size, libc::MADV_NOHUGEPAGE) };
            Memory(start, size)
        }

        pub fn pages(&self) -> Pages {
            let request = Request::at_address(self.0, self.1, Access::LOCAL_WRITE);
            Pages::of(&request).unwrap()
        }

        pub fn write(&self, at: usize, byte: u8) {
            // SAFETY: within the mapping.
            unsafe {
                self.0
                    .wrapping_byte_add(at)
                    .cast::<u8>()
                    .write_volatile(byte)
            };
        }

        pub fn read(&self, at: usize) -> u8 {
            // SAFETY: within the mapping.
            unsafe { self.0.wrapping_byte_add(at).cast::<u8>().read_volatile() }
        }

        pub fn protect(&self, at: usize, protection: i32) {
            // SAFETY: within the mapping.
            let failed = unsafe { libc::mprotect(self.0.wrapping_byte_add(at), 4096, protection) };
            assert_eq!(failed, 0);
        }

        pub fn guard(&self) {
            self.protect(self.1, libc::PROT_NONE);
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: `new` made this mapping.
            unsafe { libc::munmap(self.0, self.1 + 4096) };
        }
    }

    #[test]
    fn pages_are_those_that_are_touched() {
        let pages = |start: usize, length| {
            let addr = core::ptr::without_provenance_mut(start);
            let request = Request::at_address(addr, length, Access::empty());
            Pages::of(&request).map(|pages| (pages.start, pages.end))
        };
        let size = page_size() as usize;
        assert_eq!(pages(size, size), Some((size, 2 * size)));
        assert_eq!(pages(size + 1, size), Some((size, 3 * size)));
        assert_eq!(pages(2 * size - 1, 1), Some((size, 2 * size)));
        assert_eq!(pages(size, usize::MAX), None);
        assert_eq!(pages(usize::MAX - 1, 1), None);
    }

    #[test]
    fn what_is_registered_keeps_its_result_and_errno() {
        let memory = Memory::new(LEAST);
        let request = Request::at_address(memory.0, LEAST, Access::LOCAL_WRITE);
        errno::set_errno(errno::Errno(libc::EXDEV));
        let result = around(&request, WatchedBy::Unknown, || {
            let before = errno::errno().0;
            errno::set_errno(errno::Errno(libc::ENOENT));
            before
        });
        assert_eq!((result, errno::errno().0), (libc::EXDEV, libc::ENOENT));
    }
}
