// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system call of uverbs as a trait, and its implementations by the kernel.

use core::ffi::{c_int, c_ulong, c_void};
use errno::Errno;
use rdmamr_abi::uapi::{RDMA_VERBS_IOCTL, ib_uverbs_ioctl_hdr};

/// Carries a command to the kernel. Unit tests use a scripted kernel instead.
pub trait Kernel {
    /// `ioctl(fd, RDMA_VERBS_IOCTL, bundle)`, see `Documentation/userspace-api/ioctl` and
    /// drivers/infiniband/core/uverbs_ioctl.c.
    ///
    /// # Safety
    /// `bundle` points to a header, followed by the attributes that it counts. Every address in an
    /// attribute is valid for the size stated beside it.
    unsafe fn ioctl(&self, fd: i32, bundle: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno>;
}

/// The kernel itself, for threads that the C library does not know (`helper_thread.rs`). Another
/// library may replace ioctl and use what such a thread lacks. No library replaces syscall.
pub struct UverbsOfHelper;

impl Kernel for UverbsOfHelper {
    #[inline]
    unsafe fn ioctl(&self, fd: i32, bundle: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno> {
        // SAFETY: the bundle and its addresses are valid by the contract of `Kernel::ioctl`.
        match unsafe { libc::syscall(libc::SYS_ioctl, fd, RDMA_VERBS_IOCTL, bundle) } {
            0 => Ok(()),
            _ => Err(errno::errno()),
        }
    }
}

/// The type of ioctl(2).
pub type Ioctl = unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;

/// The process's ioctl: that of the first library, or of the program, that has one. The library
/// replaces ioctl as well, so a plain call would be bound to its own function when it is linked.
#[inline(always)]
pub fn ioctl() -> Ioctl {
    let address: *const c_void;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads the address that the dynamic linker has stored.
    unsafe {
        core::arch::asm!("mov {}, qword ptr [rip + ioctl@GOTPCREL]", out(reg) address,
            options(nostack, pure, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instructions read the address that the dynamic linker has stored.
    unsafe {
        core::arch::asm!("adrp {0}, :got:ioctl", "ldr {0}, [{0}, :got_lo12:ioctl]", out(reg) address,
            options(nostack, pure, readonly, preserves_flags));
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: the instructions read the address that the dynamic linker has stored.
    unsafe {
        core::arch::asm!("lga {}, ioctl", out(reg) address,
            options(nostack, pure, readonly, preserves_flags));
    }
    // SAFETY: the symbol is that of ioctl(2).
    unsafe { core::mem::transmute(address) }
}

/// The kernel itself, by the C library's functions.
pub struct Uverbs;

impl Kernel for Uverbs {
    #[inline]
    unsafe fn ioctl(&self, fd: i32, bundle: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno> {
        // No retry after EINTR: libibverbs does not retry, and a pinned region must not be made
        // twice.
        // SAFETY: the bundle and its addresses are valid by the contract of `Kernel::ioctl`; a bad
        // fd is only an error.
        match unsafe { ioctl()(fd, RDMA_VERBS_IOCTL, bundle) } {
            0 => Ok(()),
            _ => Err(errno::errno()),
        }
    }
}
