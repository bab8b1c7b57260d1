// SPDX-License-Identifier: MIT OR Apache-2.0
//! The frames of Python of this thread: file, line and function.
//!
//! They are read where the interpreter keeps them, not asked for by its functions: those need the
//! interpreter's lock (the GIL), which a thread inside a C function often has given up, and which
//! this library must not wait for, since its owner may be waiting for a mutex that this thread
//! holds. Without that lock a thread's own frames stay as they are, since only the thread itself
//! changes them. Their layout does not change within a version of Python; [`LAYOUTS`] has those
//! that are known. The first walk checks each address, and that what should be code is of that
//! type. If it is not, no frame is read in this process.

use crate::sys::readable::Reader;
use crate::sys::symbols::{Scope, find};
use core::fmt::Write;
use core::num::NonZeroUsize;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The most frames; the outermost are left out.
const MOST: usize = 32;
/// The most characters of a name.
const LONGEST: u64 = 1024;
/// The most bytes of a table of lines.
const LARGEST: u64 = 1 << 16;

/// Where the fields lie in a version of Python, in bytes.
struct Layout {
    /// The version's first two numbers, as in `Py_Version`.
    version: u32,
    /// From the state of a thread to its frame: the fields that lead there.
    to_frame: &'static [u64],
    frame: Fields,
    code: CodeFields,
    /// From a string to its characters: if all are ASCII, and otherwise.
    ascii: u64,
    characters: u64,
}

struct Fields {
    code: u64,
    previous: u64,
    instruction: u64,
    /// The byte that says who owns the frame, and the values of frames that are none of Python.
    owner: u64,
    first_foreign_owner: u64,
}

struct CodeFields {
    first_line: u64,
    file: u64,
    name: u64,
    lines: u64,
    instructions: u64,
}

const LAYOUTS: &[Layout] = &[Layout {
    version: 0x030b,
    to_frame: &[56, 8],
    frame: Fields {
        code: 32,
        previous: 48,
        instruction: 56,
        owner: 69,
        first_foreign_owner: 3,
    },
    code: CodeFields {
        first_line: 72,
        file: 112,
        name: 128,
        lines: 136,
        instructions: 184,
    },
    ascii: 48,
    characters: 72,
}];

/// Fields of all objects: their type; of strings and bytes: their length, and the bytes.
const TYPE: u64 = 8;
const LENGTH: u64 = 16;
const STATE: u64 = 32;
const BYTES: u64 = 32;

/// The interpreter of this process.
pub struct Python {
    layout: &'static Layout,
    this_thread: extern "C" fn() -> usize,
    is_ending: extern "C" fn() -> i32,
    types: Types,
    trust: AtomicU8,
}

struct Types {
    code: u64,
    string: u64,
    bytes: u64,
}

/// Values of `Python::trust`.
const NOT_TRIED: u8 = 0;
const WORKS: u8 = 1;
const DOES_NOT: u8 = 2;

/// A frame: what tells it from any other, also if its code has been freed and other code has taken
/// its place.
#[derive(Clone, Copy)]
pub struct Frame {
    code: u64,
    instruction: u64,
    file: u64,
    name: u64,
    lines: u64,
}

impl Frame {
    pub fn words(&self) -> [u64; 5] {
        [
            self.code,
            self.instruction,
            self.file,
            self.name,
            self.lines,
        ]
    }
}

impl Python {
    /// Looks for the interpreter. Not where a fork or an interposed memory call can reach.
    pub fn find() -> Option<Python> {
        let symbol = |name| find(Scope::Program, name, None).map(NonZeroUsize::get);
        let version = with_exposed_provenance::<u32>(symbol(c"Py_Version")?);
        // SAFETY: `Py_Version` is a constant of this type since Python 3.11, and was none before.
        let version = unsafe { version.read() } >> 16;
        let layout = LAYOUTS.iter().find(|layout| layout.version == version)?;
        let this_thread = with_exposed_provenance::<()>(symbol(c"PyGILState_GetThisThreadState")?);
        let is_ending = with_exposed_provenance::<()>(symbol(c"_Py_IsFinalizing")?);
        Some(Python {
            layout,
            // SAFETY: the function takes nothing, returns a pointer, and needs no lock.
            this_thread: unsafe {
                core::mem::transmute::<*const (), extern "C" fn() -> usize>(this_thread)
            },
            // SAFETY: the function takes nothing, returns an int, and needs no lock.
            is_ending: unsafe {
                core::mem::transmute::<*const (), extern "C" fn() -> i32>(is_ending)
            },
            types: Types {
                code: symbol(c"PyCode_Type")? as u64,
                string: symbol(c"PyUnicode_Type")? as u64,
                bytes: symbol(c"PyBytes_Type")? as u64,
            },
            trust: AtomicU8::new(NOT_TRIED),
        })
    }

    /// Calls `see` with each frame of this thread, the innermost first.
    pub fn frames(&self, see: &mut dyn FnMut(Frame)) {
        let trust = self.trust.load(Relaxed);
        if trust == DOES_NOT || (self.is_ending)() != 0 {
            return;
        }
        let mut at = (self.this_thread)() as u64;
        if at == 0 {
            return;
        }
        let mut memory = match trust {
            // SAFETY: the first walk has found that these fields are where the layout says, and
            // what they point to is this thread's and stays while the thread is here.
            WORKS => unsafe { Reader::trusting() },
            _ => Reader::new(),
        };
        for &field in self.layout.to_frame {
            match memory.word(at + field) {
                Some(next) => at = next,
                None => return self.trust.store(DOES_NOT, Relaxed),
            }
        }
        for n in 0..MOST {
            if at == 0 {
                return;
            }
            let Some((frame, previous)) = self.read(&mut memory, at) else {
                return self.trust.store(DOES_NOT, Relaxed);
            };
            if let Some(frame) = frame {
                see(frame);
            }
            if n == 0 && trust == NOT_TRIED {
                self.trust.store(WORKS, Relaxed);
            }
            at = previous;
        }
    }

