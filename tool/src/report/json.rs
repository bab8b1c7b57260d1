// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as JSON. Its shape is that of [`Report`], and rdmamr_trace(5) describes it.
use super::shape::Report;
use anyhow::Result;

pub fn render(report: &Report) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}
