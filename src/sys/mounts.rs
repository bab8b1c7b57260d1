// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file system that the kernel mounts for shared memory. It is mounted at no path, so only the
//! kernel names its files. A file's name proves nothing without its file system: a program can make
//! another one that is mounted at no path, and /proc/self/maps then shows the names that the program
//! has given to its files.
//!
//! memfd_create(2) makes a file on such a file system, and fstat(2) tells its numbers.

use super::descriptor::{Descriptor, identity};
use errno::{Errno, errno, set_errno};

/// The numbers of a file system, major and minor.
pub type Numbers = (u32, u32);

/// The numbers of the kernel's own file system of shared memory. `None` if they cannot be learnt.
pub fn shared_memory() -> Option<Numbers> {
    let before = errno();
    let made = of_new_file();
    set_errno(before);
    made.ok().map(numbers)
}

/// The device of a file that is made for this question.
fn of_new_file() -> Result<u64, Errno> {
    let flags = libc::MFD_CLOEXEC;
    // SAFETY: the name ends with a NUL.
    let made = unsafe { libc::syscall(libc::SYS_memfd_create, c"".as_ptr(), flags) };
    let file = Descriptor::made(made)?;
    identity(file.number()).map(|(device, _inode)| device)
}

fn numbers(device: u64) -> Numbers {
    (libc::major(device), libc::minor(device))
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
        assert_ne!(shared_memory(), Some(numbers(device)));
    }
}
