// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the kinds that are measured.

use clap::ValueEnum;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
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
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let (flags, file) = match kind {
        Kind::Anonymous | Kind::Transparent => (private, None),
        Kind::Shared => (shared, None),
        Kind::Huge => (private | libc::MAP_HUGETLB, None),
        Kind::HugeShared => (shared | libc::MAP_HUGETLB, None),
        Kind::Memfd => (libc::MAP_SHARED, Some(file(kind, length)?)),
        Kind::File => (libc::MAP_PRIVATE, Some(file(kind, length)?)),
    };
    let fd = file.as_ref().map_or(-1, File::as_raw_fd);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the call makes a new mapping and touches no other. The mapping outlives the file.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
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
fn file(kind: Kind, bytes: usize) -> io::Result<File> {
    let file = if kind == Kind::Memfd {
        memfd_create("rdmamr bench", MemfdFlags::CLOEXEC)?.into()
    } else {
        let mut options = File::options();
        options.read(true).write(true).mode(0o600);
        options.custom_flags(libc::O_TMPFILE).open("/var/tmp")?
    };
    file.set_len(bytes as u64)?;
    Ok(file)
}
