// SPDX-License-Identifier: MIT OR Apache-2.0
//! userfaultfd(2), as far as it reports changes of memory (include/uapi/linux/userfaultfd.h).
//!
//! Memory is registered for write protection and never protected: that raises no fault, and the kernel
//! reports when the memory is unmapped, moved or emptied. Never for missing pages: the kernel's own access
//! to a page that is not there, the pinning for a registration among it, would fail. Never for forks: that
//! needs a privilege, and the parent would wait for whoever reads the child's events.

use super::super::hull::Range;
use errno::{Errno, errno};

const UFFD_API: u64 = 0xaa;
const UFFD_USER_MODE_ONLY: i32 = 1;

const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const EVENTS: u64 = FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;

const REGISTER_MODE_WP: u64 = 1 << 1;

const fn ioc(direction: u64, number: u64, size: usize) -> libc::c_ulong {
    (direction << 30 | (size as u64) << 16 | 0xaa << 8 | number) as libc::c_ulong
}
const READ: u64 = 2;
const READ_WRITE: u64 = 3;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
const UFFDIO_API: libc::c_ulong = ioc(READ_WRITE, 0x3f, size_of::<Api>());

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}
const UFFDIO_REGISTER: libc::c_ulong = ioc(READ_WRITE, 0x00, size_of::<Register>());
const UFFDIO_UNREGISTER: libc::c_ulong = ioc(READ, 0x01, 16);

#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}
const UFFDIO_WRITEPROTECT: libc::c_ulong = ioc(READ_WRITE, 0x06, size_of::<WriteProtect>());
const _: () = assert!(UFFDIO_API == 0xc018_aa3f && UFFDIO_REGISTER == 0xc020_aa00);
const _: () = assert!(UFFDIO_UNREGISTER == 0x8010_aa01 && UFFDIO_WRITEPROTECT == 0xc018_aa06);

/// The kernel reports changes, but not of what is registered for write protection: x86-64 can do that from Linux 5.7
/// on, arm64 from 6.10 on.
pub const NO_WRITE_PROTECTION: Errno = Errno(libc::EOPNOTSUPP);

/// What the kernel reports.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    event: u64,
    arguments: [u64; 3],
}

/// A report, in words.
pub enum Report {
    /// Memory was unmapped.
    Unmapped(Range),
    /// Memory moves, and what was at its new place is gone.
    Moved(Range, Range),
    /// The pages are about to be dropped; that may happen after the report has been read.
    Dropping(Range),
    Other,
}

impl Message {
    /// What it says.
    pub fn report(&self) -> Report {
        let [first, second, third] = self.arguments;
        let range = Range {
            start: first,
            end: second,
        };
        match self.event as u8 {
            0x14 => {
                let moved = |start| Range {
                    start,
                    end: start + third,
                };
                Report::Moved(moved(first), moved(second))
            }
            0x15 => Report::Dropping(range),
            0x16 => Report::Unmapped(range),
            _ => Report::Other,
        }
    }
}

/// A file of userfaultfd.
#[derive(Clone, Copy)]
pub struct Userfaultfd(i32);

/// What the fence found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fence {
    /// No event is in flight.
    Passed,
    /// One is: the kernel has changed the address space, or is about to, and it has not been read.
    UnderWay,
    /// This is not our file any more.
    Lost,
}

impl Userfaultfd {
    /// Opens one. With it comes whether every kind of mapping can be registered: Linux 6.7, and only if that is
    /// wanted.
    ///
    /// To end the registration of a file's mapping is not safe: Linux 6.12 (seen with 6.12.117) runs into a BUG
    /// in `userfaultfd_unregister`, with the address space locked, where such a mapping becomes one with its
    /// neighbour on the way. A kernel that takes no files cannot get there.
    pub fn open(any: bool) -> Result<(Userfaultfd, bool), Errno> {
        let any_mapping = EVENTS | FEATURE_WP_ASYNC;
        let more_mappings = EVENTS | FEATURE_WP_HUGETLBFS_SHMEM;
        let wanted = [any_mapping, more_mappings, EVENTS];
        for &features in &wanted[usize::from(!any)..] {
            let fd = Self::open_file()?;
            let mut api = Api {
                api: UFFD_API,
                features,
                ioctls: 0,
            };
            // SAFETY: the structure is that of the call.
            let answer = unsafe { libc::ioctl(fd, UFFDIO_API, &raw mut api) };
            if answer == 0 && api.features & FEATURE_PAGEFAULT_FLAG_WP != 0 {
                return Ok((Userfaultfd(out_of_the_way(fd)), features == any_mapping));
            }
            let refused = match answer {
                0 => NO_WRITE_PROTECTION,
                _ => errno(),
            };
            // SAFETY: opened here.
            unsafe { libc::close(fd) };
            if features == EVENTS {
                return Err(refused);
            }
        }
        Err(Errno(libc::EINVAL))
    }

