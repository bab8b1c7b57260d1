// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: a file for each header of the RDMA libraries, and for each family of the C
//! library's calls (`memory.rs`, `descriptors.rs`, `tasks.rs`); `load.rs`, which looks the next
//! functions up; and what these share (`export.rs`, `forward.rs`, `ret.rs`, `traced.rs`).
//!
//! A function of an RDMA library turns C's arguments into types, calls one function of the core, turns
//! the result into the return convention of its family, has a failure counted and its reason stored
//! (`ret.rs`), and has the call recorded in the trace. It does nothing else. (`ibv_reg_mr_ex` decides
//! which of two functions serves.)

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
