// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages for people on standard error. `RDMAMR_LOG` sets how many.

use super::text::Text;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*};
use errno::Errno;
use rdmamr_live_page::controls;
use rdmamr_sys::standard_error;

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
    set(&mut text, message);
    tell_of_dropped();
    if standard_error::write(text.as_bytes()) == Err(FULL) {
        DROPPED.fetch_add(1, Relaxed);
    }
}

/// As [`always`], the first time alone: `said` is the caller's, for this line.
#[cold]
pub fn once(said: &AtomicBool, message: fmt::Arguments<'_>) {
    if !said.swap(true, Relaxed) {
        always(message);
    }
}

/// The lines that were not written, since standard error was full, and of which no line tells yet.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Tells how many lines were dropped, if standard error has room again.
fn tell_of_dropped() {
    let dropped = DROPPED.swap(0, Relaxed);
    if dropped == 0 {
        return;
    }
    let mut text = Text::<96>::new();
    let _ = writeln!(
        text,
        "rdmamr: {dropped} lines were dropped: standard error was full"
    );
    if standard_error::write(text.as_bytes()) == Err(FULL) {
        DROPPED.fetch_add(dropped, Relaxed);
    }
}

const FULL: Errno = Errno(libc::EAGAIN);

fn set(text: &mut Text<LINE>, message: fmt::Arguments<'_>) {
    text.clear();
    let _ = text.write_str("rdmamr: ");
    let _ = Printable(text).write_fmt(message);
    let _ = text.write_str("\n");
}

/// Text without characters that control a terminal or turn the text around them. A line quotes
/// names and values that the program's environment and other files give.
struct Printable<'a>(&'a mut Text<LINE>);

impl fmt::Write for Printable<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let shown = |c| if controls(c) { '\u{fffd}' } else { c };
        text.chars().try_for_each(|c| self.0.write_char(shown(c)))
    }
}

/// A line that was not written yet.
struct Waiting {
    state: AtomicU8,
    text: UnsafeCell<Text<LINE>>,
}

const EMPTY: u8 = 0;
/// One thread has the text.
const TAKEN: u8 = 1;
const WAITS: u8 = 2;

// SAFETY: only the thread whose compare-and-swap has made the state TAKEN touches the text.
unsafe impl Sync for Waiting {}

impl Waiting {
    const fn new() -> Waiting {
        Waiting {
            state: AtomicU8::new(EMPTY),
            text: UnsafeCell::new(Text::new()),
        }
    }

    /// Takes the text in one state, and leaves it in the state that `each` returns. False if it is
    /// not in that state.
    fn take(&self, from: u8, each: impl FnOnce(&mut Text<LINE>) -> u8) -> bool {
        let taken = self.state.compare_exchange(from, TAKEN, Acquire, Relaxed);
        if taken.is_ok() {
            // SAFETY: this thread has made the state TAKEN.
            let next = each(unsafe { &mut *self.text.get() });
            self.state.store(next, Release);
        }
        taken.is_ok()
    }
}

/// The lines that can wait at a time: one that says that regions are not reused any more, and one about
/// the descriptor of userfaultfd.
static WAITING: [Waiting; 2] = [const { Waiting::new() }; 2];

/// Writes a line for a caller with little stack: a hit, a memory call of the program, a thread of
/// the cache. A process has few of these lines, so they are not dropped if standard error is full:
/// the next call of [`write_waiting`] tries again.
pub fn soon(message: fmt::Arguments<'_>) {
    let fill = |text: &mut Text<LINE>| {
        set(text, message);
        WAITS
    };
    if !WAITING.iter().any(|waiting| waiting.take(EMPTY, fill)) {
        DROPPED.fetch_add(1, Relaxed);
    }
    write_waiting();
}

/// Writes the lines that wait.
pub fn write_waiting() {
    for waiting in &WAITING {
        if waiting.state.load(Relaxed) == WAITS {
            waiting.take(WAITS, |text| match standard_error::write(text.as_bytes()) {
                // The reader has a table of its own, without standard error.
                Err(FULL | Errno(libc::EBADF)) => WAITS,
                _ => EMPTY,
            });
        }
    }
}

/// Writes what was not written, as far as standard error takes it.
pub fn exiting() {
    write_waiting();
    tell_of_dropped();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_controls_no_terminal() {
        let mut text = Text::new();
        set(
            &mut text,
            format_args!("a{}b", "\x1b[31m\n\n\u{202e}c\u{85}"),
        );
        let shown = "rdmamr: a\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}c\u{fffd}b\n";
        assert_eq!(text.as_bytes(), shown.as_bytes());
    }
}
