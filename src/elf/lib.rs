// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables in which the dynamic linker looks the symbols of a loaded file up: an ELF file's hash
//! table, symbols and versions, in memory.
//!
//! The module for LD_AUDIT and the library share this. It needs no C library, allocates nothing,
//! locks nothing, and asks the linker nothing.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(panic = "abort", no_builtins)]

use core::ffi::{CStr, c_char};
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicUsize, Ordering::Acquire};

/// The public part of the linker's `struct link_map`.
#[repr(C)]
pub struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const [usize; 2],
    /// The entry of the file that was loaded after this one, and before it, in the same namespace.
    next: AtomicUsize,
    previous: AtomicUsize,
}

impl LinkMap {
    /// # Safety
    /// As for [`File::of`].
    unsafe fn at(map: usize) -> &'static LinkMap {
        // SAFETY: this function's contract.
        unsafe { &*with_exposed_provenance::<LinkMap>(map) }
    }

    /// The linker's name of the file: its path, empty for the program itself.
    ///
    /// # Safety
    /// As for [`File::of`].
    pub unsafe fn name(map: usize) -> Text {
        // SAFETY: this function's contract.
        let map = unsafe { LinkMap::at(map) };
        // SAFETY: the entry's name ends with a NUL.
        unsafe { Text::at(map.name.expose_provenance()) }
    }

    /// The address of the file's dynamic section.
    ///
    /// # Safety
    /// As for [`File::of`].
    pub unsafe fn dynamic(map: usize) -> usize {
        // SAFETY: this function's contract.
        unsafe { LinkMap::at(map) }.dynamic.expose_provenance()
    }

    /// The entries of the files that were loaded before this one and after it; 0 for none. The linker
    /// may be changing them.
    ///
    /// # Safety
    /// As for [`File::of`].
    pub unsafe fn beside(map: usize) -> [usize; 2] {
        // SAFETY: this function's contract.
        let map = unsafe { LinkMap::at(map) };
        [&map.previous, &map.next].map(|entry| entry.load(Acquire))
    }
}

/// `Elf64_Sym`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    pub value: usize,
    size: usize,
}

/// A string that ends with a NUL and stays where it is.
#[derive(Clone, Copy)]
pub struct Text(usize);

impl Text {
    /// # Safety
    /// A string that ends with a NUL is at that address while the result is used.
    pub unsafe fn at(address: usize) -> Text {
        Text(address)
    }

    pub fn of(text: &'static CStr) -> Text {
        Text(text.as_ptr().expose_provenance())
    }

    pub fn address(self) -> usize {
        self.0
    }

    /// The bytes before the NUL.
    pub fn bytes(self) -> impl Iterator<Item = u8> + Clone {
        // SAFETY: no address behind the NUL is read, as `take_while` ends the iterator.
        let byte = move |at| unsafe { read::<u8>(self.0 + at) };
        (0..).map(byte).take_while(|&byte| byte != 0)
    }

    pub fn is(self, other: Text) -> bool {
        self.bytes().eq(other.bytes())
    }

    /// The text after a prefix, if it begins so.
    pub fn after(self, prefix: &CStr) -> Option<Text> {
        let prefix = prefix.to_bytes();
        let begins = self.bytes().take(prefix.len()).eq(prefix.iter().copied());
        begins.then_some(Text(self.0 + prefix.len()))
    }

    pub fn contains(self, part: &CStr) -> bool {
        let mut places = 0..self.bytes().count();
        places.any(|at| Text(self.0 + at).after(part).is_some())
    }

    /// The text after the first such byte.
    pub fn behind(self, byte: u8) -> Option<Text> {
        let place = self.bytes().position(|it| it == byte)?;
        Some(Text(self.0 + place + 1))
    }
}

/// # Safety
/// A `T` is at that address.
pub unsafe fn read<T: Copy>(address: usize) -> T {
    // SAFETY: this function's contract. Tables of files need not be aligned.
    unsafe { with_exposed_provenance::<T>(address).read_unaligned() }
}

