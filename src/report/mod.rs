// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's output for people: lines on standard error, counters, and failures in words.
//!
//! Not here: the trace of every call (`trace`), and the C functions that return all this
//! (`capi/rdmamr.rs`).

pub mod explain;
pub mod live;
pub mod log;
pub mod stats;
pub mod text;
