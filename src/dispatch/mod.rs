// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one door for every call that registers memory or ends a registration. It decides who serves
//! the call (the kernel, libibverbs or the cache). Its result says how the call was done.
//!
//! `capi/` and `fabric/` stand in front of the door, `cache/`, `monitor/`, `watch/` and `mr/`
//! behind it. While the cache is off, no line of the cache runs for a plain call: each function
//! here first asks
//! [`cache_is_on`]. The relaxed calls, which are the cache's own, turn it on.

mod bypassed;
pub mod changes;
mod deregister;
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
pub use bypassed::{close_device_bypassed, dealloc_pd_bypassed, deregister_bypassed};
pub use deregister::{deregister, unimport_mr};
pub use owners::{close_device, dealloc_pd, unimport_pd};
pub use register::{register, register_for, register_rarely};
pub use relaxed_calls::{
    flush, hit_relaxed, register_relaxed, relaxed_hits, relaxed_totals, release_relaxed,
};
pub use rereg::rereg;

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Who wants to hear of changes of memory: a sum of the bits below.
static LISTENERS: AtomicU8 = AtomicU8::new(0);
/// The cache: it, or the memory monitor, has served a call of this process, or of the process that
/// it was forked from.
const CACHE: u8 = 1;
/// The ranges that were released, under `RDMAMR_CACHE`.
const RANGES: u8 = 2;

#[inline(always)]
fn listens(who: u8) -> bool {
    LISTENERS.load(Relaxed) & who != 0
}

/// Only the first call writes, because a store of each call would move the cache line from
/// processor to processor.
#[inline(always)]
fn listen(who: u8) {
    if !listens(who) {
        LISTENERS.fetch_or(who, Relaxed);
    }
}

/// Whether the cache is on.
#[inline(always)]
fn cache_is_on() -> bool {
    listens(CACHE)
}

/// Turns the cache on: a call is about to use it.
#[inline(always)]
fn turn_cache_on() {
    listen(CACHE);
}

/// A range was released that may come back.
#[inline(always)]
fn listen_for_ranges() {
    listen(RANGES);
}

/// The library itself has failed: no region that the cache keeps is used again.
#[cold]
pub fn distrust_cache() {
    if cache_is_on() {
        crate::cache::distrust();
    }
}
