// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch of the memory of the cache's regions. `docs/proof.md` proves that no change goes
//! unnoticed; the names in brackets are its lemmas.
//!
//! - `ring.rs`: the events (L1).
//! - `userfaultfd.rs`: the kernel's interface. `event_reader.rs`: the thread that reads the events
//!   (W1).
//! - `watch_fd.rs`: the descriptor number by which the program's threads ask the fence (W2, W4);
//!   `table.rs`: the table in which it is valid.
//! - `counts.rs`: the counters by which a hit need not ask (W11). `service.rs`: the service that has
//!   the kernel count.
//! - `watcher.rs`: the watch as the cache uses it; `failure.rs`: why there is none; `mappings.rs`:
//!   how much may be watched. `one_thread.rs`: whether a hit needs the fence (W3).
//! - `in_flight.rs`: whether the kernel counts the changes in flight (W2).
//! - `in_place.rs`: whether the program's memory calls reach the library (W6). Their hooks are in
//!   `life/change.rs`, because they end regions (W5). `listeners.rs`: the listeners that must be
//!   told of the calls.

pub mod counts;
pub mod event_reader;
pub mod failure;
mod in_flight;
pub mod in_place;
pub mod listeners;
pub mod mappings;
pub mod one_thread;
pub mod ring;
mod service;
pub mod table;
pub mod userfaultfd;
pub mod watch_fd;
pub mod watcher;
