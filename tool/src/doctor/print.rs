// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer, for people and for programs.

use super::check::{Check, State};
use crate::report::json;
use crate::report::units::{plural, printable};
use crate::style::{self, wrap};
use serde::Serialize;
use std::fmt::Write as _;

/// The column at which the text of a check begins.
const INDENT: usize = 9;

/// The JSON. `schema` increases if a reader of an earlier version would be misled.
#[derive(Serialize)]
struct Answer<'a> {
    schema: u32,
    state: State,
    checks: &'a [Check],
}

/// Prints the checks, and returns the worst state among them.
pub fn print(checks: &[Check], as_json: bool) -> anyhow::Result<State> {
    let states = checks.iter().map(|check| check.state);
    let worst = states.max().unwrap_or(State::Ok);
    if as_json {
        let answer = Answer {
            schema: 1,
            state: worst,
            checks,
        };
        style::print(&json::render(&answer)?)?;
        return Ok(worst);
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count() as u64;
    let counts = format!(
        "\n{} ok, {}, {}\n",
        count(State::Ok),
        plural(count(State::Warning), "warning", "warnings"),
        plural(count(State::Failure), "failure", "failures")
    );
    style::print(&(paragraphs(checks) + &counts))?;
    Ok(worst)
}

/// The checks as text.
pub fn paragraphs(checks: &[Check]) -> String {
    checks.iter().map(paragraph).collect()
}

fn paragraph(check: &Check) -> String {
    let (word, style) = match check.state {
        State::Ok => ("ok", style::GOOD),
        State::Warning => ("warning", style::DOUBTFUL),
        State::Failure => ("FAILURE", style::BAD),
    };
    let device = check.device.iter().map(|device| format!(" {device}"));
    let device: String = device.collect();
    let (subject, strong) = (check.subject, style::STRONG);
    let first = wrap(&format!("{subject}{device}: {}", check.found), INDENT);
    // The subject is printed bold; no line ends inside it.
    let first = first.replacen(subject, &format!("{strong}{subject}{strong:#}"), 1);
    let mut text = format!("{style}{word:INDENT$}{style:#}{first}\n");
    if let Some(meaning) = &check.meaning {
        let _ = writeln!(text, "{:INDENT$}{}", "", wrap(meaning, INDENT));
    }
    if let Some(fix) = &check.fix {
        // The command stays on one line, so that people can copy it.
        let fix = printable(fix);
        let _ = writeln!(text, "{:INDENT$}-> {strong}{fix}{strong:#}", "");
    }
    text
}
