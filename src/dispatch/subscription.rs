// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's registration cache, which asks the cache's watch before each reuse.

pub use crate::monitor::{Ended, is_valid, notify, stop, subscribe, unsubscribe};

/// Starts the watch. Returns false if no memory can be watched: userfaultfd is refused, or this is
/// a child of a process that had a cache.
pub fn start() -> bool {
    super::listeners::turn_cache_on();
    crate::monitor::start()
}
