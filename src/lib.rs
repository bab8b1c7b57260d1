// SPDX-License-Identifier: MIT OR Apache-2.0
//! librdmamr: takes over memory registration in RDMA programs, and nothing else.
//!
//! This crate is the cdylib: the C symbols, their version nodes, and the boundary that no panic
//! crosses (`capi/`). The layers below are crates of the workspace, each in a folder beside this
//! file, and each imports only what its `Cargo.toml` names. docs/design.md draws them.

#![warn(missing_docs)]

#[cfg_attr(test, allow(unused, reason = "unit tests replace no function"))]
mod capi;
