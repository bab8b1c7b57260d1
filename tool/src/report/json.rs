// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as JSON, in the shape of [`Report`]; rdmamr_trace(5) describes it.
use super::shape::Report;
use anyhow::Result;

pub fn render(report: &Report) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}
