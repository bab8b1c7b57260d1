// SPDX-License-Identifier: MIT OR Apache-2.0
//! userfaultfd(2), opened as the library opens it.

use crate::files::{of_system, owned};
use errno::{Errno, errno};
use std::os::fd::{AsRawFd, OwnedFd};

/// Linux 6.1: the device makes what the system call makes, for the users whom its file mode admits.
pub const DEVICE: &str = "/dev/userfaultfd";
/// Events for mappings that are moved, emptied or unmapped. Without them the library caches no
/// region.
pub const EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa00;
const UFFD_USER_MODE_ONLY: i32 = 1;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;

/// A userfaultfd with these features, and those that the kernel offers.
pub fn open(features: u64) -> Result<(OwnedFd, u64), Errno> {
    let file = match call(libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY) {
        // Linux before 5.11 does not know UFFD_USER_MODE_ONLY.
        Err(Errno(libc::EINVAL)) => call(libc::O_CLOEXEC | libc::O_NONBLOCK)?,
        opened => opened?,
    };
    // The version of the interface, the features, and the ioctls that the kernel returns.
    let mut api = [0xaa, features, 0];
    // SAFETY: the structure that the call takes is three such numbers.
    match unsafe { libc::ioctl(file.as_raw_fd(), UFFDIO_API, &raw mut api) } {
        0 => Ok((file, api[1])),
        _ => Err(errno()),
    }
}

fn call(flags: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: userfaultfd takes no pointers.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) }).or_else(|_| {
        let refused = errno();
        // As the library does, which leaves other errors as they are.
        if matches!(refused.0, libc::EPERM | libc::EACCES | libc::ENOSYS) {
            if let Ok(device) = of_system(DEVICE, false) {
                let device = device.as_raw_fd();
                // SAFETY: the argument of this ioctl is a number.
                let opened = unsafe { libc::ioctl(device, USERFAULTFD_IOC_NEW, flags) };
                return owned(opened).map_err(|_| refused);
            }
        }
        Err(refused)
    })
}