    /// A frame, unless it is none of Python's, and the address of the one outside of it.
    #[inline(always)]
    fn read(&self, memory: &mut Reader, at: u64) -> Option<(Option<Frame>, u64)> {
        let Layout { frame, code, .. } = self.layout;
        let previous = memory.word(at + frame.previous)?;
        let owner = memory.word((at + frame.owner) & !7)? >> (8 * (frame.owner % 8)) & 0xff;
        if owner >= frame.first_foreign_owner {
            return Some((None, previous));
        }
        let instruction = memory.word(at + frame.instruction)?;
        let of = memory.word(at + frame.code)?;
        (memory.word(of + TYPE)? == self.types.code).then_some(())?;
        let read = Frame {
            code: of,
            instruction,
            file: memory.word(of + code.file)?,
            name: memory.word(of + code.name)?,
            lines: memory.word(of + code.lines)?,
        };
        Some((Some(read), previous))
    }

    /// Adds the frame as a line of the trace: `LINE FUNCTION PATH`.
    pub fn line(&self, frame: &Frame, into: &mut String) {
        let mut memory = Reader::new();
        let line = self.line_number(&mut memory, frame).unwrap_or(0);
        let _ = write!(into, "{line} ");
        self.text(&mut memory, frame.name, '_', into);
        into.push(' ');
        self.text(&mut memory, frame.file, ' ', into);
        into.push('\n');
    }

    /// Adds a string, as far as it can be read, with something else for its blanks.
    #[inline(never)]
    fn text(&self, memory: &mut Reader, string: u64, blank: char, into: &mut String) -> Option<()> {
        (memory.word(string + TYPE)? == self.types.string).then_some(())?;
        let length = memory.word(string + LENGTH)?.min(LONGEST);
        let state = memory.word(string + STATE)?;
        let (size, compact, ascii) = (state >> 2 & 7, state >> 5 & 1, state >> 6 & 1);
        if compact == 0 || !matches!(size, 1 | 2 | 4) {
            return None;
        }
        let mut at = match ascii {
            1 => string + self.layout.ascii,
            _ => string + self.layout.characters,
        };
        for _ in 0..length {
            let word = memory.word(at & !7)? >> (8 * (at % 8));
            let number = word & (u64::MAX >> (64 - 8 * size));
            into.push(match char::from_u32(number as u32) {
                Some(' ') => blank,
                Some('\n' | '\r') => '?',
                other => other.unwrap_or(char::REPLACEMENT_CHARACTER),
            });
            at += size;
        }
        Some(())
    }

    #[inline(never)]
    fn line_number(&self, memory: &mut Reader, frame: &Frame) -> Option<i64> {
        let code = &self.layout.code;
        let first = memory.word(frame.code + code.first_line)? as i32;
        (memory.word(frame.lines + TYPE)? == self.types.bytes).then_some(())?;
        let length = memory.word(frame.lines + LENGTH)?.min(LARGEST);
        let at = frame.lines + BYTES;
        let mut table = Vec::with_capacity(length as usize);
        for at in at..at + length {
            table.push((memory.word(at & !7)? >> (8 * (at % 8))) as u8);
        }
        let offset = frame
            .instruction
            .checked_sub(frame.code + code.instructions)?;
        line_at(&table, first.into(), offset / 2)
    }
}

/// The line of an instruction, counted in units of two bytes, by the table of Python 3.11 and later:
/// CPython's Objects/locations.md.
fn line_at(table: &[u8], first: i64, unit: u64) -> Option<i64> {
    let mut bytes = table.iter().copied().peekable();
    let (mut line, mut end) = (first, 0);
    loop {
        let head = bytes.next()?;
        let kind = head >> 3 & 15;
        end += u64::from(head & 7) + 1;
        let signed = |bytes: &mut dyn Iterator<Item = u8>| {
            let mut number = 0u64;
            for shift in (0..60).step_by(6) {
                let byte = bytes.next()?;
                number |= u64::from(byte & 63) << shift;
                if byte & 64 == 0 {
                    break;
                }
            }
            let size = (number >> 1) as i64;
            Some(if number & 1 == 1 { -size } else { size })
        };
        line += match kind {
            13 | 14 => signed(&mut bytes)?,
            10..=12 => i64::from(kind) - 10,
            _ => 0,
        };
        if unit < end {
            return (kind != 15).then_some(line);
        }
        // The rest of the entry: only the first byte of an entry has the highest bit.
        while bytes.next_if(|byte| byte & 128 == 0).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_python_writes_them() {
        // Of two units on the first line, one without a line, one two lines below (kind 12), two
        // back by three lines (kind 13), one far below (kind 14).
        let table = [
            0x80 | 1,
            0x11,           //
            0x80 | 15 << 3, //
            0x80 | 12 << 3,
            1,
            2, //
            0x80 | 13 << 3 | 1,
            7, //
            0x80 | 14 << 3,
            64 | 8,
            3,
            0,
            1,
            1,
        ];
        let lines: Vec<_> = (0..8).map(|unit| line_at(&table, 10, unit)).collect();
        let expected = [
            Some(10),
            Some(10),
            None,
            Some(12),
            Some(9),
            Some(9),
            Some(109),
            None,
        ];
        assert_eq!(lines, expected);
    }
}
