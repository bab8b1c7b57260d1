// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that have the code of the recorded calls. A reader later finds a caller's place in a
//! file by their addresses.
//!
//! Whoever holds the linker's locks may wait for a call (`sys/loaded_files.rs`), so the linker is not
//! asked for a list. A file joins the list when a recorded call comes from it: an address in the file
//! finds it without a lock.

use super::python::Python;
use core::num::NonZeroUsize;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use rdmamr_sys::loaded_files::{self, Object};

/// The files, in the order in which they were found. Lists are never freed: each is longer than the
/// one before, or another file has taken a place.
#[derive(Clone, Default)]
pub struct ModuleList {
    /// The process that made the list.
    pid: u32,
    files: Vec<Module>,
    /// The interpreter among the files.
    pub python: Option<Python>,
}

#[derive(Clone)]
struct Module {
    start: u64,
    end: u64,
    /// The linker's name.
    name: String,
    /// The trace's line.
    line: String,
}

static LAST: AtomicPtr<ModuleList> = AtomicPtr::new(null_mut());

/// The last list, of this process or its parent.
pub fn last() -> Option<&'static ModuleList> {
    // SAFETY: the pointer is null or to a list, and lists are never freed.
    unsafe { LAST.load(Acquire).as_ref() }
}

/// The list with the files of these addresses. Calls on the thread's stack return there, so the files
/// stay loaded. `anew`: another file may be where one was.
pub fn with(addresses: &[u64], anew: bool) -> Option<&'static ModuleList> {
    let known = last();
    let mut longer: Option<ModuleList> = None;
    for &address in addresses {
        let has = |list: &ModuleList| list.file(address).is_some();
        if !anew && longer.as_ref().or(known).is_some_and(has) {
            continue;
        }
        // Before glibc 2.35 the linker is asked, whose lock another thread may have held at the fork.
        let is_parents = known.is_some_and(|list| list.pid != std::process::id());
        if is_parents && loaded_files::linker().is_none() {
            continue;
        }
        let Some(object) = NonZeroUsize::new(address as usize).and_then(Object::with) else {
            continue;
        };
        let name = object.name();
        let same = |it: &Module| it.start == object.start as u64 && it.name == name;
        let is_it = |list: &ModuleList| list.file(address).is_some_and(same);
        if !longer.as_ref().or(known).is_some_and(is_it) {
            let list = longer.get_or_insert_with(|| known.cloned().unwrap_or_default());
            list.add(&object, name);
        }
    }
    let Some(mut longer) = longer else {
        return known;
    };
    longer.pid = std::process::id();
    let longer = Box::into_raw(Box::new(longer));
    let known = known.map_or(null_mut(), |list| (&raw const *list).cast_mut());
    let published = LAST.compare_exchange(known, longer, AcqRel, Relaxed);
    if published.is_err() {
        // SAFETY: the box was made above, and nothing uses it.
        drop(unsafe { Box::from_raw(longer) });
        return with(addresses, anew);
    }
    last()
}

impl ModuleList {
    fn file(&self, address: u64) -> Option<&Module> {
        let has = |file: &&Module| (file.start..file.end).contains(&address);
        self.files.iter().find(has)
    }

    fn add(&mut self, object: &Object, name: String) {
        let (start, end, base) = (object.start as u64, object.end as u64, object.base());
        let mut line = format!("{start:x} {end:x} {base:x} {name}");
        if name.is_empty() {
            let program = std::fs::read_link("/proc/thread-self/exe").unwrap_or_default();
            line += &program.to_string_lossy();
        }
        line.push('\n');
        if self.python.is_none() && line.contains("python") {
            self.python = Python::of(object);
        }
        self.files
            .retain(|old| old.end <= start || old.start >= end);
        self.files.push(Module {
            start,
            end,
            name,
            line,
        });
    }

    /// The files in the trace's lines.
    pub fn lines(&self) -> String {
        self.files.iter().map(|file| file.line.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_code_is_in_the_list_once() {
        let here = this_code_is_in_the_list_once as *const () as u64;
        let (first, second) = (with(&[here], true), with(&[here, here, 1], true));
        assert!(core::ptr::eq(first.unwrap(), second.unwrap()));
        let lines = second.unwrap().lines();
        let mut lines = lines.lines().filter(|line| {
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
    fn a_file_takes_the_place_of_another() {
        let here = a_file_takes_the_place_of_another as *const () as u64;
        let mut list = with(&[here], false).unwrap().clone();
        let object = Object::with(NonZeroUsize::new(here as usize).unwrap()).unwrap();
        list.add(&object, "other.so".into());
        assert_eq!(list.file(here).unwrap().name, "other.so");
        assert_eq!(list.lines().matches("other.so\n").count(), 1);
    }
}
