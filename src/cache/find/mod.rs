// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a region is found: by a registration without a lock (`table.rs`), by address under the lock
//! (`index.rs`), and whether there is one near an address at all (`filter.rs`).

pub mod filter;
pub mod index;
pub mod table;
