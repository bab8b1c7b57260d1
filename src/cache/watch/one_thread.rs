// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the process has one thread, so that a hit needs no fence (W3).

use core::ffi::{CStr, c_char};
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicI32, AtomicU8, Ordering::*};
use rdmamr_sys::symbols::{self, Scope};

/// The words that show whether the process has one thread.
#[derive(Clone, Copy)]
pub struct OneThread {
    /// `__libc_single_threaded` (glibc 2.32): not 0 while the C library has made no thread.
    single_threaded: &'static AtomicU8,
    /// `_r_debug.r_version` (glibc 2.35): 1 while the linker has one namespace, and so the process
    /// one C library. The linker raises it before a new namespace's code runs, and never lowers it.
    version: &'static AtomicI32,
}

impl OneThread {
    /// `None` if the process cannot know that it has one thread: before glibc 2.35.
    pub fn find() -> Option<OneThread> {
        const FIRST: (u32, u32) = (2, 35);
        if glibc_version()? < FIRST {
            return None;
        }
        let single_threaded = symbols::find(Scope::Program, c"__libc_single_threaded", None)?.get();
        // The linker writes its own `_r_debug` only. A program that names the symbol has a copy,
        // which stays as it was at the start. So the library does not look for the symbol in the
        // program.
        let version = symbols::find(Scope::Next, c"_r_debug", None)?.get();
        Some(OneThread {
            // SAFETY: the symbol is a `char` of the C library, which lives as long as the process.
            // Only the C library writes it.
            single_threaded: unsafe {
                with_exposed_provenance::<AtomicU8>(single_threaded).as_ref()?
            },
            // SAFETY: the symbol is the linker's `struct r_debug`, whose first field is an `int`.
            // It lives as long as the process, and only the linker writes it.
            version: unsafe { with_exposed_provenance::<AtomicI32>(version).as_ref()? },
        })
    }

    #[inline(always)]
    pub fn holds(self) -> bool {
        self.single_threaded.load(Relaxed) != 0 && self.version.load(Relaxed) == 1
    }
}

/// The version of the C library that runs; `None` if it is not glibc.
fn glibc_version() -> Option<(u32, u32)> {
    let function = symbols::find(Scope::Program, c"gnu_get_libc_version", None)?;
    let pointer = with_exposed_provenance::<()>(function.get());
    // SAFETY: the symbol is glibc's function of that type.
    let function: extern "C" fn() -> *const c_char = unsafe { core::mem::transmute(pointer) };
    // SAFETY: the function returns a string that lives as long as the process.
    let text = unsafe { CStr::from_ptr(function()) };
    let (major, rest) = text.to_str().ok()?.split_once('.')?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, digits.parse().ok()?))
}
