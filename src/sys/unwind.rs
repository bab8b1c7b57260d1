// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unwinds a frame: by the description of frames in the code's file (`.eh_frame`, `cfi.rs`), or by
//! the chain of frame pointers if there is no description.
//!
//! libgcc's unwinder does not serve: it trusts what it reads, may take locks, and decodes the
//! description of a function at each step. A [`Rule`] depends on the address alone, so a caller can
//! store it; with known rules a step is three loads. Only x86-64 is supported.

mod cfi;
mod rule;

pub use rule::Rule;

use super::loaded_files::LoadedFile;
use super::readable::Reader;
use core::ops::Range;
use rule::way;

/// The registers that the steps need.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    ip: u64,
    sp: u64,
    bp: u64,
    /// `ip` is the next instruction, not the return address of a call.
    exact: bool,
    /// A frame without a description has been left.
    off_chain: bool,
}

impl Registers {
    /// The registers of the function that calls this one.
    #[inline(always)]
    pub fn here() -> Registers {
        #[allow(unused_mut, unused_assignments, reason = "assembly sets them")]
        let (mut ip, mut sp, mut bp) = (0u64, 0u64, 0u64);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the instructions only read registers.
        unsafe {
            core::arch::asm!(
                "lea {ip}, [rip]",
                "mov {sp}, rsp",
                "mov {bp}, rbp",
                ip = out(reg) ip,
                sp = out(reg) sp,
                bp = out(reg) bp,
                options(nomem, nostack, preserves_flags)
            );
        }
        Registers {
            ip,
            sp,
            bp,
            exact: true,
            off_chain: false,
        }
    }

    /// The address to look the rule up for: a call lies before its return address, which may be
    /// the next function's.
    #[inline(always)]
    pub fn code(&self) -> u64 {
        self.ip.wrapping_sub(u64::from(!self.exact))
    }

    /// The address as a return address, also where there was no call.
    #[inline(always)]
    pub fn return_address(&self) -> u64 {
        self.code().wrapping_add(1)
    }

    /// The registers of the caller. `None` at the outermost frame, and if the frame cannot be
    /// unwound. `is_code` says whether an address is of a known file's code.
    #[inline(always)]
    pub fn step(
        self,
        rule: Rule,
        memory: &mut Reader,
        is_code: impl Fn(u64) -> bool,
    ) -> Option<Registers> {
        let way = rule.way();
        // Nearly all frames.
        let end = if way == way::BY_SP {
            self.sp.wrapping_add(rule.end())
        } else {
            match way {
                way::BY_BP => self.bp.wrapping_add(rule.end()),
                way::ALIGNED => memory.word(self.bp.wrapping_add(rule.end()))?,
                way::SIGNAL => return self.leave_handler(memory),
                way::POINTERS => return self.follow_pointers(memory, is_code),
                _ => return None,
            }
        };
        // A caller's frame lies above its callee's.
        if end <= self.sp {
            return None;
        }
        let ip = memory.word(end.wrapping_sub(8))?;
        let bp = match rule.bp() {
            0 => self.bp,
            Rule::LOST => 0,
            _ if way == way::ALIGNED => memory.word(self.bp)?,
            offset => memory.word(end.wrapping_add_signed(offset))?,
        };
        (ip != 0).then_some(Registers {
            ip,
            sp: end,
            bp,
            exact: false,
            ..self
        })
    }

    /// The kernel's `struct ucontext` is at the stack pointer.
    #[cold]
    fn leave_handler(self, memory: &mut Reader) -> Option<Registers> {
        const BP: u64 = 120;
        const SP: u64 = 160;
        const IP: u64 = 168;
        let context = self.sp;
        Some(Registers {
            ip: memory.word(context.checked_add(IP)?)?,
            sp: memory.word(context.checked_add(SP)?)?,
            bp: memory.word(context.checked_add(BP)?)?,
            exact: true,
            ..self
        })
    }

    /// The frame pointer points to the caller's frame pointer, with the return address behind it.
    /// If another stack made the call, as in Go, the chain leads to that stack once; after that it
    /// must go up.
    #[cold]
    fn follow_pointers(
        self,
        memory: &mut Reader,
        is_code: impl Fn(u64) -> bool,
    ) -> Option<Registers> {
        let frame = self.bp;
        if self.off_chain && frame < self.sp {
            return None;
        }
        let bp = memory.word(frame)?;
        let ip = memory.word(frame.checked_add(8)?)?;
        is_code(ip).then_some(Registers {
            ip,
            sp: frame.checked_add(16)?,
            bp,
            exact: false,
            off_chain: true,
        })
    }
}

/// The code of a loaded file, and the description of its frames.
pub struct FileCode {
    /// Its instructions.
    code: Vec<Range<u64>>,
    /// The table of functions, `.eh_frame_hdr`, and the mapping around it.
    table: Option<(Range<u64>, Range<u64>)>,
}

impl FileCode {
    /// The code of a file that the linker has loaded.
    pub fn of(file: &LoadedFile) -> FileCode {
        let table = file.parts(libc::PT_GNU_EH_FRAME, libc::PF_R).next();
        let around = |table: Range<u64>| {
            let mut parts = file.parts(libc::PT_LOAD, libc::PF_R);
            let whole = parts.find(|part| part.start <= table.start && table.end <= part.end)?;
            Some((table, whole))
        };
        FileCode {
            code: file.parts(libc::PT_LOAD, libc::PF_X).collect(),
            table: table.and_then(around),
        }
    }

    /// Whether an address is one of an instruction of the file.
    pub fn has(&self, address: u64) -> bool {
        self.code.iter().any(|code| code.contains(&address))
    }

    /// The rule for an address of the file. `None` if its description is one that this library
    /// does not understand.
    pub fn rule(&self, address: u64) -> Option<Rule> {
        let Some((table, whole)) = &self.table else {
            return Some(Rule::POINTERS);
        };
        // SAFETY: the linker has mapped these bytes readable, and a file that has a frame on the
        // stack is not unloaded.
        let bytes = unsafe {
            let start = core::ptr::with_exposed_provenance::<u8>(whole.start as usize);
            core::slice::from_raw_parts(start, (whole.end - whole.start) as usize)
        };
        cfi::rule(bytes, whole.start, table, address)
    }
}

#[cfg(test)]
mod tests;
