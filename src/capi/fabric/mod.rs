// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric family.
//!
//! - `tables`: the tables of functions of this library's objects.
//! - `functions`, and `traced` while the trace is on: the functions in those tables.
//! - `libfabric`: libfabric's calls as symbols. `own`: this library's own calls beside them.
//! - `provider`: the entry for libfabric's provider interface.
//! - `monitor`: the memory monitor for libfabric's registration cache.
//!
//! `fi_mr.sh` makes `include/rdmamr/fi_mr.h` from `abi/libfabric.rs`, `libfabric.rs` and `own.rs`.

mod functions;
mod libfabric;
mod monitor;
mod own;
mod provider;
mod tables;
mod traced;
