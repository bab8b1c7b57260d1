// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the library finds a folder for the live page of a process like this one.

use super::check::Check;
use crate::top::pages;

pub fn check() -> Check {
    const SUBJECT: &str = "live page";
    let Some(why) = pages::obstacle() else {
        return Check::ok(SUBJECT, "there is a folder for it");
    };
    Check::warning(SUBJECT, why)
        .meaning(
            "A process of this user has no live page: rdmamr top does not show its counters, and rdmamr trace \
             --pid does not reach it.",
        )
        .fix("as root, remove what is in the way (or: set XDG_RUNTIME_DIR to a folder of this user's on a tmpfs)")
}
