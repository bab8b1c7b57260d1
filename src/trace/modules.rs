// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where code is in this process, so that a caller's address can be told as a place in a file, later.

use core::ffi::{CStr, c_int, c_void};
use core::fmt::Write;

/// A number that changes with the files that are loaded.
pub fn loaded() -> u64 {
    let mut number = 0u64;
    // SAFETY: `count` is called with the pointer that is passed here, while it is valid.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut number).cast()) };
    number
}

unsafe extern "C" fn count(
    file: *mut libc::dl_phdr_info,
    _size: usize,
    number: *mut c_void,
) -> c_int {
    // SAFETY: the linker's own, for the time of the call.
    let file = unsafe { &*file };
    // SAFETY: that of `loaded`.
    unsafe { *number.cast::<u64>() = file.dlpi_adds ^ file.dlpi_subs << 32 };
    1
}

/// The files and their code, in lines as the trace has them.
pub fn list() -> String {
    let mut lines = String::new();
    // SAFETY: `add` is called with the pointer that is passed here, while it is valid.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut lines).cast()) };
    lines
}

unsafe extern "C" fn add(file: *mut libc::dl_phdr_info, _size: usize, lines: *mut c_void) -> c_int {
    // SAFETY: the linker's own, for the time of the call.
    let file = unsafe { &*file };
    // SAFETY: those of `list`.
    let lines = unsafe { &mut *lines.cast::<String>() };
    if file.dlpi_phdr.is_null() || file.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: not null, so a string.
    let name = unsafe { CStr::from_ptr(file.dlpi_name) }.to_string_lossy();
    let path = if name.is_empty() {
        // The program itself.
        let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        program.to_string_lossy().into_owned()
    } else {
        name.into_owned()
    };
    // SAFETY: that many follow.
    let headers = unsafe { core::slice::from_raw_parts(file.dlpi_phdr, file.dlpi_phnum.into()) };
    let code = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0
    };
    for header in headers.iter().filter(code) {
        let start = file.dlpi_addr + header.p_vaddr;
        let end = start + header.p_memsz;
        let _ = writeln!(lines, "{start:x} {end:x} {:x} {path}", file.dlpi_addr);
    }
    0
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
