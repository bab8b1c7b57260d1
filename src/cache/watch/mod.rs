// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch of the memory of the cache's regions. `docs/proof.md` proves that no change goes
//! unnoticed; the names in brackets are its lemmas.
//!
//! - `ring.rs`: the events (L1).
//! - `userfaultfd.rs`: the kernel's interface. `event_reader.rs`: the thread that reads the events
//!   (W1).
//! - `watch_fd.rs`: the descriptor number by which the program's threads ask the fence (W2, W4), and
//!   the table in which it is valid.
//! - `watcher.rs`: the watch as the cache uses it, how much may be watched, and whether a hit needs
//!   the fence (W3). `failure.rs`: why there is no watch.
//! - `in_flight.rs`: whether the kernel counts the changes in flight (W2).
//! - `calls.rs`: whether the program's memory calls reach the library (W6), and who must be told of
//!   them. Their hooks are in `life/change.rs`, because they end regions (W5).

pub mod calls;
pub mod event_reader;
pub mod failure;
mod in_flight;
pub mod ring;
pub mod userfaultfd;
pub mod watch_fd;
pub mod watcher;
