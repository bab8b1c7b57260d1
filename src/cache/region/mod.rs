// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slot of the cache, and its state (the state of a region in one atomic).

pub mod slot;
pub mod state;
