// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's objects for memory over a verbs protection domain, fi_mr(3): domain, region, event
//! queue, and a libfabric provider that opens them.
//!
//! Each object begins with libfabric's structure and continues with the library's private fields.
//! libfabric's `static inline` calls therefore work on these objects as the library's calls do. The
//! functions that the tables point to are in `capi/fabric/`. The call that opens a domain or a queue
//! passes the tables in ([`object::Tables`]).
//!
//! Adjacent buffers form a run, and a region has one kernel registration for each run
//! ([`region::Region`]). Remote peers find a region by a key, which the device or the application
//! chooses. On either side [`keys::Keys`] turns the application's key into the device's, and a
//! [`raw_key`] carries the device's keys from one side to the other.

#[cfg(test)]
#[path = "../../ctests/fuzz/inputs.rs"]
mod fuzz_inputs;

mod access;
pub mod attributes;
mod background;
pub mod close;
pub mod domain;
pub mod errors;
mod keys;
pub mod mode;
pub mod monitor;
pub mod object;
mod piece;
pub mod provider;
pub mod queue;
pub mod raw_key;
pub mod refusals;
pub mod region;
pub mod register;
pub mod segment;
mod workers;
