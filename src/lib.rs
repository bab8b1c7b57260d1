// SPDX-License-Identifier: MIT OR Apache-2.0
//! librdmamr: takes over memory registration in RDMA programs, and nothing else.
//!
//! This crate is the cdylib: the C symbols, their version nodes, and the boundary that no panic
//! crosses (`capi/`). The layers below are crates of the workspace, each in a folder beside this
//! file, and each imports only what its `Cargo.toml` names:
//!
//! ```text
//!   C program
//!      |
//!   capi/      the C interface: exported symbols, arguments to types, results to conventions
//!      |
//!   fabric/    libfabric's objects over a protection domain: domain, region, key, queue, provider
//!      |
//!   monitor/   the ranges of libfabric's memory monitor
//!      |
//!   cache/     dispatch of each call (dispatch/), lookup, slots, eviction, invalidation, and
//!      |       the watch of the address space (watch/)
//!      |
//!   mr/        a registered region: request, access rules and errors, the `ibv_mr` object, the table
//!      |       of regions, fork
//!      |
//!   next/      the libibverbs, libmlx5 and libfabric underneath; trace/ the record of every call;
//!      |       config/ the settings; prefault/ populates while the kernel pins
//!      |
//!   stats/     counters, the live page, lines on standard error
//!      |
//!   sys/       this process and its kernel
//!      |
//!   uverbs/    the kernel's commands: which call, in which bytes, on which driver
//!      |
//!   abi/       the structures of rdma-core, libfabric and the kernel, without logic
//! ```

#![warn(missing_docs)]

#[cfg_attr(test, allow(unused, reason = "unit tests replace no function"))]
mod capi;
