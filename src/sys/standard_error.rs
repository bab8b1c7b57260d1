// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing to standard error, without harm to a program that has done something else with it.
//!
//! The program may have closed descriptor 2, and another of its files may have the number since. So
//! bytes go only into the file that was standard error when the library was loaded, or into one to
//! which the program has sent its messages on purpose: a terminal, a file that is opened to append,
//! or one that another descriptor has too, as after dup2(2). All system calls go through syscall(),
//! which the cache's own threads may use too.

use super::descriptor::{self, Descriptor};
use super::thread::keep_errno;
use core::sync::atomic::{AtomicU64, Ordering::*};
use errno::Errno;

/// The device and the inode of standard error at the start: zeros if it was closed, [`UNSEEN`]
/// before the library has looked.
static AT_START: [AtomicU64; 2] = [const { AtomicU64::new(UNSEEN) }; 2];
const UNSEEN: u64 = u64::MAX;

/// Records the file of standard error. Called when the library is loaded, before any other thread
/// runs.
pub fn remember() {
    let (device, inode) = descriptor::identity(libc::STDERR_FILENO).unwrap_or((0, 0));
    AT_START[0].store(device, Relaxed);
    AT_START[1].store(inode, Relaxed);
}

/// Writes all bytes by one write(). Leaves errno as it is.
///
/// The error is EAGAIN if a pipe, a socket or a terminal is full: nothing here waits for a reader,
/// which may itself wait for the thread that calls this.
pub fn write(bytes: &[u8]) -> Result<(), Errno> {
    keep_errno(|| {
        if is_the_programs_own() {
            return Err(Errno(libc::EBADF));
        }
        write_at_once(bytes).map(drop)
    })
}

fn write_at_once(bytes: &[u8]) -> Result<usize, Errno> {
    const NUMBER: i32 = libc::STDERR_FILENO;
    match descriptor::about(NUMBER)?.st_mode & libc::S_IFMT {
        libc::S_IFSOCK => return descriptor::send_at_once(NUMBER, bytes),
        libc::S_IFIFO => {}
        libc::S_IFCHR if is_terminal() => {}
        _ => return descriptor::write(NUMBER, bytes),
    }
    // Opened anew, since O_NONBLOCK belongs to the open file, which is the program's. A write after
    // a poll(2) may still wait: another process may have filled the pipe meanwhile.
    let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let path = c"/proc/thread-self/fd/2";
    match Descriptor::open(libc::AT_FDCWD, path, flags, 0) {
        Ok(own) => descriptor::write(own.number(), bytes),
        // Without /proc, or if the file belongs to another user.
        Err(_) if descriptor::is_writable(NUMBER) => descriptor::write(NUMBER, bytes),
        Err(_) => Err(Errno(libc::EAGAIN)),
    }
}

/// Whether standard error is a terminal.
fn is_terminal() -> bool {
    // SAFETY: a structure of numbers.
    let mut settings: libc::termios2 = unsafe { core::mem::zeroed() };
    let (fd, request, to) = (libc::STDERR_FILENO, libc::TCGETS2, &raw mut settings);
    // SAFETY: the structure is writable, and of the size that this request has.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, to) == 0 }
}

/// The number of descriptors that are searched for another one of the same file.
const OTHERS: i32 = 64;

/// Whether descriptor 2 is closed, or is a file other than standard error.
fn is_the_programs_own() -> bool {
    let Ok(now) = descriptor::identity(libc::STDERR_FILENO) else {
        return true;
    };
    let start = (AT_START[0].load(Relaxed), AT_START[1].load(Relaxed));
    if [(UNSEEN, UNSEEN), now].contains(&start) {
        return false;
    }
    let flags = descriptor::flags(libc::STDERR_FILENO);
    // The two ends of a pipe are one file, with different flags.
    let same = |fd| descriptor::identity(fd) == Ok(now) && descriptor::flags(fd) == flags;
    let on_purpose = flags & libc::O_APPEND != 0
        || is_terminal()
        || (0..OTHERS).any(|fd| fd != libc::STDERR_FILENO && same(fd));
    !on_purpose
}
