// SPDX-License-Identifier: MIT OR Apache-2.0
//! `librdmamr-audit.so`, a module for LD_AUDIT, rtld-audit(7): binds callers of libibverbs, libmlx5
//! and libfabric to the preloaded librdmamr.so.1, whichever way they take their functions: `dlsym` and
//! `dlvsym` of a handle, RTLD_DEEPBIND, a copy of libibverbs under another name.
//!
//! It changes no other binding, and has no hook in a call. The linker loads it into a namespace of
//! its own in every process, so it needs no C library, allocates nothing, locks nothing, and reads
//! only the tables in which the linker itself looks symbols up.
//!
//! The rules:
//! - The caller's file does not define the symbol itself. A file that defines it interposes the
//!   function, as librdmamr does, and asks for the next one: any other answer would be a circle.
//! - The function found is that of a libibverbs, a libmlx5 or a libfabric, and librdmamr has the
//!   same function at the same version, or without one. A version has its own structures.
//! - Functions of the C library, from which librdmamr learns of changes of memory, are redirected
//!   only for files that a program loads with RTLD_DEEPBIND. The caller of `dlsym` may overwrite
//!   the code of the function (UCX does), so `dlsym` returns the C library's.

#![cfg_attr(not(test), no_std)]
#![no_builtins]

mod restart;

use core::ffi::{CStr, c_char, c_long, c_uint};
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The version of the interface since glibc 2.35. Earlier linkers do not show the bindings that
/// they make at load (`-z now`), and slow down each call through the other bindings.
const VERSION: c_uint = 2;
const LM_ID_BASE: c_long = 0;
const LA_FLG_BINDTO: c_uint = 1;
const LA_FLG_BINDFROM: c_uint = 2;
const LA_SYMB_DLSYM: c_uint = 8;

/// The kind of a file, in the low bits of its cookie; the other bits are the address of its
/// `LinkMap`.
const KIND: usize = 7;
const RDMA: usize = 1;
const C_LIBRARY: usize = 2;

/// The `LinkMap` of librdmamr; 0 if the program started without it.
static LIBRARY: AtomicUsize = AtomicUsize::new(0);
/// Whether the linker has bound all files that the program was started with.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The public part of the linker's `struct link_map`.
#[repr(C)]
pub struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const [usize; 2],
}

/// `Elf64_Sym`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// A string that ends with a NUL and stays where it is.
#[derive(Clone, Copy)]
struct Text(usize);

impl Text {
    fn of(text: &'static CStr) -> Text {
        Text(text.as_ptr().expose_provenance())
    }

    /// The bytes before the NUL.
    fn bytes(self) -> impl Iterator<Item = u8> + Clone {
        // SAFETY: no address behind the NUL is read, as `take_while` ends the iterator.
        let byte = move |at| unsafe { read::<u8>(self.0 + at) };
        (0..).map(byte).take_while(|&byte| byte != 0)
    }

    fn is(self, other: Text) -> bool {
        self.bytes().eq(other.bytes())
    }

    /// The text after a prefix, if it begins so.
    fn after(self, prefix: &CStr) -> Option<Text> {
        let prefix = prefix.to_bytes();
        let begins = self.bytes().take(prefix.len()).eq(prefix.iter().copied());
        begins.then_some(Text(self.0 + prefix.len()))
    }

    /// The text after the first such byte.
    fn behind(self, byte: u8) -> Option<Text> {
        let place = self.bytes().position(|it| it == byte)?;
        Some(Text(self.0 + place + 1))
    }
}

/// # Safety
/// A `T` is at that address.
unsafe fn read<T: Copy>(address: usize) -> T {
    // SAFETY: this function's contract. Tables of files need not be aligned.
    unsafe { with_exposed_provenance::<T>(address).read_unaligned() }
}

/// The tables of a loaded file. Each field is an address, or 0 if the file lacks the table.
#[derive(Default)]
struct File {
    base: usize,
    symbols: usize,
    strings: usize,
    hash: usize,
    versions: usize,
    definitions: usize,
    soname: usize,
    flags: usize,
}

impl File {
    /// # Safety
    /// The address is that of the linker's entry of a file that stays loaded while the result is
    /// used.
    unsafe fn of(map: usize) -> File {
        // SAFETY: this function's contract.
        let map = unsafe { &*with_exposed_provenance::<LinkMap>(map) };
        let mut file = File {
            base: map.base,
            ..File::default()
        };
        // Most linkers have already added the base to the value.
        let address = |value| {
            if value < map.base {
                map.base + value
            } else {
                value
            }
        };
        for entry in 0.. {
            // SAFETY: the entry 0 ends the table, and the loop.
            let [tag, value] = unsafe { *map.dynamic.wrapping_add(entry) };
            match tag {
                0 => break,
                5 => file.strings = address(value),
                6 => file.symbols = address(value),
                14 => file.soname = value,
                30 => file.flags = value,
                0x6fff_fef5 => file.hash = address(value),
                0x6fff_fff0 => file.versions = address(value),
                0x6fff_fffc => file.definitions = address(value),
                _ => {}
            }
        }
        file
    }

    /// Reads a table of the file.
    fn read<T: Copy>(&self, address: usize) -> T {
        // SAFETY: `of` was promised a loaded file, and the linker has already looked symbols up in
        // its tables: the places computed below are those that the linker reads.
        unsafe { read(address) }
    }

    fn text(&self, offset: u32) -> Text {
        Text(self.strings + offset as usize)
    }

    fn is_called(&self, soname: &'static CStr) -> bool {
        self.soname != 0 && self.text(self.soname as u32).is(Text::of(soname))
    }

