// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where code is in this process, so that a caller's address can be told as a place in a file, later.

use crate::loaded_files::{self, LoadedFile};
use core::fmt::Write;
use core::ops::ControlFlow;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};

/// A list, and the process that made it. It is never freed: a child of that process has the same code, and may not ask
/// the linker, whose lock another thread of the parent may have had at the fork.
struct List {
    pid: u32,
    lines: String,
}

static LAST: AtomicPtr<List> = AtomicPtr::new(null_mut());

/// The list of the process that this one was forked from.
fn inherited() -> Option<&'static List> {
    // SAFETY: null, or a list, which is never freed.
    let last = unsafe { LAST.load(Acquire).as_ref() };
    last.filter(|list| list.pid != std::process::id())
}

/// A number that changes with the files that are loaded.
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

/// The files and their code, in lines as the trace has them.
pub fn list() -> &'static str {
    if let Some(list) = inherited() {
        return &list.lines;
    }
    let mut lines = String::new();
    loaded_files::each(|file| {
        let (base, path) = (file.base(), path(file));
        for code in file.parts(libc::PT_LOAD, libc::PF_X) {
            let _ = writeln!(lines, "{:x} {:x} {base:x} {path}", code.start, code.end);
        }
        ControlFlow::Continue(())
    });
    let pid = std::process::id();
    let list = Box::leak(Box::new(List { pid, lines }));
    LAST.store(list, Release);
    &list.lines
}

fn path(file: &LoadedFile) -> String {
    if file.name().is_empty() {
        let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
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
        let list = list();
        let mut lines = list.lines().filter(|line| {
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
        // SAFETY: the C library's own, which does nothing when it is loaded.
        let library = unsafe { libc::dlopen(c"libresolv.so.2".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        assert_ne!(loaded(), before);
    }
}
