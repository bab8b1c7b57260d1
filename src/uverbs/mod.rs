// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's uverbs: which call registers and deregisters memory, in which bytes, on which driver.
//! Not what a region means, nor what C sees.

mod bundle;
pub mod context;
pub mod driver;
mod kernel;
pub mod mr;
#[cfg(test)]
mod scripted;

pub use kernel::{Kernel, Uverbs, UverbsOfHelper};
