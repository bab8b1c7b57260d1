// SPDX-License-Identifier: MIT OR Apache-2.0
//! The atomics of the cache's core: those of `core`, or loom's, with which a test tries every
//! interleaving.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
