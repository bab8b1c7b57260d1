// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's objects for memory over a verbs protection domain, fi_mr(3): domain, region, event queue, and
//! a provider of libfabric that opens them.
//!
//! The objects are libfabric's own structures with something behind, so that its `static inline` calls
//! work on them as ours do. What their tables of functions point to is in `capi/fabric/`; a table comes
//! in with the call that opens a domain or a queue ([`Tables`]).
//!
//! A region is one registration of the kernel for each run of buffers that touch ([`region::Region`]). Its
//! peers find it by a key: the device's own, or one that the application chose, which is turned into the
//! device's by [`keys::Keys`] on either side, with [`raw_key`] to travel between them.

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

#[cfg(test)]
pub use attributes::ATTRIBUTE_SIZES;
pub use close::{close, settle};
pub use domain::Domain;
pub use queue::Queue;
pub use region::Region;
pub use register::{Publish, register};

use crate::abi::libfabric::*;
use crate::abi::libfabric_provider::domain_slots;
use crate::mr::state::{self, State};
use errors::{Failure, invalid};

/// What the objects can do.
pub struct Tables {
    pub domain: fi_ops,
    pub domain_rest: domain_slots,
    pub memory: fi_ops_mr,
    pub region: fi_ops,
    pub queue: fi_ops,
    pub queue_rest: fi_ops_eq,
}

/// The process that an object was made in.
#[derive(Clone, Copy)]
pub struct Process(&'static State);

impl Process {
    /// This one.
    fn this() -> Process {
        Process(state::current())
    }

    /// Refuses an object of the process that this one was forked from: its registrations are of the parent's
    /// memory, and its locks may be held by threads that are not here.
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
