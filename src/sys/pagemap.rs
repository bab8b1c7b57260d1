// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's table of this process's pages, proc_pid_pagemap(5).
//!
//! mincore(2) answers another question: for memory of a file it says whether the file's page is in
//! memory, whether it is mapped here or not.

use super::descriptor::Descriptor;
use super::pages::page_size;
use super::proc;

/// The open table.
pub struct PageMap(Descriptor);

/// The table's entry for a page.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    /// The page is mapped.
    pub fn is_present(self) -> bool {
        self.0 >> 63 == 1
    }

    /// The page is swapped out, or the kernel keeps a mark in its place (a memory error, a guard).
    pub fn is_swap(self) -> bool {
        !self.is_present() && self.0 >> 62 & 1 == 1
    }

    /// The page is a guard (MADV_GUARD_INSTALL). Before Linux 6.15 the table does not tell it.
    pub fn is_guard(self) -> bool {
        !self.is_present() && self.0 >> 58 & 1 == 1
    }

    /// The page is mapped, and a userfaultfd has write-protected it. (Before Linux 5.13 the bit is 0.)
    pub fn is_write_protected(self) -> bool {
        self.is_present() && self.0 >> 57 & 1 == 1
    }

    /// The page is mapped, and is of a file or of shared memory.
    pub fn is_of_file(self) -> bool {
        self.is_present() && self.0 >> 61 & 1 == 1
    }

    /// The page is mapped, is not of a file, and no other process has it. The shared zero page does
    /// not count.
    pub fn is_own(self) -> bool {
        self.is_present() && !self.is_of_file() && self.0 >> 56 & 1 == 1
    }
}

impl PageMap {
    /// Opens the table. `None` if the process may not open it, or if there is no /proc.
    pub fn open() -> Option<PageMap> {
        proc::open(c"/proc/thread-self/pagemap").ok().map(PageMap)
    }

    /// Reads the entries of the pages from an address on. False if not all can be read.
    pub fn read(&self, address: usize, entries: &mut [Entry]) -> bool {
        // SAFETY: an entry is a number, for which all bytes are valid.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), size_of_val(entries))
        };
        let place = (address as u64 / page_size()) * size_of::<Entry>() as u64;
        let length = bytes.len();
        self.0.read_at(bytes, place) == Some(length)
    }
}

/// The first page from an address on up to another one that is so, with its entry. The table is read
/// in parts of `PART` pages, and opened anew each time: a descriptor that stays open may mean another
/// file later. `None` if it cannot be read.
#[inline(never)]
pub fn first<const PART: usize>(
    start: u64,
    end: u64,
    is: impl Fn(Entry) -> bool,
) -> Option<Option<(u64, Entry)>> {
    let map = PageMap::open()?;
    let mut entries = [Entry::default(); PART];
    let page = page_size();
    let mut at = start - start % page;
    while at < end {
        let count = (end - at).div_ceil(page).min(PART as u64);
        let entries = entries.get_mut(..count as usize)?;
        if !map.read(at as usize, entries) {
            return None;
        }
        if let Some(n) = entries.iter().position(|&entry| is(entry)) {
            return Some(Some((at + n as u64 * page, entries[n])));
        }
        at += count * page;
    }
    Some(None)
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_missing_then_zero_then_own() {
        let size = page_size() as usize;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: the call makes a new mapping and touches no other.
        let memory = unsafe { libc::mmap(core::ptr::null_mut(), size, protection, flags, -1, 0) };
        let map = PageMap::open().unwrap();
        let look = || {
            let mut entry = [Entry::default()];
            assert!(map.read(memory.addr(), &mut entry));
            (entry[0].is_present(), entry[0].is_own())
        };
        assert_eq!(look(), (false, false));
        // SAFETY: the page is readable.
        unsafe { memory.cast::<u8>().read_volatile() };
        assert_eq!(look(), (true, false));
        // SAFETY: the page is writable.
        unsafe { memory.cast::<u8>().write_volatile(1) };
        assert_eq!(look(), (true, true));
        // SAFETY: this test made the mapping.
        unsafe { libc::munmap(memory, size) };
    }
}
