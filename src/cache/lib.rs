// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache of regions: the meaning of `ibv_reg_mr_relaxed` and its kin on Linux, which has had
//! no FMR since 5.8.
//!
//! A relaxed region is an ordinary kernel region over whole pages. When the program releases the
//! region, the region stays registered, idle in this process's cache. The cache hands it out again
//! as long as its translation is provably unchanged. `docs/proof.md` has the argument, in numbered
//! lemmas, each with the code that upholds it and the test that fails without that code. Under
//! `RDMAMR_CACHE` the cache also serves `ibv_reg_mr` (`dispatch/reuse.rs`): the program then holds an
//! object that stands for a region (`mr/object.rs`).
//!
//! - `dispatch/`: the entry of each call that the cache may serve. `admission.rs`: whether it may.
//! - `region/`: a slot with the key by which it is found, and its state (one atomic).
//! - `find/`: the look-up without a lock, the tree by address, the filter of memory without
//!   regions.
//! - `life/`: the events in the life of a region (hit, miss, change, release, end, flush), its owner, and
//!   the cleaner.
//! - `watch/`: userfaultfd, the reader of its events, the ring, the fence.
//! - `released.rs`: the ranges that were registered plainly and released, and may come back.
//! - `regions.rs`: the memory that all threads share, and the operations on it without the lock.
//!   `locked.rs`: the operations under the lock.
//! - `lock.rs`: the lock. `mapping.rs`: the memory of the arrays. `noted.rs`: the ranges of calls under
//!   way; `counted.rs`: the number of those without one. `account.rs`: how much may be idle.
//! - `instance.rs`: the cache of this process; `start.rs` makes it, if it can run here
//!   (`permitted.rs`), `ended.rs` ends it for good.

/// The second size; the first one in tests and in the models, whose few regions must fill the tables.
macro_rules! tiny_or {
    ($tiny:expr, $size:expr) => {
        if cfg!(any(test, feature = "tiny")) {
            $tiny
        } else {
            $size
        }
    };
}

pub mod account;
pub mod admission;
mod counted;
pub mod dispatch;
pub mod ended;
mod find;
pub mod instance;
pub mod life;
mod lock;
pub mod locked;
#[cfg(all(test, loom))]
mod loom_tests;
mod mapping;
#[cfg(all(test, not(loom)))]
mod model_tests;
mod noted;
pub mod permitted;
pub mod region;
pub mod regions;
pub mod released;
pub mod start;
pub mod watch;
