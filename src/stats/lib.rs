// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's output for people: lines on standard error, and counters.
//!
//! Not here: the trace of every call (`trace`), failures in words (`mr/explain.rs`), and the C functions that return all this
//! (`capi/rdmamr.rs`).

mod counters;
pub mod live;
pub mod log;
pub use counters::*;
pub use rdmamr_sys::text;
