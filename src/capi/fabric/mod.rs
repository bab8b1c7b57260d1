// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric family.
//!
//! - `tables`: the tables of functions of this library's objects.
//! - `functions`: the functions in those tables.
//! - `libfabric`: libfabric's calls as symbols. `extensions`: the calls that libfabric does not have.
//! - `provider`: the entry for libfabric's provider interface.
//! - `monitor`: the memory monitor for libfabric's registration cache.
//!
//! `fi_mr.sh` makes `include/rdmamr/fi_mr.h` from `abi/libfabric.rs`, `libfabric.rs` and
//! `extensions.rs`.

mod extensions;
mod functions;
mod libfabric;
mod monitor;
mod provider;
mod tables;
