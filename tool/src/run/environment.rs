// SPDX-License-Identifier: MIT OR Apache-2.0
//! The variables of other libraries and of the dynamic linker that the program gets, with the user's
//! own values in them. The program's children inherit them, and nobody has read those programs. So
//! each value serves every program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The names in a list without those of that file: an `rdmamr run` around this one has added it, and
/// the linker takes no more than 12 modules. A name without a slash is the linker's to find.
fn others<'a>(list: &'a OsStr, separators: &[u8], file: &Path) -> impl Iterator<Item = &'a [u8]> {
    let about = |path: &Path| path.metadata().map(|it| (it.dev(), it.ino())).ok();
    let this = about(file);
    let is_this = move |name: &&[u8]| {
        name.contains(&b'/') && this.is_some() && about(Path::new(OsStr::from_bytes(name))) == this
    };
    let names = list.as_bytes().split(|byte| separators.contains(byte));
    names.filter(move |name| !name.is_empty() && !is_this(name))
}

/// LD_PRELOAD: the library, behind the runtimes of sanitizers that the user preloads. They replace
/// more functions than the library does, and AddressSanitizer ends a program in which it is not first.
pub fn preloads(library: &Path, given: &OsStr) -> OsString {
    let (first, last): (Vec<_>, Vec<_>) =
        others(given, b": ", library).partition(|name| is_sanitizer(name));
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
    let first = [module.as_os_str().as_bytes()].into_iter();
    let all: Vec<_> = first.chain(others(given, b":", module)).collect();
    OsString::from_vec(all.join(&b':'))
}

/// ASAN_OPTIONS: the library may be loaded before the runtime. The runtime itself is not preloaded:
/// children without it would be checked too, and fail for their leaks (Perl).
pub fn sanitizer_options(mut given: OsString) -> OsString {
    const OPTION: &str = "verify_asan_link_order=";
    let mut options = given.as_bytes().split(|byte| b": ,".contains(byte));
    if !options.any(|option| option.trim_ascii_start().starts_with(OPTION.as_bytes())) {
        let separator = if given.is_empty() { "" } else { ":" };
        given.push(format!("{separator}{OPTION}0"));
    }
    given
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
    fn a_file_that_is_in_the_list_is_not_added_again() {
        let folder = tempfile::tempdir().unwrap();
        let [module, other] = ["m.so", "o.so"].map(|name| folder.path().join(name));
        std::fs::write(&module, "").unwrap();
        std::os::unix::fs::symlink(&module, &other).unwrap();
        let given = [
            OsStr::new("m.so:/x.so"),
            other.as_os_str(),
            module.as_os_str(),
        ];
        let wanted = [module.as_os_str(), OsStr::new("m.so:/x.so")];
        let [given, wanted] = [&given[..], &wanted].map(|list| list.join(OsStr::new(":")));
        assert_eq!(modules(&module, &given), wanted);
        assert_eq!(preloads(&module, &given), wanted);
    }

    #[test]
    fn what_the_user_says_stays() {
        let options = |given: &str| sanitizer_options(given.into()).into_string().unwrap();
        assert_eq!(
            options("verify_asan_link_order=1"),
            "verify_asan_link_order=1"
        );
        assert_eq!(options("a=1"), "a=1:verify_asan_link_order=0");
    }
}