/// The tables of a loaded file. Each field is an address, or 0 if the file lacks the table.
#[derive(Clone, Copy, Default)]
pub struct File {
    pub base: usize,
    symbols: usize,
    strings: usize,
    /// DT_GNU_HASH, and the older DT_HASH, which some vendors' files have alone.
    hash: usize,
    old_hash: usize,
    versions: usize,
    definitions: usize,
    soname: usize,
    flags: usize,
    dynamic: usize,
}

impl File {
    /// # Safety
    /// The address is that of the linker's entry of a file that stays loaded while the result is
    /// used.
    pub unsafe fn of(map: usize) -> File {
        // SAFETY: this function's contract.
        let map = unsafe { LinkMap::at(map) };
        // SAFETY: the entry's fields are those of the file.
        unsafe { File::with(map.base, map.dynamic.expose_provenance()) }
    }

    /// # Safety
    /// A file that stays loaded while the result is used has this base and this dynamic section.
    pub unsafe fn with(base: usize, dynamic: usize) -> File {
        let mut file = File {
            base,
            dynamic,
            ..File::default()
        };
        // Most linkers have already added the base to the value.
        let address = |value| if value < base { base + value } else { value };
        let (entries, whole) = (file, &mut file);
        entries.each_entry(|tag, value| match tag {
            4 => whole.old_hash = address(value),
            5 => whole.strings = address(value),
            6 => whole.symbols = address(value),
            14 => whole.soname = value,
            30 => whole.flags = value,
            0x6fff_fef5 => whole.hash = address(value),
            0x6fff_fff0 => whole.versions = address(value),
            0x6fff_fffc => whole.definitions = address(value),
            _ => {}
        });
        file
    }

    /// The entries of the dynamic section.
    fn each_entry(&self, mut each: impl FnMut(usize, usize)) {
        let mut at = self.dynamic;
        loop {
            // The entry 0 ends the table.
            let [tag, value]: [usize; 2] = self.read(at);
            if tag == 0 {
                return;
            }
            each(tag, value);
            at += 16;
        }
    }

    /// Reads a table of the file.
    fn read<T: Copy>(&self, address: usize) -> T {
        // SAFETY: `with` was promised a loaded file, and the linker has already looked symbols up in
        // its tables: the places computed below are those that the linker reads.
        unsafe { read(address) }
    }

    fn text(&self, offset: u32) -> Text {
        Text(self.strings + offset as usize)
    }

    /// The name by which other files need this one, if it has such a name.
    pub fn soname(&self) -> Option<Text> {
        (self.soname != 0).then(|| self.text(self.soname as u32))
    }

    pub fn is_called(&self, soname: &'static CStr) -> bool {
        self.soname().is_some_and(|own| own.is(Text::of(soname)))
    }

    /// Whether the file names the other one as needed.
    pub fn needs(&self, other: &File) -> bool {
        let mut needs = false;
        self.each_entry(|tag, value| {
            let is_it = |soname| self.text(value as u32).is(soname);
            needs |= tag == 1 && other.soname().is_some_and(is_it);
        });
        needs
    }

    /// The version of a symbol that the file defines; `None` if it has none.
    pub fn version(&self, symbol: u32) -> Option<Text> {
        if self.versions == 0 || self.definitions == 0 {
            return None;
        }
        let number = self.read::<u16>(self.versions + 2 * symbol as usize) & 0x7fff;
        let mut at = self.definitions;
        loop {
            // Elf64_Verdef, and the Elf64_Verdaux with the version's own name.
            let defined: u16 = self.read(at + 4);
            let [_, name, next] = self.read::<[u32; 3]>(at + 8);
            if number > 1 && defined == number {
                return Some(self.text(self.read(at + name as usize)));
            }
            if number <= 1 || next == 0 {
                return None;
            }
            at += next as usize;
        }
    }

