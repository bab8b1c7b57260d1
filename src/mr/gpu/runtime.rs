// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library of a GPU's runtime, and its functions.

use core::ffi::CStr;
use core::ops::ControlFlow;
use rdmamr_sys::loaded_files;
use rdmamr_sys::symbols::{self, Function, Library, Load, Scope};

/// The library of this name, if the program has loaded it. It stays loaded from now on. Its `stem` is
/// looked for among the loaded files first: the linker opens files to find a library that is not
/// loaded.
pub fn find(name: &CStr, stem: &[u8]) -> Option<Library> {
    let mut is_loaded = false;
    loaded_files::each(|file| {
        let path = file.name().to_bytes();
        let at = path.iter().rposition(|&byte| byte == b'/');
        is_loaded = path[at.map_or(0, |at| at + 1)..].starts_with(stem);
        if is_loaded {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    is_loaded
        .then(|| Library::keep(name, Load::Never))
        .flatten()
}

/// A function of the library.
///
/// # Safety
/// `F` is the type of the function, as the library's header declares it.
pub unsafe fn function<F: Copy>(library: Library, name: &CStr) -> Option<F> {
    // SAFETY: this function's contract.
    let function: Function<F> = unsafe { Function::new() };
    function.set(symbols::find(Scope::In(library), name, None));
    function.get()
}
