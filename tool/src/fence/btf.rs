// SPDX-License-Identifier: MIT OR Apache-2.0
//! BTF, the kernel's description of its own types and functions: where a field lies, and what a
//! function takes. It is no reader of all of BTF: it finds what the programs need. The crate
//! aya-obj reads BTF too, but looks up no fields, and would bring more code than this file has.
//!
//! The format: <https://docs.kernel.org/bpf/btf.html>. A read past the end is a `None`.

use anyhow::{Context, Result};

/// The kinds of entries that are looked up by their names.
pub const STRUCT: u32 = 4;
pub const TYPEDEF: u32 = 8;
pub const FUNCTION: u32 = 12;
pub const VARIABLE: u32 = 14;

const POINTER: u32 = 2;
const UNION: u32 = 5;
const PROTOTYPE: u32 = 13;

pub const PATH: &str = "/sys/kernel/btf/vmlinux";

/// The running kernel's BTF.
pub struct Btf {
    bytes: Vec<u8>,
    /// Where each entry begins. Entry 0 is "void", and has no place.
    entries: Vec<usize>,
    /// Where the names begin.
    names: usize,
}

impl Btf {
    pub fn of_kernel() -> Result<Btf> {
        let bytes = std::fs::read(PATH).with_context(|| {
            format!("{PATH}: the kernel must describe its types there (CONFIG_DEBUG_INFO_BTF)")
        })?;
        Btf::parse(bytes).with_context(|| format!("{PATH} has a form that is not known"))
    }

    fn parse(bytes: Vec<u8>) -> Option<Btf> {
        let mut btf = Btf {
            bytes,
            entries: vec![0],
            names: 0,
        };
        let magic_and_version = btf.word(0)? & 0x00ff_ffff;
        let header = btf.word(4)? as usize;
        let mut at = header + btf.word(8)? as usize;
        let end = at + btf.word(12)? as usize;
        btf.names = header + btf.word(16)? as usize;
        while at < end {
            btf.entries.push(at);
            let (kind, count) = btf.info(at)?;
            at += 12
                + match kind {
                    1 | VARIABLE | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => 12 * count,
                    6 | PROTOTYPE => 8 * count,
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return None,
                };
        }
        (magic_and_version == 0x0001_eb9f && end <= btf.bytes.len()).then_some(btf)
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// The kind of an entry, and how many members or parameters it has.
    fn info(&self, at: usize) -> Option<(u32, usize)> {
        let info = self.word(at + 4)?;
        Some((info >> 24 & 31, info as usize & 0xffff))
    }

    fn is_called(&self, at: usize, name: &str) -> Option<bool> {
        let rest = self.bytes.get(self.names + self.word(at)? as usize..)?;
        Some(rest.strip_prefix(name.as_bytes())?.first() == Some(&0))
    }

    /// The place of a type, less qualifiers and tags.
    fn bare(&self, id: u32) -> Option<usize> {
        let at = *self.entries.get(id as usize)?;
        match self.info(at)?.0 {
            9..=11 | 18 => self.bare(self.word(at + 8)?),
            _ => Some(at),
        }
    }

    /// The number of an entry.
    pub fn id(&self, kind: u32, name: &str) -> Result<u32> {
        let found = |&&at: &&usize| {
            self.info(at).is_some_and(|info| info.0 == kind)
                && self.is_called(at, name) == Some(true)
        };
        let at = self.entries[1..].iter().position(|at| found(&at));
        let at = at.with_context(|| format!("this kernel has no {name} that can be used"))?;
        Ok(at as u32 + 1)
    }

    /// Where a structure has a field, also one of an unnamed part.
    pub fn field(&self, structure: &str, field: &str) -> Result<i16> {
        let id = self.id(STRUCT, structure)?;
        self.find(id, field)
            .and_then(|bits| i16::try_from(bits / 8).ok())
            .with_context(|| format!("this kernel's {structure} has no {field}"))
    }

    fn find(&self, id: u32, field: &str) -> Option<u32> {
        let at = self.bare(id)?;
        let (STRUCT | UNION, count) = self.info(at)? else {
            return None;
        };
        // With this flag the upper byte is the size of a bit field.
        let mask = match self.word(at + 4)? >> 31 {
            0 => u32::MAX,
            _ => 0x00ff_ffff,
        };
        (0..count).find_map(|number| {
            let member = at + 12 + 12 * number;
            let (name, inner) = (self.word(member)?, self.word(member + 4)?);
            let bits = self.word(member + 8)? & mask;
            if self.is_called(member, field) == Some(true) {
                return Some(bits);
            }
            (name == 0)
                .then(|| self.find(inner, field))?
                .map(|inner| bits + inner)
        })
    }

    /// Whether a parameter of a function, or of a type "pointer to function", points to that
    /// structure.
    pub fn takes(&self, entry: u32, parameter: usize, structure: &str) -> bool {
        let answer = || {
            let mut at = self.bare(entry)?;
            while self.info(at)?.0 != PROTOTYPE {
                at = self.bare(self.word(at + 8)?)?;
            }
            let parameters = self.info(at)?.1;
            let pointer = self.bare(self.word(at + 12 + 8 * parameter + 4)?)?;
            let target = self.bare(self.word(pointer + 8)?)?;
            Some(
                parameter < parameters
                    && self.info(pointer)?.0 == POINTER
                    && self.info(target)?.0 == STRUCT
                    && self.is_called(target, structure)?,
            )
        };
        answer() == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// u64; struct inner { u64 hidden; }; struct outer { u64 first; struct inner; };
    /// struct outer *; a function type that takes it; the function.
    fn sample() -> Vec<u8> {
        let names = b"\0inner\0hidden\0outer\0first\0takes\0";
        let name = |of: &str| {
            names
                .windows(of.len())
                .position(|at| at == of.as_bytes())
                .unwrap() as u32
        };
        let types = [
            vec![0, 1 << 24, 8, 64],
            vec![name("inner"), 4 << 24 | 1, 8, name("hidden"), 1, 0],
            vec![
                name("outer"),
                4 << 24 | 2,
                16,
                name("first"),
                1,
                0,
                0,
                2,
                64,
            ],
            vec![0, 2 << 24, 3],
            vec![0, 13 << 24 | 1, 0, 0, 4],
            vec![name("takes"), 12 << 24, 5],
        ]
        .concat();
        let length = 4 * types.len() as u32;
        let header = [0x0001_eb9f, 24, 0, length, length, names.len() as u32];
        let words = header.into_iter().chain(types);
        words.flat_map(u32::to_le_bytes).chain(*names).collect()
    }

    #[test]
    fn a_field_of_an_unnamed_part_is_found() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.field("outer", "hidden").unwrap(), 8);
        assert_eq!(btf.field("outer", "first").unwrap(), 0);
        assert!(btf.field("outer", "other").is_err());
        let function = btf.id(FUNCTION, "takes").unwrap();
        assert!(btf.takes(function, 0, "outer"));
        assert!(!btf.takes(function, 0, "inner"));
        assert!(!btf.takes(function, 1, "outer"));
        assert!(btf.id(VARIABLE, "takes").is_err());
    }

    #[test]
    fn what_is_cut_off_is_no_btf() {
        let whole = sample();
        let names = whole.len() - 32;
        assert!((0..names).all(|length| Btf::parse(whole[..length].to_vec()).is_none()));
    }
}
