// SPDX-License-Identifier: MIT OR Apache-2.0
//! The facts about a descriptor of this process, and writing to one without harm to the program.

use super::signals::{self, Signals};
use core::ffi::{CStr, c_int, c_long};
use errno::{Errno, errno};
use libc::syscall;

/// A descriptor that this library has opened for itself, and closes. Its functions are system calls:
/// the caller may be a thread that the C library does not know, and other libraries replace open and
/// read.
pub struct Descriptor(c_int);

impl Descriptor {
    /// The result of a system call that makes a descriptor.
    pub fn made(result: c_long) -> Result<Descriptor, Errno> {
        match c_int::try_from(result) {
            Ok(fd) if fd >= 0 => Ok(Descriptor(fd)),
            _ => Err(errno()),
        }
    }

    /// openat(2), with O_CLOEXEC. `mode` is that of a new file.
    pub fn open(directory: c_int, path: &CStr, flags: c_int, mode: u32) -> Result<Self, Errno> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: the path ends with a NUL.
        Self::made(unsafe { syscall(libc::SYS_openat, directory, path.as_ptr(), flags, mode) })
    }

    pub fn number(&self) -> c_int {
        self.0
    }

    /// Reads bytes and returns how many; 0 at the end of the file.
    pub fn read(&self, to: &mut [u8]) -> Option<usize> {
        // SAFETY: `to` is writable.
        let read = unsafe { syscall(libc::SYS_read, self.0, to.as_mut_ptr(), to.len()) };
        usize::try_from(read).ok()
    }

    /// As `read`, from this place of the file on.
    pub fn read_at(&self, to: &mut [u8], place: u64) -> Option<usize> {
        let (at, length) = (to.as_mut_ptr(), to.len());
        // SAFETY: `to` is writable.
        let read = unsafe { syscall(libc::SYS_pread64, self.0, at, length, place) };
        usize::try_from(read).ok()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { syscall(libc::SYS_close, self.0) };
    }
}

/// Whether the process can open no file more (RLIMIT_NOFILE).
pub fn none_is_left() -> bool {
    // SAFETY: the call takes no pointers.
    let file = unsafe { syscall(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC) };
    Descriptor::made(file).is_err_and(|errno| errno.0 == libc::EMFILE)
}

/// The answer of fstat(2) about a file.
pub fn about(fd: i32) -> Result<libc::stat, Errno> {
    let mut about = core::mem::MaybeUninit::<libc::stat>::uninit();
    // The system call is made by its number: glibc before 2.33 does not export fstat.
    // SAFETY: `about` is a local structure that the call may write.
    if unsafe { libc::syscall(libc::SYS_fstat, fd, about.as_mut_ptr()) } != 0 {
        return Err(errno());
    }
    // SAFETY: fstat(2) succeeded, so it has filled the structure.
    Ok(unsafe { about.assume_init() })
}

/// The kind of the file system that has an open file.
pub fn file_system(fd: i32) -> Option<i64> {
    about_system(fd).map(|(kind, _)| kind)
}

/// The kind of the file system that has an open file, statfs(2), and its size in KiB if the process
/// can write no further block there.
#[inline(never)]
pub fn about_system(fd: i32) -> Option<(i64, Option<u64>)> {
    // SAFETY: zeros are a `statfs`, which consists of numbers.
    let mut system: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the structure is writable.
    let failed = unsafe { syscall(libc::SYS_fstatfs, fd, &raw mut system) } != 0;
    // A file system without a limit has 0 blocks.
    let is_full = system.f_blocks != 0 && system.f_bavail == 0;
    let kib = (system.f_blocks as u64).saturating_mul(system.f_bsize as u64) / 1024;
    (!failed).then_some((system.f_type as i64, is_full.then_some(kib)))
}

/// The device and the inode of a file.
pub fn identity(fd: i32) -> Result<(u64, u64), Errno> {
    about(fd).map(|about| (about.st_dev, about.st_ino))
}

/// The flags with which a file is open: O_APPEND and others. 0 if the descriptor is closed.
pub fn flags(fd: i32) -> i32 {
    // SAFETY: the call takes no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) };
    i32::try_from(flags).unwrap_or(0).max(0)
}

/// Writes bytes by one write(2), and returns how many were written. If a pipe has no reader any
/// more, or if a file is as long as RLIMIT_FSIZE allows, the call raises a signal that would end
/// the program: this function consumes that signal.
pub fn write(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    const PIPE: Signals = signals::only(libc::SIGPIPE);
    const LIMIT: Signals = signals::only(libc::SIGXFSZ);
    let blocked = signals::block_also(PIPE | LIMIT);
    // The program may have one pending already, which stays.
    let pending = signals::pending();
    // SAFETY: the bytes are readable.
    let written = unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) };
    let result = usize::try_from(written).map_err(|_| errno());
    let raised = match result {
        Err(Errno(libc::EPIPE)) => PIPE,
        Err(Errno(libc::EFBIG)) => LIMIT,
        _ => 0,
    } & !pending;
    if raised != 0 {
        signals::take(raised);
    }
    signals::restore(blocked);
    result
}

/// Writes bytes to a socket, or fails with EAGAIN if it is full.
pub fn send_at_once(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (at, length) = (bytes.as_ptr(), bytes.len());
    let (to, size) = (core::ptr::null::<libc::sockaddr>(), 0);
    // SAFETY: the bytes are readable, and the socket has its peer.
    let sent = unsafe { syscall(libc::SYS_sendto, fd, at, length, flags, to, size) };
    usize::try_from(sent).map_err(|_| errno())
}

/// Whether a write to the file does not wait now.
pub fn is_writable(fd: i32) -> bool {
    let mut about = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: a time of 0.
    let now: libc::timespec = unsafe { core::mem::zeroed() };
    let mask = core::ptr::null::<u64>();
    // SAFETY: the structures are local, and the call changes no mask.
    let ready = unsafe { syscall(libc::SYS_ppoll, &raw mut about, 1, &raw const now, mask, 8) };
    ready == 1
}
