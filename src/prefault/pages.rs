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

/// The addresses of this many pages, one from each of as many parts. The place within the part
/// differs, so that a pattern in the memory does not hide from all samples.
pub fn samples(pages: PageRange, count: u64) -> impl Iterator<Item = u64> {
    let apart = pages.pages() / count;
    (0..count).map(move |number| {
        // Multiples of the golden ratio spread evenly, whatever their number.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let spread = (number + 1).wrapping_mul(GOLDEN) >> 32;
        pages.start + (number * apart + ((spread * apart) >> 32)) * page_size()
    })
}

/// The percentage of pages that the pin finds as it needs them, estimated from 100 samples. `None`
/// if the kernel does not tell.
pub fn percent_there(pages: PageRange, kind: Kind) -> Option<u64> {
    let map = PageMap::open()?;
    let is_there = |page| Some(u64::from(kind.is_there(entry(&map, page)?)));
    samples(pages, 100).map(is_there).sum()
}

/// What the page map has of a page.
pub fn entry(map: &PageMap, page: u64) -> Option<Entry> {
    let mut entry = [Entry::default()];
    map.read(page as usize, &mut entry).then_some(entry[0])
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

        pub fn pages(&self) -> PageRange {
            PageRange::around(self.0.addr() as u64, self.1 as u64).unwrap()
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
}
