// SPDX-License-Identifier: MIT OR Apache-2.0
//! The look-ups: a region for a registration, without a lock (`table.rs`); the regions at an
//! address, under the lock (`tree.rs`); whether any region lies near an address (`filter.rs`).

pub mod filter;
pub mod table;
pub mod tree;
