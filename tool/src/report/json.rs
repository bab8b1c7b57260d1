// SPDX-License-Identifier: MIT OR Apache-2.0
//! A report as JSON, in its own shape; rdmamr_trace(5) describes it.
use super::units;
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write;

pub fn render(report: &impl Serialize) -> Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(report)?) + "\n")
}

/// Escapes the characters that JSON allows in a string but a terminal obeys. Apart from the ends of
/// lines, such characters occur in strings only.
pub fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && units::controls(c) {
            // All of them have 16 bits.
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}
