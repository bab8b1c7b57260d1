// SPDX-License-Identifier: MIT OR Apache-2.0
//! librdmamr: takes over memory registration in RDMA programs, and nothing else.
//!
//! A call falls through the floors in one direction. Each floor knows only the floors below it.
//!
//! ```text
//!   C program
//!      |
//!   capi/      the C interface: exported symbols, arguments to types, results to conventions
//!      |
//!   fabric/    libfabric's objects over a protection domain: domain, region, key, queue, provider
//!      |
//!   dispatch/      the one door of every call that registers or ends a region: who serves the call
//!      |
//!   monitor/   another library's registration cache, which asks the cache's watch
//!      |
//!   cache/      what is kept: find, pin, release, flush
//!      |
//!   watch/     what changes in the address space: the log of changes, userfaultfd, the fence
//!      |
//!   mr/        a registered region: the `ibv_mr` object, the table of regions, fork
//!      |
//!   uverbs/    the kernel: which call, in which bytes, on which driver
//!      |
//!   abi/       the structures of rdma-core, libfabric and the kernel, without logic
//! ```
//!
//! Under all floors is [`sys`], this process and its kernel. Beside the floors are [`call`] (the
//! types that every floor forwards, with the rules of access), [`config`] (settings), [`next`] (the
//! libibverbs and libfabric underneath), [`report`] (messages and statistics for people) and
//! [`trace`] (the record of every call).

use rdmamr_abi as abi;
use rdmamr_uverbs as uverbs;

mod cache;
mod call;
mod capi;
mod config;
mod dispatch;
mod fabric;
#[cfg(test)]
#[path = "../ctests/fuzz/inputs.rs"]
mod fuzz_inputs;
mod monitor;
mod mr;
mod next;
mod report;
mod sys;
mod trace;
mod watch;
