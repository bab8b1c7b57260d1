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

/// The numbers of the kernel's own file system of shared memory. `None` if they cannot be learnt.
pub fn shared_memory() -> Option<Numbers> {
    let before = errno();
    let made = of_new_file(0);
    set_errno(before);
    made.ok().map(numbers)
}

/// Whether these are the numbers of a file system of the kernel's own, of huge pages of any size.
/// The answer is no if that cannot be learnt.
pub fn has_huge_pages(of: Numbers) -> bool {
    HUGE_PAGES.has(of, of_huge_pages)
}

/// How many sizes of a page there may be: 2^0 to 2^63 bytes.
const SIZES: usize = 64;

/// The device of the file system for each size, or one of the two values below.
struct Learnt([AtomicU64; SIZES]);

const UNKNOWN: u64 = 0;
/// The kernel has no pages of this size.
const NONE: u64 = u64::MAX;

static HUGE_PAGES: Learnt = Learnt([const { AtomicU64::new(UNKNOWN) }; SIZES]);

impl Learnt {
    /// Whether one of these file systems has these numbers. `ask` returns the device of the file
    /// system of a size, and is called again until it has an answer.
    fn has(&self, of: Numbers, ask: impl Fn(u32) -> Result<u64, Errno>) -> bool {
        let is_it = |known: u64| known != UNKNOWN && known != NONE && numbers(known) == of;
        if self.0.iter().any(|known| is_it(known.load(Relaxed))) {
            return true;
        }
        let mut found = false;
        for size in page_size().ilog2() + 1..SIZES as u32 {
            let known = &self.0[size as usize];
            if known.load(Relaxed) != UNKNOWN {
                continue;
            }
            match ask(size) {
                Ok(device) => known.store(device, Relaxed),
                Err(Errno(libc::ENODEV | libc::EINVAL)) => known.store(NONE, Relaxed),
                // A resource is short, or refused to this thread.
                Err(_) => {}
            }
            found |= is_it(known.load(Relaxed));
        }
        found
    }
}

fn of_huge_pages(size: u32) -> Result<u64, Errno> {
    let before = errno();
    let made = of_new_file(libc::MFD_HUGETLB | size << libc::MFD_HUGE_SHIFT);
    set_errno(before);
    made
}

/// The device of a file that is made for this question.
fn of_new_file(flags: u32) -> Result<u64, Errno> {
    let flags = libc::MFD_CLOEXEC | flags;
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
    use core::cell::RefCell;

    #[test]
    fn what_cannot_be_learnt_is_asked_again() {
        let learnt = Learnt([const { AtomicU64::new(UNKNOWN) }; SIZES]);
        let asked = RefCell::new(Vec::new());
        let short = RefCell::new(true);
        let ask = |size| {
            asked.borrow_mut().push(size);
            match size {
                21 if *short.borrow() => Err(Errno(libc::EMFILE)),
                21 => Ok(libc::makedev(0, 17)),
                30 => Ok(libc::makedev(0, 18)),
                _ => Err(Errno(libc::ENODEV)),
            }
        };
        assert!(!learnt.has((0, 17), ask));
        assert!(learnt.has((0, 18), ask));
        asked.borrow_mut().clear();
        assert!(!learnt.has((0, 17), ask));
        short.replace(false);
        assert!(learnt.has((0, 17), ask));
        assert!(!learnt.has((0, 0), ask) && !learnt.has((0, 19), ask));
        assert_eq!(*asked.borrow(), [21, 21]);
    }

    #[test]
    fn a_mounted_file_system_is_not_the_kernels_own() {
        let (device, _) = crate::descriptor::identity(std::os::fd::AsRawFd::as_raw_fd(
            &std::fs::File::open("/").unwrap(),
        ))
        .unwrap();
        assert!(!has_huge_pages(numbers(device)));
        assert_ne!(shared_memory(), Some(numbers(device)));
    }
}
