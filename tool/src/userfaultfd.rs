// SPDX-License-Identifier: MIT OR Apache-2.0
//! userfaultfd(2), opened as the library opens it.

use crate::files::{of_system, owned, result};
use rustix::io::Errno;
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Linux 6.1: the device makes what the system call makes, for the users whom its file mode admits.
pub const DEVICE: &str = "/dev/userfaultfd";
/// Events for mappings that are moved, emptied or unmapped. Without them the library caches no
/// region.
pub const EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa00;
const UFFD_USER_MODE_ONLY: u32 = 1;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;

/// A userfaultfd with these features, and those that the kernel offers.
pub fn open(features: u64) -> io::Result<(OwnedFd, u64)> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    let file = match call(flags | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY)) {
        // Linux before 5.11 does not know UFFD_USER_MODE_ONLY.
        Err(Errno::INVAL) => call(flags)?,
        opened => opened?,
    };
    // The version of the interface, the features, and the ioctls that the kernel returns.
    let mut api = [0xaa, features, 0];
    // SAFETY: the structure that the call takes is three such numbers.
    result(unsafe { libc::ioctl(file.as_raw_fd(), UFFDIO_API, &raw mut api) })?;
    Ok((file, api[1]))
}

fn call(flags: UserfaultfdFlags) -> rustix::io::Result<OwnedFd> {
    // SAFETY: the call only makes a file.
    let refused = match unsafe { userfaultfd(flags) } {
        // As the library does, which leaves other errors as they are.
        Err(error @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => error,
        opened => return opened,
    };
    let device = of_system(DEVICE, false).map_err(|_| refused)?;
    // SAFETY: the argument of this ioctl is a number.
    let opened = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags.bits()) };
    owned(opened).map_err(|_| refused)
}
