// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process and its kernel, as the library uses them: one copy of each facility.
//!
//! Not here: anything of RDMA.

#[cfg(test)]
#[path = "../../ctests/fuzz/inputs.rs"]
mod fuzz_inputs;

pub mod allocator;
pub mod append;
pub mod aside;
pub mod atomics;
pub mod budget;
pub mod caller;
pub mod cgroup;
pub mod clock;
pub mod descriptor;
pub mod function;
pub mod futex;
pub mod helper_thread;
pub mod kernel;
pub mod loaded_files;
pub mod memory;
pub mod netlink;
pub mod pagemap;
pub mod pages;
pub mod probe;
pub mod proc;
pub mod process;
pub mod seccomp;
pub mod signals;
pub mod standard_error;
pub mod symbols;
pub mod text;
pub mod thread;
pub mod unwind;
pub mod valgrind;
pub mod words;
