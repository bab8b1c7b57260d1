// SPDX-License-Identifier: MIT OR Apache-2.0
//! Colours. `anstream` prints them on a terminal only, and never if `NO_COLOR` is set.

use anstyle::{AnsiColor, Style};

pub const GOOD: Style = AnsiColor::Green.on_default();
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const STRONG: Style = Style::new().bold();
