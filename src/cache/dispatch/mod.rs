// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single entry for every call that registers memory or ends a registration. It decides whether
//! the kernel, libibverbs or the cache serves the call. Its result says which of them did.
//!
//! `capi/` and `fabric/` call these functions, and these functions call the rest of the cache and
//! `mr/`. As long as the process has no cache, this costs a plain call one load.

pub mod bypassed;
mod deregister;
mod of_gpu;
mod register;
mod relaxed_calls;
mod rereg;
mod reuse;

pub use crate::admission::verdict;
pub use crate::ended::{End, end, panicked};
pub use crate::instance::{hits as relaxed_hits, totals as relaxed_totals};
pub use crate::life::change as changes;
pub use crate::life::device_files::DEVICE_FILES;
pub use crate::life::flush::flush;
pub use crate::life::owners::{close_device, dealloc_pd, unimport_pd};
pub use crate::life::release::release as release_relaxed;
pub use crate::permitted::ask_filter;
pub use crate::start::{at_load, set_limits};
pub use crate::watch::in_place::all_calls_come;
pub use crate::watch::table::TABLE;
pub use crate::watch::watch_fd::WATCH_FD;
pub use deregister::{deregister, unimport_mr};
pub use rdmamr_mr::Mr;
pub use rdmamr_mr::mlx5;
pub use rdmamr_mr::state;
pub use rdmamr_mr::{fork_init, memory_with, reg_other_memory};
pub use register::{reg_dmabuf_mr, register, register_for, register_rarely};
pub use relaxed_calls::{hit_relaxed, register_relaxed};
pub use rereg::rereg;
