// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading memory that may not be mapped: the program's stack, as far as its unwind information
//! leads.

use core::ptr::with_exposed_provenance;
use errno::errno;
use libc::{EINVAL, SYS_rt_sigprocmask, c_int, syscall};

/// The smallest page of any kernel: if one address is readable, so is the whole aligned block of
/// this size around it.
const PAGE: u64 = 4096;

/// Reads words, and asks the kernel about each page that it has not just read from.
pub struct Reader {
    page: u64,
    /// How often the kernel was asked.
    pub asked: u32,
}

impl Reader {
    /// A reader that knows of no page.
    pub const fn new() -> Reader {
        Reader { page: 0, asked: 0 }
    }

    /// A reader that knows the page of a value, such as one on the stack.
    #[inline(always)]
    pub fn around<T>(value: &T) -> Reader {
        Reader {
            page: (&raw const *value).addr() as u64 & !(PAGE - 1),
            ..Reader::new()
        }
    }

    /// The word at an address. `None` if it is not aligned, or not readable.
    #[inline(always)]
    pub fn word(&mut self, address: u64) -> Option<u64> {
        let page = address & !(PAGE - 1);
        if address % 8 != 0 {
            return None;
        }
        if page != self.page {
            self.asked += 1;
            if page == 0 || !is_readable(page) {
                return None;
            }
            self.page = page;
        }
        // SAFETY: the page is readable. It is memory of this thread's own stack, so no other thread
        // unmaps it meanwhile. The read is volatile, since the program knows nothing of it.
        Some(unsafe { with_exposed_provenance::<u64>(address as usize).read_volatile() })
    }
}

/// Whether the eight bytes at an address are readable. The kernel copies a signal mask from there,
/// and then refuses the call, since there is no operation -1. Changes errno.
#[cold]
fn is_readable(address: u64) -> bool {
    const NO_WAY: c_int = -1;
    const MASK: usize = 8;
    let nowhere = core::ptr::null_mut::<u8>();
    // SAFETY: the kernel checks the address, and changes nothing.
    let result = unsafe { syscall(SYS_rt_sigprocmask, NO_WAY, address, nowhere, MASK) };
    result == -1 && errno().0 == EINVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_read_and_what_is_not_is_refused() {
        let words = [7u64, 8];
        let address = words.as_ptr().expose_provenance() as u64;
        let mut reader = Reader::around(&words);
        assert_eq!((reader.word(address), reader.asked), (Some(7), 0));
        let mut reader = Reader::new();
        assert_eq!(reader.word(address), Some(7));
        assert_eq!(reader.word(address & !15), reader.word(address & !15));
        assert_eq!(reader.asked, 1);
        assert_eq!(reader.word(address + 8), Some(8));
        assert_eq!(reader.word(address + 1), None);
        assert_eq!(reader.word(0), None);
        assert_eq!(reader.word(!7), None);
        // SAFETY: a new mapping without rights replaces nothing.
        let closed = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(core::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0)
        };
        assert_eq!(reader.word(closed.addr() as u64), None);
        // SAFETY: the mapping was just made here.
        unsafe { libc::munmap(closed, 4096) };
        assert_eq!(reader.word(closed.addr() as u64), None);
    }
}
