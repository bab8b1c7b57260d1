// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages of a registration, and a look at samples of them.

use super::kind::Kind;
use rdmamr_sys::pagemap::{Entry, PageMap};
use rdmamr_sys::pages::{PageRange, page_size};

/// The memory of a registration, and the way in which the kernel will treat it.
#[derive(Clone, Copy)]
pub struct Pin {
    pub addr: usize,
    pub length: usize,
    /// The kernel pins the pages. False with on-demand paging, and if the kernel refuses the
    /// registration whatever the memory is.
    pub pins: bool,
    /// The kernel pins the pages for writing.
    pub writing: bool,
    /// A GPU's driver pins the memory. It does not look at RLIMIT_MEMLOCK, and does not let go of the
    /// mmap lock, so that nothing can ask for huge pages meanwhile: the threads populate before the
    /// registration.
    pub by_gpu: bool,
    /// The cache itself watches all of the memory. So no other userfaultfd does, and none of the
    /// pages is protected.
    pub is_watched: bool,
}

/// The pages that a range of addresses touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    pub start: usize,
    pub end: usize,
    /// The size of one page.
    pub size: usize,
}

impl Pages {
    /// `None` if the range is empty or runs past the end of the address space.
    pub fn of(pin: &Pin) -> Option<Pages> {
        let page_range = PageRange::around(pin.addr as u64, pin.length as u64)?;
        Some(Pages {
            start: page_range.start as usize,
            end: page_range.end as usize,
            size: page_size() as usize,
        })
    }

    pub fn bytes(self) -> usize {
        self.end - self.start
    }

    pub fn count(self) -> usize {
        self.bytes() / self.size
    }

    /// The page with this index.
    pub fn page(self, number: usize) -> Pages {
        let start = self.start + number * self.size;
        let end = start + self.size;
        Pages { start, end, ..self }
    }

    /// Returns this many pages, one from each of as many parts. The place within the part differs,
    /// so that a pattern in the memory does not hide from all samples.
    pub fn samples(self, count: usize) -> impl Iterator<Item = Pages> {
        let apart = self.count() / count.max(1);
        (0..count).map(move |number| {
            // Multiples of the golden ratio spread evenly, whatever their number.
            const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
            let spread = (number as u64 + 1).wrapping_mul(GOLDEN) >> 32;
            self.page(number * apart + ((spread * apart as u64) >> 32) as usize)
        })
    }

    /// The percentage of pages that the pin finds as it needs them, estimated from 100 samples.
    /// `None` if the kernel does not tell.
    pub fn percent_there(self, kind: Kind) -> Option<usize> {
        let map = PageMap::open()?;
        let is_there = |page: Pages| Some(usize::from(kind.is_there(page.entry(&map)?)));
        self.samples(100).map(is_there).sum()
    }

    /// What the page map has of the first page.
    pub fn entry(self, map: &PageMap) -> Option<Entry> {
        let mut entry = [Entry::default()];
        map.read(self.start, &mut entry).then_some(entry[0])
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use core::ffi::c_void;

    /// A registration that pins the memory for writing.
    pub fn pin(addr: usize, length: usize) -> Pin {
        Pin {
            addr,
            length,
            pins: true,
            writing: true,
            by_gpu: false,
            is_watched: false,
        }
    }

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
            Pages::of(&pin(self.0.addr(), self.1)).unwrap()
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
            Pages::of(&pin(start, length)).map(|pages| (pages.start, pages.end))
        };
        let size = page_size() as usize;
        assert_eq!(pages(size, size), Some((size, 2 * size)));
        assert_eq!(pages(size + 1, size), Some((size, 3 * size)));
        assert_eq!(pages(2 * size - 1, 1), Some((size, 2 * size)));
        assert_eq!(pages(size, usize::MAX), None);
        assert_eq!(pages(usize::MAX - 1, 1), None);
    }
}
