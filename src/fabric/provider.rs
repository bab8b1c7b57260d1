// SPDX-License-Identifier: MIT OR Apache-2.0
//! A provider of libfabric, `rdmamr`: memory registration on each verbs device, and nothing else.

mod devices;
mod fabric;
mod info;
mod libfabric;

pub use fabric::{Fabric, Held};
pub use info::getinfo;
pub use libfabric::serves;

use core::ffi::CStr;

/// The provider's name, and that of its fabric.
pub const NAME: &CStr = c"rdmamr";
