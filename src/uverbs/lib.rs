// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's uverbs: which call registers and deregisters memory, in which bytes, on which
//! driver. The meaning of a region and C's view of it are in the layers above.

pub mod bundle;
pub mod context;
pub mod driver;
#[cfg(test)]
#[path = "../../ctests/fuzz/inputs.rs"]
mod fuzz_inputs;
pub mod kernel;
pub mod mr;
#[cfg(test)]
mod scripted_tests;

pub use kernel::{Ioctl, Kernel, Uverbs, UverbsOfHelper, ioctl};
