// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `rdmamr`: runs programs under the library, and says what their registrations cost.
#[path = "../../src/trace/format.rs"]
#[allow(dead_code, reason = "the library writes what this only reads")]
mod format;

fn main() {}
