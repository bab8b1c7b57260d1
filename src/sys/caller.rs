// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifies the caller: the return address of a call, and whether the caller's file links to the
//! function that it called.
//!
//! A program that takes `ibv_reg_mr` from libibverbs with dlsym (NCCL and brpc do) does not call
//! this library's function. But libibverbs' own `ibv_reg_mr` jumps through its PLT to
//! `ibv_reg_mr_iova2`, and so to this library's, which then returns to the program. Such a call
//! shows in one way: the caller's file does not link to that symbol.

use super::loaded_files;
use core::ffi::{CStr, c_char};
use core::ops::ControlFlow;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The return address of a call.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Caller(usize);

/// Cached answers, each with the address and the symbol of its question. If a file is unloaded and
/// another takes its place, an answer becomes wrong; the answers affect speed only, never
/// correctness.
static ANSWERS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

impl Caller {
    /// The address as a number.
    pub fn address(self) -> usize {
        self.0
    }

    /// Whether the caller's file imports the symbol, or contains this library.
    #[inline(always)]
    pub fn imports(self, symbol: &'static CStr) -> bool {
        // User addresses leave the top bit free. The address of the symbol's name tells symbols
        // apart.
        let question = (self.0 ^ symbol.as_ptr().addr().rotate_left(24)) << 1;
        let answer = &ANSWERS[(self.0 ^ (self.0 >> 6)) % ANSWERS.len()];
        let known = answer.load(Relaxed);
        if known & !1 == question {
            return known & 1 != 0;
        }
        let imports = self.look_up(symbol);
        answer.store(question | usize::from(imports), Relaxed);
        imports
    }

    #[cold]
    fn look_up(self, symbol: &CStr) -> bool {
        let ourselves = Self::look_up as *const () as u64;
        let mut imports = false;
        loaded_files::each(|file| {
            if !file.holds(self.0 as u64) {
                return ControlFlow::Continue(());
            }
            let dynamic = file.parts(libc::PT_DYNAMIC, 0).next();
            let tables = dynamic.map(|dynamic| SymbolTables::read(file.base(), dynamic.start));
            imports =
                file.holds(ourselves) || tables.is_some_and(|tables| tables.relocates(symbol));
            ControlFlow::Break(())
        });
        imports
    }
}

/// An entry of a file's dynamic section, `Elf64_Dyn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DynamicEntry {
    tag: i64,
    value: u64,
}

/// The parts of a dynamic section that list the symbols to which a loaded file refers.
#[derive(Default)]
struct SymbolTables {
    symbols: u64,
    names: u64,
    /// Start and size of the data relocations, then of the call relocations.
    relocations: [(u64, u64); 2],
}

impl SymbolTables {
    /// Reads the tables of a file that the linker has loaded at `base`, with the dynamic section at
    /// `dynamic`.
    fn read(base: u64, dynamic: u64) -> SymbolTables {
        const NULL: i64 = 0;
        const PLTRELSZ: i64 = 2;
        const STRTAB: i64 = 5;
        const SYMTAB: i64 = 6;
        const RELA: i64 = 7;
        const RELASZ: i64 = 8;
        const JMPREL: i64 = 23;
        let mut tables = SymbolTables::default();
        let mut at = with_exposed_provenance::<DynamicEntry>(dynamic as usize);
        loop {
            // SAFETY: the section ends with an entry of tag 0, and so does this loop.
            let entry = unsafe { *at };
            // glibc has relocated these addresses, except in a read-only section: there they are
            // still relative to the file.
            let address = if entry.value < base {
                base + entry.value
            } else {
                entry.value
            };
            match entry.tag {
                NULL => return tables,
                STRTAB => tables.names = address,
                SYMTAB => tables.symbols = address,
                RELA => tables.relocations[0].0 = address,
                RELASZ => tables.relocations[0].1 = entry.value,
                JMPREL => tables.relocations[1].0 = address,
                PLTRELSZ => tables.relocations[1].1 = entry.value,
                _ => {}
            }
            at = at.wrapping_add(1);
        }
    }

    /// Whether a relocation names the symbol.
    fn relocates(&self, symbol: &CStr) -> bool {
        /// `Elf64_Rela`, which all 64-bit architectures with RDMA use.
        #[repr(C)]
        struct Relocation {
            offset: u64,
            info: u64,
            addend: i64,
        }
        if self.symbols == 0 || self.names == 0 {
            return false;
        }
        self.relocations.iter().any(|&(start, size)| {
            let first = with_exposed_provenance::<Relocation>(start as usize);
            (0..size as usize / size_of::<Relocation>()).any(|n| {
                // SAFETY: the linker has applied this many relocations.
                let info = unsafe { (*first.wrapping_add(n)).info };
                let number = info >> 32;
                number != 0 && self.name(number) == symbol
            })
        })
    }

    /// The name of a symbol.
    fn name(&self, number: u64) -> &CStr {
        /// `Elf64_Sym`.
        #[repr(C)]
        struct Symbol {
            name: u32,
            kind: u8,
            other: u8,
            section: u16,
            value: u64,
            size: u64,
        }
        let symbols = with_exposed_provenance::<Symbol>(self.symbols as usize);
        // SAFETY: a relocation names the symbol, so the symbol is in the table.
        let name = unsafe { (*symbols.wrapping_add(number as usize)).name };
        let names = with_exposed_provenance::<c_char>(self.names as usize);
        // SAFETY: the string table holds NUL-terminated names.
        unsafe { CStr::from_ptr(names.wrapping_add(name as usize)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_linked_to_a_function_imports_it() {
        // The test program contains this code; another file does not.
        let here = Caller(who_is_linked_to_a_function_imports_it as *const () as usize);
        assert!(here.imports(c"ibv_reg_mr"));
        // SAFETY: RTLD_DEFAULT is always a valid handle, and the name ends with a NUL.
        let libc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"qsort".as_ptr()) };
        let libc = Caller(libc.addr());
        // glibc calls its own allocator through the PLT, so that another can replace it.
        for (symbol, imported) in [(c"malloc", true), (c"ibv_reg_mr", false), (c"malloc", true)] {
            assert_eq!(libc.imports(symbol), imported, "{symbol:?}");
        }
        assert!(!Caller(0).imports(c"malloc"));
    }
}
