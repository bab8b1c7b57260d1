// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses of code in this process. A reader later finds a caller's place in a file by them.

use super::python::Python;
use core::fmt::Write;
use core::ops::ControlFlow;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use rdmamr_sys::loaded_files::{self, LoadedFile};

/// A list, and the process that made it. Lists are never freed: a child of that process has the
/// same code and may not ask the linker, whose lock another thread of the parent may have held at
/// the fork.
pub struct ModuleList {
    pid: u32,
    /// The number of [`loaded`] before the list was made.
    loaded: u64,
    /// The files and their code, in the trace's lines.
    pub lines: String,
    /// The interpreter among the files.
    pub python: Option<Python>,
}

static LAST: AtomicPtr<ModuleList> = AtomicPtr::new(null_mut());

/// The list of this process's parent.
fn inherited() -> Option<&'static ModuleList> {
    last().filter(|list| list.pid != std::process::id())
}

/// A number that changes with the set of loaded files.
pub fn loaded() -> u64 {
    let mut number = 0;
    if inherited().is_none() {
        loaded_files::each(|file| {
            let (loaded, unloaded) = file.loads();
            number = loaded ^ unloaded << 32;
            ControlFlow::Break(())
        });
    }
    number
}

/// The last list, of this process or its parent.
pub fn last() -> Option<&'static ModuleList> {
    // SAFETY: the pointer is null or to a list, and lists are never freed.
    unsafe { LAST.load(Acquire).as_ref() }
}

/// The list of what is loaded now. It asks the linker, except in a child.
pub fn current() -> &'static ModuleList {
    if let Some(list) = inherited() {
        return list;
    }
    let loaded = loaded();
    if let Some(list) = last().filter(|list| list.loaded == loaded) {
        return list;
    }
    let mut lines = String::new();
    let mut has_python = false;
    loaded_files::each(|file| {
        let (base, path) = (file.base(), path(file));
        for code in file.parts(libc::PT_LOAD, libc::PF_X) {
            let _ = writeln!(lines, "{:x} {:x} {base:x} {path}", code.start, code.end);
        }
        has_python |= path.contains("python");
        ControlFlow::Continue(())
    });
    let list = Box::leak(Box::new(ModuleList {
        pid: std::process::id(),
        loaded,
        lines,
        python: has_python.then(Python::find).flatten(),
    }));
    LAST.store(list, Release);
    list
}

fn path(file: &LoadedFile) -> String {
    if file.name().is_empty() {
        let program = std::fs::read_link("/proc/thread-self/exe").unwrap_or_default();
        return program.to_string_lossy().into_owned();
    }
    file.name().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_code_is_in_the_list() {
        let here = this_code_is_in_the_list as *const () as u64;
        let mut lines = current().lines.lines().filter(|line| {
            let mut numbers = line
                .split(' ')
                .map(|number| u64::from_str_radix(number, 16));
            let (Some(Ok(start)), Some(Ok(end))) = (numbers.next(), numbers.next()) else {
                panic!("{line}");
            };
            (start..end).contains(&here)
        });
        let line = lines.next().expect("it is");
        assert!(
            line.ends_with(std::env::current_exe().unwrap().to_str().unwrap()),
            "{line}"
        );
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn a_file_that_is_loaded_changes_the_number() {
        let before = loaded();
        assert_eq!(loaded(), before);
        // SAFETY: the library is the C library's own and runs no code when it is loaded.
        let library = unsafe { libc::dlopen(c"libresolv.so.2".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        assert_ne!(loaded(), before);
    }
}
