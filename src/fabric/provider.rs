// SPDX-License-Identifier: MIT OR Apache-2.0
//! A libfabric provider, `rdmamr`. It registers memory on each verbs device, and does nothing else.

mod devices;
mod fabric;
mod info;
mod libfabric;

pub use devices::DeviceOfDomain;
pub use fabric::Fabric;
pub use info::getinfo;
pub use libfabric::serves;

use core::ffi::CStr;

/// The name of the provider and of its fabric.
pub const NAME: &CStr = c"rdmamr";
