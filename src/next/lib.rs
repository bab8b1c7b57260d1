// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libraries underneath: their functions, and the objects of libibverbs that a call names.

mod domain;
mod functions;

pub use domain::{Context, Pd};
pub use functions::*;
