// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of code that the dynamic linker has loaded, dl_iterate_phdr(3): the program itself and
//! its libraries.

use core::ffi::{CStr, c_int, c_void};
use core::ops::{ControlFlow, Range};

/// A loaded file, as the linker describes it.
pub struct LoadedFile<'a>(&'a libc::dl_phdr_info);

/// Calls `look` with each file until `look` breaks. The linker's lock is held meanwhile, so `look`
/// must not load anything.
pub fn each<F: FnMut(&LoadedFile) -> ControlFlow<()>>(mut look: F) {
    // SAFETY: `call` has the type of `F` and gets the pointer passed here, which is valid during
    // the call.
    unsafe { libc::dl_iterate_phdr(Some(call::<F>), (&raw mut look).cast()) };
}

unsafe extern "C" fn call<F: FnMut(&LoadedFile) -> ControlFlow<()>>(
    file: *mut libc::dl_phdr_info,
    _size: usize,
    look: *mut c_void,
) -> c_int {
    // SAFETY: the linker's entry is valid for the time of the call.
    let file = unsafe { &*file };
    // SAFETY: the pointer is the one that `each` passed, and nothing else uses `look` meanwhile.
    let look = unsafe { &mut *look.cast::<F>() };
    look(&LoadedFile(file)).is_break().into()
}

impl LoadedFile<'_> {
    /// The file's path; empty for the program itself.
    pub fn name(&self) -> &CStr {
        if self.0.dlpi_name.is_null() {
            return c"";
        }
        // SAFETY: a non-null name is a NUL-terminated string.
        unsafe { CStr::from_ptr(self.0.dlpi_name) }
    }

    /// The difference between an address in memory and the same address in the file's own terms.
    pub fn base(&self) -> u64 {
        self.0.dlpi_addr
    }

    /// How many files have been loaded and unloaded so far.
    pub fn loads(&self) -> (u64, u64) {
        (self.0.dlpi_adds, self.0.dlpi_subs)
    }

    /// The file's program headers.
    fn headers(&self) -> &[libc::Elf64_Phdr] {
        if self.0.dlpi_phdr.is_null() {
            return &[];
        }
        // SAFETY: the linker states how many headers there are.
        unsafe { core::slice::from_raw_parts(self.0.dlpi_phdr, self.0.dlpi_phnum.into()) }
    }

    /// The address ranges in memory of the file's parts of a kind, `PT_...`, with these
    /// permissions, `PF_...`.
    pub fn parts(&self, kind: u32, permissions: u32) -> impl Iterator<Item = Range<u64>> {
        let chosen = move |header: &&libc::Elf64_Phdr| {
            header.p_type == kind && header.p_flags & permissions == permissions
        };
        self.headers().iter().filter(chosen).map(|header| {
            let start = self.base() + header.p_vaddr;
            start..start + header.p_memsz
        })
    }
}
