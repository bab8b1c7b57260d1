// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric family: the tables of functions of our objects (`tables`), what is in them (`functions`, and `traced`
//! with the trace), libfabric's calls as symbols (`libfabric`), our own beside them (`own`), the provider's entry
//! (`provider`), and the monitor for libfabric's registration cache (`monitor`).
//!
//! `include/rdmamr/fi_mr.h` is made of `abi/libfabric.rs`, `libfabric.rs` and `own.rs`, by `fi_mr.sh`.

mod functions;
mod libfabric;
mod monitor;
mod own;
mod provider;
mod tables;
mod traced;
