// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two system calls of uverbs, as a trait, and the kernel behind it.

use crate::abi::uapi::{RDMA_VERBS_IOCTL, ib_uverbs_ioctl_hdr};
use errno::Errno;

/// What carries a command to the kernel. Unit tests put a scripted one in its place.
pub trait Kernel {
    /// `ioctl(fd, RDMA_VERBS_IOCTL, bundle)`, see `Documentation/userspace-api/ioctl` and
    /// drivers/infiniband/core/uverbs_ioctl.c.
    ///
    /// # Safety
    /// `bundle` points to a header, the attributes that it counts follow it, and every address among
    /// them is good for the size beside it.
    unsafe fn ioctl(&self, fd: i32, bundle: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno>;

    /// `write(fd, command)`: the older interface, drivers/infiniband/core/uverbs_main.c.
    ///
    /// # Safety
    /// The address of the answer that `command` holds, if any, is good for the size that it states.
    unsafe fn write(&self, fd: i32, command: &[u8]) -> Result<(), Errno>;
}

/// The kernel itself, for threads that the C library does not know (`helper_thread.rs`): another
/// library may stand in for ioctl and write, and use what such a thread has not got. For syscall none does.
pub struct UverbsOfHelper;

impl Kernel for UverbsOfHelper {
    unsafe fn ioctl(&self, fd: i32, bundle: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno> {
        // SAFETY: the caller vouches for the bundle.
        match unsafe { libc::syscall(libc::SYS_ioctl, fd, RDMA_VERBS_IOCTL, bundle) } {
            0 => Ok(()),
            _ => Err(errno::errno()),
        }
    }

    unsafe fn write(&self, fd: i32, command: &[u8]) -> Result<(), Errno> {
        let (bytes, length) = (command.as_ptr(), command.len());
        // SAFETY: the slice is readable; the caller vouches for the address in it.
        let written = unsafe { libc::syscall(libc::SYS_write, fd, bytes, length) };
        if usize::try_from(written) == Ok(length) {
            Ok(())
        } else {
            Err(errno::errno())
        }
    }
}

/// The kernel itself.
pub struct Uverbs;

impl Kernel for Uverbs {
    unsafe fn ioctl(&self, fd: i32, bundle: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno> {
        // Not retried after EINTR: libibverbs does not either, and a pinned MR must not be made twice.
        // SAFETY: the caller vouches for the bundle; a bad fd is an error, not undefined.
        match unsafe { libc::ioctl(fd, RDMA_VERBS_IOCTL, bundle) } {
            0 => Ok(()),
            _ => Err(errno::errno()),
        }
    }

    unsafe fn write(&self, fd: i32, command: &[u8]) -> Result<(), Errno> {
        // SAFETY: the slice is readable; the caller vouches for the address in it.
        let written = unsafe { libc::write(fd, command.as_ptr().cast(), command.len()) };
        if usize::try_from(written) == Ok(command.len()) {
            Ok(())
        } else {
            Err(errno::errno())
        }
    }
}
