// SPDX-License-Identifier: MIT OR Apache-2.0
//! Appending to a file that the user has named, without harm to the program, which does not know of
//! the file. All system calls go through syscall(), which the pool's own threads may use too.

use core::ffi::{CStr, c_int};
use core::ptr::null;
use errno::{Errno, errno};
use libc::{rlimit64, syscall};

/// Appends all bytes by one write(), so that the output of several processes does not mix. If the
/// file system has no room for all bytes, a part of them may be in the file.
pub fn append(path: &CStr, bytes: &[u8]) -> Result<(), Errno> {
    // O_NONBLOCK: a pipe without a reader must not block the program. O_NOCTTY: a terminal must not
    // become the program's controlling terminal.
    let flags = libc::O_WRONLY
        | libc::O_CREAT
        | libc::O_APPEND
        | libc::O_CLOEXEC
        | libc::O_NONBLOCK
        | libc::O_NOCTTY;
    // SAFETY: the path ends with a NUL.
    let fd = unsafe {
        syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            0o644,
        )
    } as c_int;
    if fd < 0 {
        return Err(errno());
    }
    let written = write(fd, bytes);
    // SAFETY: this function opened `fd`.
    unsafe { syscall(libc::SYS_close, fd) };
    written
}

fn write(fd: c_int, bytes: &[u8]) -> Result<(), Errno> {
    if !is_within_limit(fd, bytes.len()) {
        return Err(Errno(libc::EFBIG));
    }
    // SAFETY: the bytes are readable.
    let written = unsafe { syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) };
    match usize::try_from(written) {
        Err(_) => Err(errno()),
        Ok(written) if written < bytes.len() => Err(Errno(libc::ENOSPC)),
        Ok(_) => Ok(()),
    }
}

/// Whether RLIMIT_FSIZE allows the write: a write beyond the limit raises SIGXFSZ, which would kill
/// the program.
fn is_within_limit(fd: c_int, more: usize) -> bool {
    let mut limit = rlimit64 {
        rlim_cur: libc::RLIM64_INFINITY,
        rlim_max: libc::RLIM64_INFINITY,
    };
    // SAFETY: the limit is writable, and the call sets none.
    unsafe {
        syscall(
            libc::SYS_prlimit64,
            0,
            libc::RLIMIT_FSIZE,
            null::<rlimit64>(),
            &raw mut limit,
        )
    };
    if limit.rlim_cur == libc::RLIM64_INFINITY {
        return true;
    }
    // SAFETY: lseek takes no pointers.
    let size = unsafe { syscall(libc::SYS_lseek, fd, 0, libc::SEEK_END) };
    // A file without an end, such as a pipe, has no limit either.
    u64::try_from(size).is_ok_and(|size| size.saturating_add(more as u64) <= limit.rlim_cur)
        || size < 0
}
