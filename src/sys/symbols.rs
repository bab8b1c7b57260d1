// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking up symbols of other libraries, dlsym(3), when the library is loaded.
//!
//! The dynamic linker takes locks, which it holds while it runs constructors and destructors. They
//! may wait for a thread that registers memory. So no call of the program leads here: what a call
//! looks for, it finds by `loaded_files.rs`.

use super::loaded_files::{self, Name};
use core::ffi::{CStr, c_int, c_void};
use core::num::NonZeroUsize;

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
pub fn find(
    scope: Scope,
    name: &'static CStr,
    version: Option<&'static CStr>,
) -> Option<NonZeroUsize> {
    let [found] = find_each(scope, [(name, version)]);
    found
}

/// The addresses of several symbols.
pub fn find_each<const N: usize>(scope: Scope, names: [Name; N]) -> [Option<NonZeroUsize>; N] {
    let mut all = loaded_files::first(names, matches!(scope, Scope::Next));
    for (found, name) in all.iter_mut().zip(names) {
        *found = found.and_then(|_| find_existing(scope, name));
    }
    all
}

/// The address of a symbol that some loaded file defines. For any other symbol dlsym allocates the
/// text of an error, and when the library is loaded the program's allocator may not be ready: a
/// constructor of the program makes some ready.
pub fn find_existing(scope: Scope, (name, version): Name) -> Option<NonZeroUsize> {
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

impl Library {
    /// The library with that file name, which is loaded unless `more` is RTLD_NOLOAD. From now on it
    /// cannot be unloaded.
    pub fn keep(file: &CStr, more: c_int) -> Option<Library> {
        let mode = libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: the name ends with a NUL. The libraries of `next/functions.rs` are made to
        // be loaded at run time.
        let library = unsafe { libc::dlopen(file.as_ptr(), mode | more) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::Function;
    #[cfg(not(any(loom, miri)))]
    use crate::loaded_files::Object;
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

    #[test]
    #[cfg(not(any(loom, miri)))]
    fn the_c_librarys_own_functions_are_found() {
        let address = |name, version| find(Scope::Program, name, version);
        let getppid = address(c"getppid", None).unwrap();
        for ways in 0..2 {
            if ways == 1 {
                loaded_files::find_next();
            }
            let object = Object::with(getppid).unwrap();
            assert!(object.has(getppid.get()) && object.is_called(c"libc.so.6"));
            assert_eq!(object.find(c"getppid", None), Some(getppid));
            assert_eq!(object.find(c"there_is_no_such_function", None), None);
            // The default version, not an older one of the same name.
            let version = Some(c"GLIBC_2.2.5");
            assert_eq!(object.find(c"realpath", None), address(c"realpath", None));
            assert_eq!(object.find(c"getppid", Some(c"GLIBC_2.999")), None);
            if cfg!(target_arch = "x86_64") {
                let old = address(c"realpath", version);
                assert!(old.is_some() && old != address(c"realpath", None));
                assert_eq!(object.find(c"realpath", version), old);
            }
            let named = Object::named(c"libc.so.6", b"libc.", &|_| true).unwrap();
            assert_eq!(named.map(|named| named.start), Some(object.start));
        }
        assert!(
            Object::named(c"none.so", b"no such", &|_| true)
                .unwrap()
                .is_none()
        );
    }
}
