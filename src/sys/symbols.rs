// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking up symbols of other libraries, dlsym(3), when the library is loaded.
//!
//! The dynamic linker takes locks, which it holds while it runs constructors and destructors. They
//! may wait for a thread that registers memory. So no call of the program leads here: what a call
//! looks for, it finds by `loaded_files.rs`.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::num::NonZeroUsize;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The libraries in which a symbol is looked up.
#[derive(Clone, Copy)]
pub enum Scope {
    /// The libraries that were loaded after this one.
    Next,
    /// The program and all libraries that it was started with, in their order.
    Program,
    /// One library.
    In(Library),
}

/// The symbol's address; with a version, the address of that version node.
pub fn find(scope: Scope, name: &CStr, version: Option<&CStr>) -> Option<NonZeroUsize> {
    let handle = match scope {
        Scope::Next => libc::RTLD_NEXT,
        Scope::Program => libc::RTLD_DEFAULT,
        Scope::In(library) => library.0,
    };
    let address = match version {
        // SAFETY: both strings end with a NUL, and every handle of `Scope` is valid.
        Some(version) => unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) },
        // SAFETY: the string ends with a NUL, and every handle of `Scope` is valid.
        None => unsafe { libc::dlsym(handle, name.as_ptr()) },
    };
    NonZeroUsize::new(address.expose_provenance())
}

/// A loaded library. It stays loaded.
#[derive(Clone, Copy)]
pub struct Library(*mut c_void);

/// Whether to load a library that is not loaded yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Load {
    IfNeeded,
    Never,
}

impl Library {
    /// The library with that file name. From now on it cannot be unloaded.
    pub fn keep(file: &CStr, load: Load) -> Option<Library> {
        let mode = libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        let only_loaded = match load {
            Load::IfNeeded => 0,
            Load::Never => libc::RTLD_NOLOAD,
        };
        // SAFETY: the name ends with a NUL. The libraries of `next.rs` are made to be loaded at run
        // time.
        let library = unsafe { libc::dlopen(file.as_ptr(), mode | only_loaded) };
        (!library.is_null()).then_some(Library(library))
    }

    /// The program, with the libraries that it was started with, in their order. `None` in another
    /// namespace of the linker than the program's (dlmopen(3)).
    ///
    /// [`Scope::Program`] is the order in which this library's own references are bound, which
    /// begins with this library if RTLD_DEEPBIND loaded it.
    pub fn program() -> Option<Library> {
        // SAFETY: NULL stands for the program, which is always loaded.
        let program = unsafe { libc::dlopen(core::ptr::null(), libc::RTLD_LAZY) };
        (!program.is_null()).then_some(Library(program))
    }
}

/// The function at an address.
///
/// # Safety
/// `F` is a function pointer type, and that of the function there. (Of data it may be a reference.)
#[inline(always)]
pub unsafe fn typed<F: Copy>(address: NonZeroUsize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let pointer = with_exposed_provenance::<c_void>(address.get());
    // SAFETY: this function's contract.
    unsafe { core::mem::transmute_copy(&pointer) }
}

/// A function of another library, once a lookup has found it.
pub struct Function<F> {
    address: AtomicUsize,
    signature: PhantomData<F>,
}

impl<F: Copy> Function<F> {
    /// A function that no lookup has found yet.
    ///
    /// # Safety
    /// `F` is a function pointer type, and `set` gets only addresses of functions of this type.
    pub const unsafe fn new() -> Self {
        Function {
            address: AtomicUsize::new(0),
            signature: PhantomData,
        }
    }

    /// The function, if a lookup has found it.
    #[inline(always)]
    pub fn get(&self) -> Option<F> {
        let address = NonZeroUsize::new(self.address.load(Relaxed));
        // SAFETY: `new` was promised that a function of type `F` is at this address.
        address.map(|address| unsafe { typed(address) })
    }

    /// Records the result of a lookup.
    pub fn set(&self, address: Option<NonZeroUsize>) {
        self.address
            .store(address.map_or(0, NonZeroUsize::get), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_int;

    #[test]
    fn a_function_is_found_and_called() {
        // SAFETY: the type is that of getppid(2).
        let function: Function<unsafe extern "C" fn() -> c_int> = unsafe { Function::new() };
        assert!(function.get().is_none());
        function.set(find(Scope::Program, c"getppid", None));
        // SAFETY: getppid(2) has no preconditions.
        let parent = function.get().map(|getppid| unsafe { getppid() });
        // SAFETY: getppid(2) has no preconditions.
        assert_eq!(parent, Some(unsafe { libc::getppid() }));
        assert_eq!(
            find(Scope::Program, c"there_is_no_such_function", None),
            None
        );
    }
}
