// SPDX-License-Identifier: MIT OR Apache-2.0
//! The variables of other libraries and of the dynamic linker that the program gets, with the user's
//! own values in them. The program's children inherit them, and nobody has read those programs. So
//! each value serves every program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// LD_PRELOAD: the library, behind the runtimes of sanitizers that the user preloads. They replace
/// more functions than the library does, and AddressSanitizer ends a program in which it is not first.
pub fn preloads(library: &Path, given: &OsStr) -> OsString {
    let names = given
        .as_bytes()
        .split(|byte| b": ".contains(byte))
        .filter(|name| !name.is_empty());
    let (first, last): (Vec<_>, Vec<_>) = names.partition(|name| is_sanitizer(name));
    let library = library.as_os_str().as_bytes();
    OsString::from_vec([first, vec![library], last].concat().join(&b':'))
}

/// Whether a library is a sanitizer's runtime, of gcc or clang.
fn is_sanitizer(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let of_gcc = ["asan", "hwasan", "lsan", "tsan", "ubsan"];
    let begins = |start: String| name.starts_with(start.as_bytes());
    begins("libclang_rt.".into()) || of_gcc.iter().any(|it| begins(format!("lib{it}.so")))
}

/// LD_AUDIT: the module, in front of the user's.
pub fn modules(module: &Path, given: &OsStr) -> OsString {
    let given = Some(given).filter(|given| !given.is_empty());
    let all: Vec<_> = [Some(module.as_os_str()), given]
        .into_iter()
        .flatten()
        .collect();
    all.join(OsStr::new(":"))
}

/// GLIBC_TUNABLES: with a module for LD_AUDIT, what the libraries of a program need in static
/// thread-local storage must fit into this many bytes (512 by default). The value serves jemalloc;
/// each thread pays for it with part of its stack. The module itself raises it for a program that
/// needs more (src/audit/restart.rs, which knows this value).
pub fn tunables(given: OsString) -> OsString {
    appended(given, "glibc.rtld.optional_static_tls", "4096")
}

/// ASAN_OPTIONS: the library may be loaded before the runtime. The runtime itself is not preloaded:
/// children without it would be checked too, and fail for their leaks (Perl).
pub fn sanitizer_options(given: OsString) -> OsString {
    appended(given, "verify_asan_link_order", "0")
}

/// Appends `name=value` to a list with colons, unless the list has the name.
fn appended(mut list: OsString, name: &str, value: &str) -> OsString {
    let assigns = |part: &[u8]| {
        let rest = part.trim_ascii_start().strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b"="))
    };
    if !list
        .as_bytes()
        .split(|byte| b": ,".contains(byte))
        .any(assigns)
    {
        if !list.is_empty() {
            list.push(":");
        }
        list.push(format!("{name}={value}"));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_of_a_sanitizer_stays_first() {
        let library = Path::new("/l/librdmamr.so.1");
        let with = |given: &str| preloads(library, OsStr::new(given)).into_string().unwrap();
        assert_eq!(with(""), "/l/librdmamr.so.1");
        assert_eq!(with("a.so b.so:"), "/l/librdmamr.so.1:a.so:b.so");
        assert_eq!(
            with("a.so:/x/libasan.so.8"),
            "/x/libasan.so.8:/l/librdmamr.so.1:a.so"
        );
        let of_clang = "/x/libclang_rt.tsan-x86_64.so";
        assert_eq!(with(of_clang), format!("{of_clang}:/l/librdmamr.so.1"));
    }

    #[test]
    fn what_the_user_says_stays() {
        let with = |given: &str| tunables(given.into()).into_string().unwrap();
        let ours = "glibc.rtld.optional_static_tls=4096";
        assert_eq!(with(""), ours);
        assert_eq!(
            with("glibc.malloc.check=3"),
            format!("glibc.malloc.check=3:{ours}")
        );
        let own = "glibc.rtld.optional_static_tls=9000:glibc.malloc.check=3";
        assert_eq!(with(own), own);
        let options = |given: &str| sanitizer_options(given.into()).into_string().unwrap();
        assert_eq!(
            options("verify_asan_link_order=1"),
            "verify_asan_link_order=1"
        );
        assert_eq!(options("a=1"), "a=1:verify_asan_link_order=0");
    }
}
