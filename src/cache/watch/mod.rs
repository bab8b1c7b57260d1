// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch of the memory of the cache's regions. `docs/proof.md` has the argument that no change
//! passes unseen; the lemmas in brackets are its.
//!
//! - `log.rs`: the log of changes, and which changes are under way (L1, L2).
//! - `userfaultfd.rs`: the kernel's interface. `event_reader.rs`: the thread that reads the events
//!   (W1).
//! - `watch_fd.rs`: the program's number of the file, by which the fence asks (W2, W4).
//! - `watcher.rs`: the watch as the cache uses it; `failure.rs`: why there is none; `mappings.rs`:
//!   how much may be watched. `one_thread.rs`: whether a hit needs the fence (W3).
//! - `in_place.rs`: whether the program's memory calls come here (W6). The calls themselves are the
//!   cache's, since they end its regions (`life/change.rs`, W5).
//!   `listeners.rs`: who must hear of them.
//! - `gate.rs`: before Linux 6.16 one file can unregister what another has registered.
//! - `extent.rs`: how far the watch of a region reaches. `dropping.rs`: the one exception.

pub mod dropping;
pub mod event_reader;
pub mod extent;
mod failure;
mod gate;
pub mod in_place;
pub mod listeners;
pub mod log;
#[cfg(all(test, not(loom)))]
mod log_tests;
mod mappings;
mod one_thread;
pub mod userfaultfd;
pub mod watch_fd;
pub mod watcher;
