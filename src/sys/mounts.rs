// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file systems that the kernel mounts for itself: the one of shared memory, and one for each
//! size of huge pages. They are mounted at no path, so only the kernel names their files. A file's
//! name proves nothing without its file system: a program can make another one that is mounted at
//! no path, and /proc/self/maps then shows the names that the program has given to its files.
//!
//! memfd_create(2) makes a file on such a file system, and fstat(2) tells its numbers.

use super::descriptor::{Descriptor, identity};
use super::pages::page_size;
use core::sync::atomic::{AtomicU64, Ordering::*};
use errno::{Errno, errno, set_errno};

/// The numbers of a file system, major and minor.
pub type Numbers = (u32, u32);

/// Whether these are the numbers of the kernel's own file system of shared memory. The answer is no
/// if that cannot be learnt.
pub fn is_shared_memory((major, minor): Numbers) -> bool {
    of_new_file(0) == Ok(libc::makedev(major, minor))
}

/// Whether these are the numbers of a file system of the kernel's own, of huge pages of any size.
/// The answer is no if that cannot be learnt.
pub fn has_huge_pages((major, minor): Numbers) -> bool {
    /// The device that was found last. No device has this first number.
    static FOUND: AtomicU64 = AtomicU64::new(u64::MAX);
    let wanted = libc::makedev(major, minor);
    if FOUND.load(Relaxed) == wanted {
        return true;
    }
    let is_it = (page_size().ilog2() + 1..64)
        .any(|size| of_new_file(libc::MFD_HUGETLB | size << libc::MFD_HUGE_SHIFT) == Ok(wanted));
    if is_it {
        FOUND.store(wanted, Relaxed);
    }
    is_it
}

/// The device of a file that is made for this question. Leaves errno as it was.
fn of_new_file(flags: u32) -> Result<u64, Errno> {
    let before = errno();
    let flags = libc::MFD_CLOEXEC | flags;
    // SAFETY: the name ends with a NUL.
    let made = unsafe { libc::syscall(libc::SYS_memfd_create, c"".as_ptr(), flags) };
    let device = Descriptor::made(made).and_then(|file| identity(file.number()));
    set_errno(before);
    device.map(|(device, _inode)| device)
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_file_system_is_not_the_kernels_own() {
        let (device, _) = crate::descriptor::identity(std::os::fd::AsRawFd::as_raw_fd(
            &std::fs::File::open("/").unwrap(),
        ))
        .unwrap();
        let numbers = (libc::major(device), libc::minor(device));
        assert!(!has_huge_pages(numbers) && !is_shared_memory(numbers));
    }
}
