// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface, one file for each header.
//!
//! A function here does four things, in this order, and no fifth: it turns C's arguments into
//! types, calls one function of the core, turns the result into the return convention of its
//! family, and has a failure counted and its reason stored (`ret.rs`).

#[allow(
    non_snake_case,
    reason = "the functions have the names of CUDA and HIP"
)]
mod cuda;
mod descriptors;
mod export;
mod fabric;
mod forward;
mod load;
mod memory;
mod mlx5;
mod rdmamr;
mod relaxed;
mod ret;
mod tasks;
mod traced;
mod verbs;
