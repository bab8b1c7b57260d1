// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of this process that may not be mapped.

use super::signals::Signals;
use super::{pages, thread};
use core::ffi::c_void;
use core::ptr::with_exposed_provenance_mut;
use errno::{Errno, errno};

/// Reads words by process_vm_readv(2). The errno is EFAULT if the memory is not mapped.
pub fn read<const WORDS: usize>(address: u64) -> Result<[u64; WORDS], Errno> {
    let mut words = [0u64; WORDS];
    let local = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: size_of_val(&words),
    };
    let remote = libc::iovec {
        iov_base: with_exposed_provenance_mut::<c_void>(address as usize),
        iov_len: size_of_val(&words),
    };
    // Once the first thread has ended, the kernel finds no memory by the process's number.
    let this = thread::id_by_kernel() as libc::pid_t;
    // SAFETY: the kernel writes to `words` only, and checks the other address.
    let read =
        || unsafe { libc::process_vm_readv(this, &raw const local, 1, &raw const remote, 1, 0) };
    thread::keep_errno(|| match read() {
        -1 => Err(errno()),
        read if read as usize == size_of_val(&words) => Ok(words),
        _ => Err(Errno(libc::EFAULT)),
    })
}

/// Whether the program can read the word at this address. The kernel copies a set of signals from there,
/// then refuses what to do with it (`rt_sigprocmask`, kernel/signal.c): a fifth of mincore(2)'s time.
pub fn is_readable(address: usize) -> bool {
    const NOTHING: i32 = -1;
    let (none, size) = (core::ptr::null::<c_void>(), size_of::<Signals>());
    // SAFETY: the kernel copies from the address by a function that checks it, and changes no mask.
    let ask = || unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NOTHING, address, none, size) };
    thread::keep_errno(|| ask() != 0 && errno() == Errno(libc::EINVAL))
}

/// Whether the page at this address is in memory, mapped or not. `None` if the process has no mapping
/// there, or the kernel does not tell. It holds the mmap lock for reading meanwhile (`do_mincore`,
/// mm/mincore.c).
pub fn has_page(page: usize) -> Option<bool> {
    let (mut there, length) = (0u8, pages::page_size());
    // A raw system call, which the library's own wrappers of the memory calls do not see.
    // SAFETY: the kernel reads no memory, and one page has one byte.
    let ask = || unsafe { libc::syscall(libc::SYS_mincore, page, length, &raw mut there) };
    (thread::keep_errno(ask) == 0).then_some(there & 1 == 1)
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn of_mapped_memory_and_of_none() {
        let word = core::hint::black_box(0x1234_5678_9abc_def0u64);
        let address = (&raw const word).expose_provenance() as u64;
        assert_eq!(read(address), Ok([word]));
        assert_eq!(read::<2>(8), Err(Errno(libc::EFAULT)));
        let page = (&raw const word).addr() & !(pages::page_size() as usize - 1);
        assert_eq!([has_page(page), has_page(0)], [Some(true), None]);
        assert_eq!([is_readable(page), is_readable(0)], [true, false]);
    }
}
