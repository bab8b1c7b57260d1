// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines for people on standard error, as much as `RDMAMR_LOG` asks for.

use crate::text::Text;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// How much is said.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

static WANTED: AtomicU8 = AtomicU8::new(Level::Error as u8);

/// Has lines up to that level written from now.
pub fn set_level(level: Level) {
    WANTED.store(level as u8, Relaxed);
}

/// Whether a line of that level is wanted.
#[inline]
pub fn wants(level: Level) -> bool {
    level as u8 <= WANTED.load(Relaxed)
}

/// The longest line.
const LINE: usize = 1200;

/// Writes a line, if lines of its level are wanted.
pub fn line(level: Level, message: fmt::Arguments<'_>) {
    if wants(level) {
        always(message);
    }
}

/// Writes a line whatever `RDMAMR_LOG` says. One write() of a buffer on the stack: `eprintln!` would take
/// a lock, and panics where standard error cannot be written to.
pub fn always(message: fmt::Arguments<'_>) {
    let mut text = Text::<LINE>::new();
    let _ = text.write_str("rdmamr: ");
    let _ = text.write_fmt(message);
    let _ = text.write_str("\n");
    let bytes = text.as_bytes();
    let errno = errno::errno();
    // By number: a thread that the C library does not know may be here.
    // SAFETY: the buffer is readable. That the descriptor may be closed is no matter.
    unsafe {
        libc::syscall(
            libc::SYS_write,
            libc::STDERR_FILENO,
            bytes.as_ptr(),
            bytes.len(),
        )
    };
    errno::set_errno(errno);
}
