// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's registration cache, which asks the pool's watch before each reuse.

pub use crate::monitor::{Ended, is_valid, notify, stop, subscribe, unsubscribe};

/// Starts the watch. Returns false if no memory can be watched: userfaultfd is refused, or this is
/// a child of a process that had a pool.
pub fn start() -> bool {
    super::turn_pool_on();
    crate::monitor::start()
}
