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

use core::ffi::{c_char, c_long, c_uint};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use rdmamr_elf::{File, LinkMap, Symbol, Text};

/// The version of the interface since glibc 2.35. Earlier linkers do not show the bindings that
/// they make at load (`-z now`), and slow down each call through the other bindings.
const VERSION: c_uint = 2;
const LM_ID_BASE: c_long = 0;
const LA_FLG_BINDTO: c_uint = 1;
const LA_FLG_BINDFROM: c_uint = 2;
const LA_SYMB_DLSYM: c_uint = 8;

/// The `LinkMap` of librdmamr; 0 if the program started without it.
static LIBRARY: AtomicUsize = AtomicUsize::new(0);
/// That of the C library. A cookie stays the file's `LinkMap`, as the linker set it, whose address
/// may have any bit: the program's own allocator chooses it.
static C_LIBRARY: AtomicUsize = AtomicUsize::new(0);
/// Whether the linker has bound all files that the program was started with.
static STARTED: AtomicBool = AtomicBool::new(false);

fn is_library(file: &File) -> bool {
    file.is_called(c"librdmamr.so.1") && file.has(c"rdmamr_version", c"RDMAMR_1.0")
}

/// Whether the file is a library of RDMA, whatever its name. A libibverbs has two functions of which
/// an interposing library has at most one; a libfabric and a libmlx5 have a function that librdmamr
/// lacks.
fn is_rdma(file: &File) -> bool {
    file.has(c"ibv_reg_mr", c"IBVERBS_1.1") && file.has(c"ibv_open_device", c"IBVERBS_1.1")
        || file.has(c"fi_version", c"FABRIC_1.0")
        || file.has(c"mlx5dv_query_device", c"MLX5_1.0")
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
    _cookie: &mut usize,
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
    if is_library(&file) {
        if !STARTED.load(Relaxed) && LIBRARY.load(Relaxed) == 0 {
            LIBRARY.store(map, Relaxed);
        }
        return 0;
    }
    let is_c_library = file.is_called(c"libc.so.6");
    if is_c_library && !STARTED.load(Relaxed) {
        C_LIBRARY.store(map, Relaxed);
    }
    match is_c_library || is_rdma(&file) {
        true => LA_FLG_BINDFROM | LA_FLG_BINDTO,
        false => LA_FLG_BINDFROM,
    }
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
    let is_of_c = *definer == C_LIBRARY.load(Relaxed);
    let stays = is_of_c && (*flags & LA_SYMB_DLSYM != 0 || !STARTED.load(Relaxed));
    if stays || library == 0 {
        return symbol.value;
    }
    // SAFETY: the linker's name of the symbol, which ends with a NUL.
    let name = unsafe { Text::at(name.expose_provenance()) };
    let [library, caller, definer] = [library, *caller, *definer].map(|map| {
        // SAFETY: a cookie is the linker's entry of its file, as the linker set it. Both files are
        // loaded; librdmamr stays so.
        unsafe { File::of(map) }
    });
    let version = definer.version(number);
    let same = |number| match (library.version(number), version) {
        (None, _) => true,
        (Some(own), Some(version)) => own.is(version),
        (Some(_), None) => false,
    };
    // Of dlsym the linker tells for all files, not for those with LA_FLG_BINDTO alone.
    let is_redirected = || {
        let is_own = caller.find(name, |_| true).is_some();
        !is_own && (is_of_c || is_rdma(&definer))
    };
    let ours = library.find(name, same).filter(|_| is_redirected());
    ours.unwrap_or(symbol.value)
}

#[cfg(all(not(test), panic = "abort"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
