// SPDX-License-Identifier: MIT OR Apache-2.0
//! The frames of Python of this thread: file, line and function, as CPython's own dump of a stack
//! writes them, which its module faulthandler uses.
//!
//! The dump takes no lock, the interpreter's (the GIL) included, and allocates nothing. So it also
//! serves a thread that has released the GIL: only the thread itself changes its frames. CPython
//! 3.6 to 3.8, 3.11 and 3.12 export the function, and versions after 3.14 do so under another name;
//! 3.9, 3.10, 3.13 and 3.14 do not export it. It makes some ten writes to a descriptor for each
//! frame.

use core::ffi::c_int;
use core::fmt::Write;
use core::num::NonZeroUsize;
use core::sync::atomic::AtomicBool;
use libc::syscall;
use rdmamr_stats::log::{self, Level};
use rdmamr_sys::loaded_files::Object;
use rdmamr_sys::thread;

/// The most frames; the outermost are left out.
const MOST: usize = 32;
/// The bytes of the text that are read: with usual names they hold more than `MOST` frames.
const TEXT: usize = 16 << 10;

/// The interpreter of this process.
#[derive(Clone)]
pub struct Python {
    this_thread: unsafe extern "C" fn() -> usize,
    is_ending: unsafe extern "C" fn() -> c_int,
    dump: unsafe extern "C" fn(c_int, usize),
}

impl Python {
    /// The interpreter, if the file has it.
    pub fn of(file: &Object) -> Option<Python> {
        // SAFETY: it takes nothing and returns a pointer, here a number.
        let this_thread = unsafe { file.function(c"PyGILState_GetThisThreadState") }?;
        let mut either = [c"Py_IsFinalizing", c"_Py_IsFinalizing"].into_iter();
        // SAFETY: both names' functions take nothing and return an int.
        let is_ending = either.find_map(|name| unsafe { file.function(name) })?;
        let mut either = [c"PyUnstable_DumpTraceback", c"_Py_DumpTraceback"].into_iter();
        // SAFETY: both names' functions take a descriptor and that pointer, and return nothing.
        let dump = either.find_map(|name| unsafe { file.function(name) });
        static SAID: AtomicBool = AtomicBool::new(false);
        if dump.is_none() && log::wants(Level::Warn) {
            log::once(
                &SAID,
                format_args!(
                    "RDMAMR_TRACE: call stacks have no frames of Python: this version does not export its dump of a \
                     stack (3.9, 3.10, 3.13 and 3.14 do not)"
                ),
            );
        }
        Some(Python {
            this_thread,
            is_ending,
            dump: dump?,
        })
    }

    /// The state that the interpreter has of this thread, if any.
    #[inline(always)]
    pub fn thread(&self) -> Option<NonZeroUsize> {
        // SAFETY: the function takes nothing and needs no lock.
        if unsafe { (self.is_ending)() } != 0 {
            return None;
        }
        // SAFETY: as above.
        NonZeroUsize::new(unsafe { (self.this_thread)() })
    }

