// SPDX-License-Identifier: MIT OR Apache-2.0
//! librdmamr: takes over memory registration in RDMA programs, and nothing else.
//!
//! A call falls through the floors in one direction, and each floor knows only those below it.
//!
//! ```text
//!   C program
//!      |
//!   capi/      what C sees: exported symbols, arguments into types, results into return conventions
//!      |
//!   fabric/    libfabric's objects over a protection domain: domain, region, key, event queue, provider
//!      |
//!   relaxed/   the pool of regions that are kept: find, pin, release, flush; what watches the address space
//!      |
//!   mr/        a registered region: access rules, the `ibv_mr` object, the table of ours, fork
//!      |
//!   uverbs/    the kernel: which call, in which bytes, on which driver
//!      |
//!   abi/       other people's structures, no logic
//! ```
//!
//! Beside them: [`config`] (settings), [`stats`] (counters), [`explain`] (errors in words), [`log`],
//! [`trace`] (every call, written down), [`append`] (to a file of the user's), [`caller`] (who called), [`loaded_files`] (where code is), [`next`] (the libibverbs underneath), [`proc`] (what the kernel says of this process), [`process`] and
//! [`thread`] (what a process, a thread has for itself), [`helper_thread`] (threads of our own).

mod abi;
mod append;
mod caller;
mod capi;
mod config;
mod explain;
mod fabric;
mod helper_thread;
mod loaded_files;
mod log;
mod mr;
mod next;
mod proc;
mod process;
mod relaxed;
mod stats;
mod text;
mod thread;
mod trace;
mod uverbs;
