// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's objects for memory over a verbs protection domain, fi_mr(3): domain, region, event
//! queue, and a libfabric provider that opens them.
//!
//! Each object begins with libfabric's own structure and continues with the library's private
//! fields. libfabric's `static inline` calls therefore work on these objects as the library's own
//! calls do. The functions that the tables point to are in `capi/fabric/`. The call that opens a
//! domain or a queue passes the tables in ([`Tables`]).
//!
//! Buffers that touch form a run, and a region has one kernel registration for each run
//! ([`region::Region`]). Peers find a region by a key. The key is the device's own or the
//! application's choice. On either side [`keys::Keys`] turns the application's key into the
//! device's, and a [`raw_key`] carries the device's keys from one side to the other.

pub mod access;
pub mod attributes;
mod background;
mod close;
pub mod domain;
pub mod errors;
pub mod fast;
mod foreign_queue;
mod keys;
pub mod monitor;
pub mod provider;
pub mod queue;
pub mod raw_key;
mod region;
mod register;
mod rest;
pub mod segment;
mod workers;

pub use close::{close, settle};
pub use domain::Domain;
pub use queue::Queue;
pub use region::Region;
pub use register::{Publish, register};

use crate::abi::libfabric::*;
use crate::abi::libfabric_provider::domain_slots;
use crate::dispatch::state::{self, State};
use errors::{Failure, invalid};

/// The tables of functions of all objects.
pub struct Tables {
    pub domain: fi_ops,
    pub domain_rest: domain_slots,
    pub memory: fi_ops_mr,
    pub region: fi_ops,
    pub queue: fi_ops,
    pub queue_rest: fi_ops_eq,
}

/// The process in which an object was made.
#[derive(Clone, Copy)]
pub struct Process(&'static State);

impl Process {
    /// The calling process.
    fn this() -> Process {
        Process(state::current())
    }

    /// Refuses an object that the parent process made before fork: the object's registrations
    /// concern the parent's memory, and a thread that does not exist in the child may hold its
    /// locks.
    #[inline(always)]
    fn check(self) -> Result<(), Failure> {
        match state::existing() {
            Some(state) if core::ptr::eq(state, self.0) => Ok(()),
            _ => Err(invalid(
                "the object belongs to the process that this one was forked from",
            )),
        }
    }
}