    /// The address of the symbol that the file defines under that name and that `accept`, which
    /// gets the symbol's number, accepts.
    pub fn find(&self, name: Text, accept: impl Fn(u32) -> bool) -> Option<usize> {
        let is_it = |number| {
            let symbol: Symbol = self.read(self.symbols + 24 * number as usize);
            let is_it = symbol.section != 0 && self.text(symbol.name).is(name) && accept(number);
            is_it.then_some(self.base + symbol.value)
        };
        if self.symbols == 0 {
            None
        } else if self.hash == 0 {
            self.find_in_old(name, is_it)
        } else {
            self.find_in_gnu(name, is_it)
        }
    }

    fn find_in_gnu(&self, name: Text, is_it: impl Fn(u32) -> Option<usize>) -> Option<usize> {
        let step = |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte));
        let hash = name.bytes().fold(5381, step);
        let [buckets, first, filters, _]: [u32; 4] = self.read(self.hash);
        let bucket = self.hash + 16 + 8 * filters as usize;
        let chain = bucket + 4 * buckets as usize;
        let mut number: u32 = self.read(bucket + 4 * hash.checked_rem(buckets)? as usize);
        while number >= first {
            let hashed: u32 = self.read(chain + 4 * (number - first) as usize);
            let found = (hashed | 1 == hash | 1).then(|| is_it(number)).flatten();
            if found.is_some() || hashed & 1 == 1 {
                return found;
            }
            number += 1;
        }
        None
    }

    fn find_in_old(&self, name: Text, is_it: impl Fn(u32) -> Option<usize>) -> Option<usize> {
        if self.old_hash == 0 {
            return None;
        }
        let hash = name.bytes().fold(0u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(byte));
            (hash ^ (hash >> 24 & 0xf0)) & 0x0fff_ffff
        });
        let [buckets, _]: [u32; 2] = self.read(self.old_hash);
        let chain = self.old_hash + 8 + 4 * buckets as usize;
        let bucket = self.old_hash + 8 + 4 * hash.checked_rem(buckets)? as usize;
        let mut number: u32 = self.read(bucket);
        while number != 0 {
            if let Some(found) = is_it(number) {
                return Some(found);
            }
            number = self.read(chain + 4 * number as usize);
        }
        None
    }

    /// Whether a caller that asks for this version is bound to the symbol, as by dlvsym(3), or by
    /// dlsym(3) if it asks for none.
    pub fn is_at(&self, symbol: u32, version: Option<Text>) -> bool {
        const HIDDEN: u16 = 0x8000;
        if self.versions == 0 {
            return true;
        }
        match version {
            Some(version) => self.version(symbol).is_some_and(|own| own.is(version)),
            None => (1..HIDDEN).contains(&self.read(self.versions + 2 * symbol as usize)),
        }
    }

    /// The bytes of static thread-local storage that the file needs (DF_STATIC_TLS), at most.
    pub fn static_storage(&self) -> usize {
        const STATIC_TLS: usize = 0x10;
        const MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
        const PT_TLS: u32 = 7;
        // The header lies at the base of every file that is not linked to an address of its own.
        if self.flags & STATIC_TLS == 0 || self.base == 0 || self.read::<u32>(self.base) != MAGIC {
            return 0;
        }
        let headers = self.base + self.read::<usize>(self.base + 32);
        let [size, count]: [u16; 2] = self.read(self.base + 54);
        let segment = |number| headers + usize::from(size) * usize::from(number);
        let mut segments = (0..count).map(segment);
        let storage = segments.find(|&at| self.read::<u32>(at) == PT_TLS);
        let word = |at| self.read::<usize>(at);
        // The size in memory, and the alignment.
        storage.map_or(0, |at| word(at + 40) + word(at + 48))
    }

    /// Whether the file defines the symbol at that version.
    pub fn has(&self, name: &'static CStr, version: &'static CStr) -> bool {
        let is_it = |own: Text| own.is(Text::of(version));
        let accept = |number| self.version(number).is_some_and(is_it);
        self.find(Text::of(name), accept).is_some()
    }
}
