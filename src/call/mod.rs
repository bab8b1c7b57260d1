// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of a call, as types: the device and the domain that it names, what it asks for, why it
//! failed, and how it was done. The floors above forward these.
//!
//! Not here: what any call does.

mod access;
mod domain;
mod error;
mod outcome;
mod request;

pub use access::Access;
pub use domain::{Context, Pd};
pub use error::{Error, PANICKED};
pub use outcome::{How, Registered};
pub use request::{Request, Reregistration};
