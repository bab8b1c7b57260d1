// SPDX-License-Identifier: MIT OR Apache-2.0
//! Valgrind and AddressSanitizer, with which the library works in part.

#[path = "../../../src/sys/valgrind.rs"]
mod valgrind;

use super::check::Check;
use std::env;

const SUBJECT: &str = "instruments";

/// `None` without such a tool.
pub fn check() -> Option<Check> {
    if valgrind::is_running() {
        return Some(
            Check::warning(SUBJECT, "this process runs under valgrind")
                .meaning("The library starts no thread there, so it reuses no region: each registration is plain."),
        );
    }
    let of = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let (options, preload) = (of("ASAN_OPTIONS")?, of("LD_PRELOAD").unwrap_or_default());
    let found = "ASAN_OPTIONS is set";
    // Without a runtime in LD_PRELOAD, the program's own comes after the library.
    let is_behind = preload.find("librdmamr").is_some_and(|library| {
        let runtime = preload.find("asan");
        runtime.is_none_or(|runtime| library < runtime)
    });
    if !is_behind || options.contains("verify_asan_link_order=0") {
        return Some(Check::ok(SUBJECT, found));
    }
    let found = format!("{found}, and LD_PRELOAD names the library first");
    Some(
        Check::warning(SUBJECT, found)
            .meaning("AddressSanitizer ends a program in which its runtime does not come first.")
            .fix("rdmamr run -- PROGRAM (or ASAN_OPTIONS=verify_asan_link_order=0)"),
    )
}
