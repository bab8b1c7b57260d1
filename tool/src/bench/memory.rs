// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the kinds that are measured.

use clap::ValueEnum;
use std::ffi::{c_int, c_void};
use std::io;

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Anonymous,
    Transparent,
    Memfd,
    Shared,
    Huge,
    HugeShared,
    File,
}

impl Kind {
    pub fn page(self) -> &'static str {
        match self {
            Kind::Transparent => "huge",
            Kind::Huge | Kind::HugeShared => "2 MiB",
            _ => "small",
        }
    }
}

/// Mapped memory.
pub struct Memory {
    pub address: *mut c_void,
    pub length: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping, which is no longer registered.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

/// Maps memory of a kind, without populating it.
pub fn map(kind: Kind, length: usize) -> io::Result<Memory> {
    let (private, none) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    let (flags, fd) = match kind {
        Kind::Anonymous | Kind::Transparent => (private, none),
        Kind::Shared => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, none),
        Kind::Huge => (private | libc::MAP_HUGETLB, none),
        Kind::HugeShared => (
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB,
            none,
        ),
        Kind::Memfd | Kind::File => (
            if kind == Kind::File {
                libc::MAP_PRIVATE
            } else {
                libc::MAP_SHARED
            },
            file(kind, length)?,
        ),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the call makes a new mapping and touches no other.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) };
    let error = io::Error::last_os_error();
    if fd >= 0 {
        // SAFETY: `file` has opened the descriptor. The mapping stays.
        unsafe { libc::close(fd) };
    }
    if address == libc::MAP_FAILED {
        return Err(error);
    }
    let advice = match kind {
        Kind::Transparent => libc::MADV_HUGEPAGE,
        _ => libc::MADV_NOHUGEPAGE,
    };
    // SAFETY: the mapping was just made. A kernel without huge pages refuses the advice, which is
    // harmless.
    unsafe { libc::madvise(address, length, advice) };
    Ok(Memory { address, length })
}

/// A file in memory, or an empty one on the disk, which has no name.
fn file(kind: Kind, bytes: usize) -> io::Result<c_int> {
    let fd = if kind == Kind::Memfd {
        // SAFETY: the name ends with a NUL.
        unsafe { libc::memfd_create(c"rdmamr bench".as_ptr(), libc::MFD_CLOEXEC) }
    } else {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: the path ends with a NUL.
        unsafe { libc::open(c"/var/tmp".as_ptr(), flags, 0o600) }
    };
    // SAFETY: the call takes no pointers.
    if fd < 0 || unsafe { libc::ftruncate(fd, bytes as libc::off_t) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}
