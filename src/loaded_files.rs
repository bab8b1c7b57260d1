// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of code that the dynamic linker has loaded, dl_iterate_phdr(3): the program itself and its libraries.

use core::ffi::{CStr, c_int, c_void};
use core::ops::{ControlFlow, Range};

/// A loaded file, as the linker knows it.
pub struct LoadedFile<'a>(&'a libc::dl_phdr_info);

/// Calls `look` with each file until it breaks. The linker's lock is held meanwhile: nothing may be loaded.
pub fn each<F: FnMut(&LoadedFile) -> ControlFlow<()>>(mut look: F) {
    // SAFETY: `call` has the type of `F`, and is called with the pointer that is passed here, while it is valid.
    unsafe { libc::dl_iterate_phdr(Some(call::<F>), (&raw mut look).cast()) };
}

unsafe extern "C" fn call<F: FnMut(&LoadedFile) -> ControlFlow<()>>(
    file: *mut libc::dl_phdr_info,
    _size: usize,
    look: *mut c_void,
) -> c_int {
    // SAFETY: the linker's own, for the time of the call.
    let file = unsafe { &*file };
    // SAFETY: that of `each`, which nobody else uses meanwhile.
    let look = unsafe { &mut *look.cast::<F>() };
    look(&LoadedFile(file)).is_break().into()
}

impl LoadedFile<'_> {
    /// Its path; empty for the program itself.
    pub fn name(&self) -> &CStr {
        if self.0.dlpi_name.is_null() {
            return c"";
        }
        // SAFETY: not null, so a string.
        unsafe { CStr::from_ptr(self.0.dlpi_name) }
    }

    /// What is added to an address in the file's own terms to get the one in memory.
    pub fn base(&self) -> u64 {
        self.0.dlpi_addr
    }

    /// How many files were loaded and unloaded so far.
    pub fn loads(&self) -> (u64, u64) {
        (self.0.dlpi_adds, self.0.dlpi_subs)
    }

    /// Its program headers.
    fn headers(&self) -> &[libc::Elf64_Phdr] {
        if self.0.dlpi_phdr.is_null() {
            return &[];
        }
        // SAFETY: that many are there.
        unsafe { core::slice::from_raw_parts(self.0.dlpi_phdr, self.0.dlpi_phnum.into()) }
    }

    /// Where its parts of a kind, `PT_...`, with these permissions, `PF_...`, are in memory.
    pub fn parts(&self, kind: u32, permissions: u32) -> impl Iterator<Item = Range<u64>> {
        let chosen = move |header: &&libc::Elf64_Phdr| {
            header.p_type == kind && header.p_flags & permissions == permissions
        };
        self.headers().iter().filter(chosen).map(|header| {
            let start = self.base() + header.p_vaddr;
            start..start + header.p_memsz
        })
    }

    /// Whether an address is in it.
    pub fn holds(&self, address: u64) -> bool {
        self.parts(libc::PT_LOAD, 0)
            .any(|part| part.contains(&address))
    }
}
