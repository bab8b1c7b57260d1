// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one door for every call that registers memory or ends a registration. It decides who serves
//! the call (the kernel, libibverbs or the cache). Its result says how the call was done.
//!
//! `capi/` and `fabric/` stand in front of the door, `cache/`, `monitor/`, `watch/` and `mr/`
//! behind it. While the cache is off, no line of the cache runs for a plain call: each function
//! here first asks `cache_is_on` (`listeners.rs`). The relaxed calls, which are the cache's own,
//! turn it on.

pub mod bypassed;
pub mod changes;
mod deregister;
mod listeners;
mod owners;
mod register;
mod relaxed_calls;
mod rereg;
mod reuse;
pub mod subscription;

pub use crate::cache::foresight;
pub use crate::mr::Mr;
pub use crate::mr::state;
pub use crate::mr::{fork_init, plain_memory, reg_dmabuf_mr, reg_other_memory};
pub use deregister::{deregister, unimport_mr};
pub use listeners::distrust_cache;
pub use owners::{close_device, dealloc_pd, unimport_pd};
pub use register::{register, register_for, register_rarely};
pub use relaxed_calls::{
    flush, hit_relaxed, register_relaxed, relaxed_hits, relaxed_totals, release_relaxed,
};
pub use rereg::rereg;
