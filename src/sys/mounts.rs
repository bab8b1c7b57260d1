// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file system that the kernel mounts for shared memory. It is mounted at no path, so only the
//! kernel names its files. A file's name proves nothing without its file system: a program can make
//! another one that is mounted at no path, and /proc/self/maps then shows the names that the program
//! has given to its files.
//!
//! memfd_create(2) makes a file on such a file system, and fstat(2) tells its numbers.

use super::descriptor::{Descriptor, identity};
use super::thread::keep_errno;

/// The numbers of a file system, major and minor.
pub type Numbers = (u32, u32);

/// Whether these are the numbers of the kernel's own file system of shared memory. The answer is no
/// if that cannot be learnt. Leaves errno as it was.
pub fn is_shared_memory((major, minor): Numbers) -> bool {
    let device = keep_errno(|| {
        let (name, flags) = (c"".as_ptr(), libc::MFD_CLOEXEC);
        // SAFETY: the name ends with a NUL.
        let made = unsafe { libc::syscall(libc::SYS_memfd_create, name, flags) };
        Descriptor::made(made).and_then(|file| identity(file.number()))
    });
    device.is_ok_and(|(device, _inode)| device == libc::makedev(major, minor))
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
        assert!(!is_shared_memory(numbers));
    }
}