    /// The frames of the thread of this state, the calling one, the innermost first, as lines of the
    /// trace: `LINE FUNCTION PATH`. Empty if there is no descriptor left.
    ///
    /// The pipe exists for this call alone, like the descriptor of `sys/append.rs`: a program may
    /// close a descriptor that the library holds open. The pipe does not block: CPython omits text
    /// that finds it full.
    pub fn lines(&self, state: NonZeroUsize) -> String {
        let mut lines = String::new();
        let mut pipe: [c_int; 2] = [-1; 2];
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the array has room for both descriptors.
        if unsafe { syscall(libc::SYS_pipe2, pipe.as_mut_ptr(), flags) } != 0 {
            return lines;
        }
        let [from, to] = pipe;
        let mut text = vec![0; TEXT];
        {
            // write(2), by which the dump writes, is a cancellation point.
            let _uncancelled = thread::uncancelled();
            // SAFETY: the state is this thread's, so no other thread ends it, and the interpreter is
            // not ending. The descriptor was just opened here.
            unsafe { (self.dump)(to, state.get()) };
        }
        // SAFETY: the call takes no pointer.
        let room = unsafe { syscall(libc::SYS_fcntl, from, libc::F_GETPIPE_SZ) };
        // SAFETY: the buffer has room for as many bytes.
        let length = unsafe { syscall(libc::SYS_read, from, text.as_mut_ptr(), TEXT) };
        for fd in pipe {
            // SAFETY: this function opened it, and no other code uses it.
            unsafe { syscall(libc::SYS_close, fd) };
        }
        // Only half of the pipe is used: up to there no write of at most 500 bytes has found it
        // full.
        let whole = length.min(room / 2).max(0) as usize;
        let Ok(text) = core::str::from_utf8(&text[..whole]) else {
            return lines;
        };
        let complete = text
            .split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n'));
        let added = complete.filter_map(|frame| add_frame(frame, &mut lines));
        added.take(MOST).count();
        lines
    }
}

/// Adds a frame of the dump, `  File "PATH", line LINE in FUNCTION`, as a line of the trace. The
/// line is `???` if there is none. `None` for other text.
fn add_frame(text: &str, into: &mut String) -> Option<()> {
    let text = text.strip_prefix("  File \"")?;
    // The last quote, because a path may contain one.
    let quote = text.rfind('"')?;
    let (line, function) = text[quote..].strip_prefix("\", line ")?.split_once(' ')?;
    let (path, function) = (&text[..quote], function.strip_prefix("in ")?);
    let _ = write!(into, "{} ", line.parse().unwrap_or(0u32));
    unescape(function, '_', into);
    into.push(' ');
    unescape(path, ' ', into);
    into.push('\n');
    Some(())
}

/// Adds a name of the dump, in which characters beyond ASCII are `\xNN`, `\uNNNN` or `\UNNNNNNNN`.
/// In the result each space is `blank`, and a line break is `?`.
fn unescape(name: &str, blank: char, into: &mut String) {
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let digits = match rest.as_bytes() {
            [b'\\', b'x', ..] => 2,
            [b'\\', b'u', ..] => 4,
            [b'\\', b'U', ..] => 8,
            _ => 0,
        };
        let number = rest.get(2..2 + digits).filter(|_| digits > 0);
        let number = number.and_then(|number| u32::from_str_radix(number, 16).ok());
        let escaped = number.map(|it| char::from_u32(it).unwrap_or(char::REPLACEMENT_CHARACTER));
        into.push(match escaped.unwrap_or(c) {
            ' ' => blank,
            '\n' | '\r' => '?',
            other => other,
        });
        rest = &rest[escaped.map_or(c.len_utf8(), |_| 2 + digits)..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Option<String> {
        let mut line = String::new();
        add_frame(text, &mut line).map(|()| line)
    }

    #[test]
    fn frames_are_read_as_python_writes_them() {
        let same = |text, expected: &str| assert_eq!(line(text).as_deref(), Some(expected));
        same(
            "  File \"/a b/c.py\", line 12 in send",
            "12 send /a b/c.py\n",
        );
        same("  File \"a\", line ??? in <module>", "0 <module> a\n");
        same(
            "  File \"a\", line 3 in gr\\xf6\\xdfe\\u20ac",
            "3 größe€ a\n",
        );
        same(
            "  File \"\\U0001f600\\x0a\", line 3 in two words",
            "3 two_words 😀?\n",
        );
        same("  File \"a\\xg\\u12\", line 3 in \\", "3 \\ a\\xg\\u12\n");
        same("  File \"a\\ud800\", line 3 in f", "3 f a\u{fffd}\n");
        for other in [
            "Stack (most recent call first):",
            "  ...",
            "  File ???, line 3 in f",
        ] {
            assert_eq!(line(other), None);
        }
    }
}
