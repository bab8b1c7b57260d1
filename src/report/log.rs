// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages for people on standard error. `RDMAMR_LOG` sets how many.

use super::text::Text;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// How important a line is. Each level includes the levels above it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

static WANTED: AtomicU8 = AtomicU8::new(Level::Error as u8);

/// From now on lines up to this level are written.
pub fn set_level(level: Level) {
    WANTED.store(level as u8, Relaxed);
}

/// Whether `RDMAMR_LOG` asks for lines of this level.
#[inline]
pub fn wants(level: Level) -> bool {
    level as u8 <= WANTED.load(Relaxed)
}

/// The length of the longest line, in bytes.
const LINE: usize = 1200;

/// Writes a line if `RDMAMR_LOG` asks for lines of its level.
pub fn line(level: Level, message: fmt::Arguments<'_>) {
    if wants(level) {
        always(message);
    }
}

/// Writes a line whatever `RDMAMR_LOG` says, by one write() of a buffer on the stack. `eprintln!`
/// would take a lock, and panics if standard error is not writable.
pub fn always(message: fmt::Arguments<'_>) {
    let mut text = Text::<LINE>::new();
    let _ = text.write_str("rdmamr: ");
    let _ = text.write_fmt(message);
    let _ = text.write_str("\n");
    let bytes = text.as_bytes();
    let errno = errno::errno();
    // The call goes by its number: the calling thread may be one that the C library does not know.
    // SAFETY: `bytes` is a readable slice of this length. If the descriptor is closed, the call
    // only fails.
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
