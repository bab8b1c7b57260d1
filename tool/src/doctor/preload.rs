// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the library itself can be preloaded.

use super::check::Check;
use crate::library;
use crate::report::units::shown;
use std::process::Command;

/// Preloads the library into a program that does nothing, and makes the library print a line.
pub fn check() -> Check {
    const SUBJECT: &str = "library";
    let library = match library::find() {
        Ok(library) => library,
        Err(error) => {
            let text = format!("{error:#}");
            let (found, looked) = text.split_once('\n').unwrap_or((&text, ""));
            let looked: Vec<_> = looked.lines().map(str::trim).collect();
            return Check::failure(SUBJECT, found)
                .meaning(looked.join("; "))
                .fix("make install PREFIX=/usr");
        }
    };
    let path = shown(&library.path);
    let tried = Command::new("/bin/true")
        .env("LD_PRELOAD", &library.path)
        .env("RDMAMR_STATS", "stderr")
        .env("RDMAMR_LOG", "debug")
        .output();
    let said = match tried {
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => return Check::failure(SUBJECT, format!("/bin/true cannot be run: {error}")),
    };
    if said.contains("has no statistics") {
        return Check::ok(SUBJECT, format!("{path} loads"));
    }
    let said = said.lines().next().unwrap_or("nothing");
    let found = format!("{path} cannot be preloaded; the linker says: {said}");
    Check::failure(SUBJECT, found)
        .meaning("It was built for another system, or it is damaged.")
        .fix("make && make install PREFIX=/usr")
}
