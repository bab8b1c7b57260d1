// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slot of the cache, its state (the state of a region in one atomic), lists of slots, and the
//! key by which a region is found.

pub mod key;
pub mod link;
pub mod list;
pub mod slot;
pub mod state;