    fn open_file() -> Result<i32, Errno> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let open = |flags: i32| {
            // SAFETY: no pointers.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
            if fd >= 0 { Ok(fd as i32) } else { Err(errno()) }
        };
        match open(flags | UFFD_USER_MODE_ONLY) {
            // Before Linux 5.11.
            Err(Errno(libc::EINVAL)) => open(flags),
            result => result,
        }
    }

    /// The one of that number.
    pub fn of_fd(fd: i32) -> Userfaultfd {
        Userfaultfd(fd)
    }

    /// The file's number.
    pub fn fd(self) -> i32 {
        self.0
    }

    /// Has changes of these pages reported from now. A range with holes will do.
    pub fn register(self, range: Range) -> Result<(), Errno> {
        let mut register = Register {
            start: range.start,
            len: range.bytes(),
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: the structure is that of the call, which changes no memory of the process.
        let result =
            unsafe { libc::syscall(libc::SYS_ioctl, self.0, UFFDIO_REGISTER, &raw mut register) };
        if result == 0 { Ok(()) } else { Err(errno()) }
    }

    /// Ends that; false if part of the range cannot be registered at all.
    pub fn unregister(self, range: Range) -> bool {
        let mut range = [range.start, range.bytes()];
        let range = range.as_mut_ptr();
        // SAFETY: the structure is that of the call.
        unsafe { libc::syscall(libc::SYS_ioctl, self.0, UFFDIO_UNREGISTER, range) == 0 }
    }

    /// Asks whether an event is in flight. To protect a range of length 0 is refused in any case, but with
    /// EAGAIN if so (`userfaultfd_writeprotect`, fs/userfaultfd.c: `mmap_changing`).
    #[inline(always)]
    pub fn fence(self) -> Fence {
        let mut nothing = WriteProtect {
            start: 0,
            len: 0,
            mode: 0,
        };
        match ask(self.0, UFFDIO_WRITEPROTECT, &mut nothing) {
            libc::EINVAL => Fence::Passed,
            libc::EAGAIN => Fence::UnderWay,
            _ => Fence::Lost,
        }
    }

    /// Waits until there is something to read; false if that cannot be.
    pub fn wait(self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0,
            events: libc::POLLIN,
            revents: 0,
        };
        let no_limit = core::ptr::null::<libc::timespec>();
        let no_mask = core::ptr::null::<u64>();
        // SAFETY: one structure, which is writable.
        let ready =
            unsafe { libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, no_limit, no_mask, 8) };
        let broken = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        (ready >= 0 && poll.revents & broken == 0) || (ready < 0 && errno().0 == libc::EINTR)
    }

    /// Reads what there is, up to as much as fits, without waiting.
    pub fn read(self, messages: &mut [Message]) -> Result<usize, Errno> {
        let size = size_of_val(messages);
        // SAFETY: the messages are writable.
        let read = unsafe { libc::syscall(libc::SYS_read, self.0, messages.as_mut_ptr(), size) };
        match read {
            1.. => Ok(read as usize / size_of::<Message>()),
            0 => Err(Errno(libc::EBADF)),
            _ if errno().0 == libc::EAGAIN => Ok(0),
            _ => Err(errno()),
        }
    }

    /// Closes the file.
    pub fn close(self) {
        // SAFETY: ours.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// The ioctl of the fence, which is most of what a fenced hit costs: without errno and the C library's way there.
/// Returns the errno.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ask(fd: i32, request: libc::c_ulong, argument: &mut WriteProtect) -> i32 {
    let result: i64;
    // SAFETY: the system call's convention; the structure is that of the call, which writes nothing where it
    // is refused, as it always is.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_ioctl => result,
            in("rdi") i64::from(fd),
            in("rsi") request,
            in("rdx") &raw mut *argument,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    -result as i32
}

#[cfg(not(target_arch = "x86_64"))]
fn ask(fd: i32, request: libc::c_ulong, argument: &mut WriteProtect) -> i32 {
    let before = errno();
    // SAFETY: the structure is that of the call.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, &raw mut *argument) };
    let answer = errno();
    errno::set_errno(before);
    answer.0
}

/// Moves a file to a number that programs do not count on: some close or reuse the lowest ones by number.
fn out_of_the_way(fd: i32) -> i32 {
    const NUMBER: i32 = 900;
    // SAFETY: no pointers.
    let moved = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, NUMBER) };
    if moved < 0 {
        return fd;
    }
    // SAFETY: opened by the caller, and there is another for it now.
    unsafe { libc::close(fd) };
    moved
}