    /// The version of a symbol that the file defines; `None` if it has none.
    fn version(&self, symbol: u32) -> Option<Text> {
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

    /// The address of the symbol that the file defines under that name, at a version that `accept`
    /// accepts.
    fn find(&self, name: Text, accept: impl Fn(Option<Text>) -> bool) -> Option<usize> {
        if self.hash == 0 || self.symbols == 0 {
            return None;
        }
        let step = |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte));
        let hash = name.bytes().fold(5381, step);
        let [buckets, first, filters, _]: [u32; 4] = self.read(self.hash);
        let bucket = self.hash + 16 + 8 * filters as usize;
        let chain = bucket + 4 * buckets as usize;
        let mut number: u32 = self.read(bucket + 4 * hash.checked_rem(buckets)? as usize);
        while number >= first {
            let hashed: u32 = self.read(chain + 4 * (number - first) as usize);
            if hashed | 1 == hash | 1 {
                let symbol: Symbol = self.read(self.symbols + 24 * number as usize);
                let is_it = symbol.section != 0 && self.text(symbol.name).is(name);
                if is_it && accept(self.version(number)) {
                    return Some(self.base + symbol.value);
                }
            }
            if hashed & 1 == 1 {
                break;
            }
            number += 1;
        }
        None
    }

    fn has(&self, name: &'static CStr, version: &'static CStr) -> bool {
        let accept = |own: Option<Text>| own.is_some_and(|own| own.is(Text::of(version)));
        self.find(Text::of(name), accept).is_some()
    }

    /// The bytes of static thread-local storage that the file needs (DF_STATIC_TLS), at most.
    fn static_storage(&self) -> usize {
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
        let storage = (0..count)
            .map(segment)
            .find(|&at| self.read::<u32>(at) == PT_TLS);
        // The size in memory, and the alignment.
        storage.map_or(0, |at| {
            self.read::<usize>(at + 40) + self.read::<usize>(at + 48)
        })
    }

    fn is_library(&self) -> bool {
        self.is_called(c"librdmamr.so.1") && self.has(c"rdmamr_version", c"RDMAMR_1.0")
    }

    /// The kind of the file, whatever its name. A libibverbs has two functions of which an
    /// interposing library has at most one; a libfabric and a libmlx5 have a function that librdmamr lacks.
    fn kind(&self) -> usize {
        let is_libibverbs =
            self.has(c"ibv_reg_mr", c"IBVERBS_1.1") && self.has(c"ibv_open_device", c"IBVERBS_1.1");
        let is_other =
            self.has(c"fi_version", c"FABRIC_1.0") || self.has(c"mlx5dv_query_device", c"MLX5_1.0");
        if is_libibverbs || is_other {
            RDMA
        } else if self.is_called(c"libc.so.6") {
            C_LIBRARY
        } else {
            0
        }
    }
}

/// The linker calls this function first. If it returns 0, the linker continues without this module.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: c_uint) -> c_uint {
    if version < VERSION { 0 } else { version }
}

/// The linker has loaded a file. Returns which of the file's bindings the linker is to show.
///
/// # Safety
/// The linker calls it, with its own entry of the file and the cookie of that entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(
    map: *const LinkMap,
    namespace: c_long,
    cookie: &mut usize,
) -> c_uint {
    // Another namespace has a C library of its own, and so an errno of its own.
    let too_late = STARTED.load(Relaxed) && LIBRARY.load(Relaxed) == 0;
    if namespace != LM_ID_BASE || too_late {
        return 0;
    }
    let map = map.expose_provenance();
    // SAFETY: the linker's entry of a file that it is loading.
    let file = unsafe { File::of(map) };
    if !STARTED.load(Relaxed) {
        restart::opened(&file);
    }
    if file.is_library() {
        if !STARTED.load(Relaxed) && LIBRARY.load(Relaxed) == 0 {
            LIBRARY.store(map, Relaxed);
        }
        return 0;
    }
    let kind = file.kind();
    *cookie = map | kind;
    LA_FLG_BINDFROM | if kind == 0 { 0 } else { LA_FLG_BINDTO }
}

/// The linker has bound all files that the program was started with.
#[unsafe(no_mangle)]
pub extern "C" fn la_preinit(_: &usize) {
    restart::started();
    STARTED.store(true, Relaxed);
}

/// The linker has bound a symbol, or `dlsym` has found it: returns the address to use. `number` is
/// the symbol's number in the second cookie's file, which defines it.
///
/// # Safety
/// The linker calls it, with the cookies of two loaded files and the symbol's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_symbind64(
    symbol: &Symbol,
    number: c_uint,
    caller: &usize,
    definer: &usize,
    flags: &c_uint,
    name: *const c_char,
) -> usize {
    let library = LIBRARY.load(Relaxed);
    let redirected = match definer & KIND {
        RDMA => true,
        C_LIBRARY => *flags & LA_SYMB_DLSYM == 0 && STARTED.load(Relaxed),
        _ => false,
    };
    if !redirected || library == 0 {
        return symbol.value;
    }
    let name = Text(name.expose_provenance());
    let [library, caller, definer] = [library, caller & !KIND, definer & !KIND].map(|map| {
        // SAFETY: a cookie is the linker's entry of its file, as the linker set it or `la_objopen`
        // did. Both files are loaded; librdmamr stays so.
        unsafe { File::of(map) }
    });
    let version = definer.version(number);
    let same = |own: Option<Text>| match (own, version) {
        (None, _) => true,
        (Some(own), Some(version)) => own.is(version),
        (Some(_), None) => false,
    };
    match library.find(name, same) {
        Some(ours) if caller.find(name, |_| true).is_none() => ours,
        _ => symbol.value,
    }
}

#[cfg(all(not(test), panic = "abort"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
