// SPDX-License-Identifier: MIT OR Apache-2.0
//! The atomics of the pool's core: the processor's, or those of loom, which tries every interleaving.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};
