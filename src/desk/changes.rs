// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interposed memory calls (`capi/memory.rs`) tell the pool here about changes of memory. While
//! the pool is off, each function costs one load.

use super::pool_is_on;
use crate::relaxed::hooks;
pub use hooks::{Changing, are_in_place};

/// A call is about to change memory.
#[inline(always)]
pub fn changing(addr: usize, length: usize) -> Changing {
    if pool_is_on() {
        hooks::changing(addr, length)
    } else {
        Changing::NOTHING
    }
}

/// A call may change memory; [`Changing::changed`] says whether it has, and which.
#[inline(always)]
pub fn may_change(addr: usize, length: usize) -> Changing {
    if pool_is_on() {
        hooks::may_change(addr, length)
    } else {
        Changing::NOTHING
    }
}

/// A call is about to detach the System V segment that begins at an address.
#[inline(always)]
pub fn detaching(addr: usize) -> Changing {
    if pool_is_on() {
        hooks::detaching(addr)
    } else {
        Changing::NOTHING
    }
}

/// A call is about to cut a file or to punch a hole into it. The file may be mapped anywhere.
#[inline(always)]
pub fn cutting_file() -> Changing {
    if pool_is_on() {
        hooks::cutting_file()
    } else {
        Changing::NOTHING
    }
}

/// Whether the pool must hear of shared mappings.
#[inline(always)]
pub fn are_wanted() -> bool {
    pool_is_on() && hooks::is_in_use()
}

/// A call has mapped memory that others share. `fd` is the file's, if the mapping has one.
pub fn mapped_shared(addr: usize, length: usize, fd: Option<i32>) {
    if pool_is_on() {
        hooks::mapped_shared(addr, length, fd);
    }
}

/// A call has moved a mapping there.
pub fn moved(addr: usize, length: usize) {
    if pool_is_on() {
        hooks::moved(addr, length);
    }
}

/// A call has attached a System V segment.
pub fn attached(addr: usize, length: usize) {
    if pool_is_on() {
        hooks::attached(addr, length);
    }
}

/// Stops watching memory whose regions a change under way has just withdrawn. Returns true if any
/// of the memory was watched.
pub fn unwatch(addr: usize, length: usize) -> bool {
    pool_is_on() && hooks::unwatch(addr, length)
}
