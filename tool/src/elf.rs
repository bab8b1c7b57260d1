// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of an ELF file that decide whether a library can be preloaded.

use crate::files::named::read_any;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The processor and the word size that code is for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Machine {
    is_64: bool,
    big_endian: bool,
    number: u16,
}

/// An ELF file.
#[derive(Default, Debug)]
pub struct Elf {
    pub machine: Machine,
    /// PT_INTERP: the program that loads the program and its libraries.
    pub interpreter: Option<PathBuf>,
    /// The file is marked as a position-independent program, which tells it from a shared library.
    pub is_program: bool,
    /// The file is a shared library or a position-independent program.
    pub is_dynamic: bool,
    /// DT_SONAME: the name by which programs need the library; empty if it has none.
    pub soname: Vec<u8>,
}

impl Elf {
    /// Reads a file; `None` if it is not an ELF file. Reads the headers and the dynamic section, each
    /// in one piece: a program may have 75 000 symbols.
    pub fn read(path: &Path) -> anyhow::Result<Option<Elf>> {
        let cache = ReadCache::new(read_any(path)?);
        let ident = cache.read_bytes_at(0, 5).unwrap_or_default();
        if !ident.starts_with(&elf::ELFMAG) {
            return Ok(None);
        }
        Ok(Some(match ident[4] {
            elf::ELFCLASS64 => parse::<FileHeader64<Endianness>>(&cache)?,
            _ => parse::<FileHeader32<Endianness>>(&cache)?,
        }))
    }
}

fn parse<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>) -> object::Result<Elf> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let mut found = Elf {
        machine: Machine {
            is_64: header.is_class_64(),
            big_endian: header.is_big_endian(),
            number: header.e_machine(endian),
        },
        is_dynamic: header.e_type(endian) == elf::ET_DYN,
        ..Elf::default()
    };
    let segments = header.program_headers(endian, data)?;
    let (mut soname, mut strings) = (None, None);
    for segment in segments {
        if let Some(interpreter) = segment.interpreter(endian, data)? {
            found.interpreter = Some(String::from_utf8_lossy(interpreter).into_owned().into());
        }
        for entry in segment.dynamic(endian, data)?.into_iter().flatten() {
            let value: u64 = entry.val(endian);
            match entry.tag(endian) {
                elf::DT_FLAGS_1 => found.is_program |= value & u64::from(elf::DF_1_PIE) != 0,
                elf::DT_SONAME => soname = Some(value),
                elf::DT_STRTAB => strings = Some(value),
                _ => {}
            }
        }
    }
    if let (Some(soname), Some(strings)) = (soname, strings) {
        let address = u64::wrapping_add(soname, strings);
        let name = segments.iter().find_map(|segment| {
            let (offset, size) = segment.file_range(endian);
            let loaded = segment.p_type(endian) == elf::PT_LOAD;
            let within = address.checked_sub(segment.p_vaddr(endian).into());
            let from = offset.checked_add(within.filter(|&within| loaded && within < size)?)?;
            data.read_bytes_at_until(from..offset.checked_add(size)?, 0)
                .ok()
        });
        found.soname = name.unwrap_or_default().to_vec();
    }
    Ok(found)
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.number {
            3 => "x86",
            40 | 183 => "ARM",
            62 => "x86-64",
            243 => "RISC-V",
            number => return write!(f, "ELF machine number {number}"),
        };
        let bits = if self.is_64 { 64 } else { 32 };
        write!(f, "{name}, {bits} bit")?;
        f.write_str(if self.big_endian { ", big-endian" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_elf() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // Any small program: the headers are what is read first.
        let whole = std::fs::read("/bin/true").unwrap();
        let samples: [&[u8]; 2] = [&whole, &whole[..whole.len().min(1024)]];
        crate::fuzz_inputs::each("fuzz_elf", 200, &samples, |input, random| {
            let mut input = input.to_vec();
            // Most changes go to the headers.
            for _ in 0..random.below(8) {
                let at = random.below(1024.min(input.len()));
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
            std::fs::write(&path, &input).unwrap();
            let _ = Elf::read(&path);
        });
    }
}
