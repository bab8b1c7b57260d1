// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory regions: `ibv_reg_mr` and its relatives. The library makes the kernel calls
//! itself if it can do so exactly as rdma-core does, and calls libibverbs otherwise.
//!
//! Not here: C's pointers and return conventions (`capi/`), the bytes that the kernel gets
//! (`uverbs/`).

mod access;
mod deregister;
pub mod devices;
pub mod explain;
mod fork;
mod forwarded;
pub mod gpu;
mod held;
pub mod kernel_mr;
mod large;
mod lifetime;
pub mod memlock;
pub mod mlx5;
mod object;
mod outcome;
pub mod queue;
pub mod refused;
mod register;
mod request;
mod require;
mod rereg;
mod rows;
mod unpinned;

pub use access::Access;
pub use deregister::{around_bypassed_deregister, deregister};
pub use devices::most_of;
pub use fork::init as fork_init;
pub use forwarded::{is_ordinary, memory_with, reg_dmabuf_mr, reg_other_memory};
pub use large::around_host_register;
pub use lifetime::{close_device, dealloc_pd};
pub use object::{Mr, Object};
pub use outcome::{Error, How, PANICKED, Registered};
pub use register::{register, register_rarely};
pub use request::{Request, Reregistration};
pub use rereg::{adopt, rereg};
