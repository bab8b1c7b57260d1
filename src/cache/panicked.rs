// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the library does after a panic, on whichever thread.

use crate::instance::distrust;
use rdmamr_config::disable_for_good;
use rdmamr_mr::{Error, PANICKED};
use rdmamr_stats::log::{self, Level};
use std::panic::catch_unwind;

/// Disables the library for good: its tables may be half changed. From now on it forwards every
/// call, and the cache hands out no region again. Returns the error of the call that panicked.
#[cold]
pub fn panicked() -> Error {
    disable_for_good();
    distrust();
    // The line is written behind the boundary too.
    let _ = catch_unwind(|| log::line(Level::Error, format_args!("{PANICKED}")));
    Error::Panic
}
