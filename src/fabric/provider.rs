// SPDX-License-Identifier: MIT OR Apache-2.0
//! A libfabric provider, `rdmamr`. It registers memory on each verbs device, and does nothing else.

mod devices;
mod fabric;
mod info;
mod libfabric;
mod name;

pub use devices::DeviceOfDomain;
pub use fabric::Fabric;
pub use info::getinfo;
pub use libfabric::serves;
pub use name::NAME;
