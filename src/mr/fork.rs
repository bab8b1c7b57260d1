// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeping registered memory in one piece across fork, ibv_fork_init(3).
//!
//! libibverbs owns the counts, one tree for regions and for the providers' own queues, so its functions are
//! called here as its own registration would: before registering and after deregistering, for all memory
//! that is pinned. That holds where fork support is off as well: the call is how libibverbs learns that a
//! later `ibv_fork_init` comes too late.

use crate::next;
use core::ffi::c_void;
use errno::{Errno, errno};

/// Keeps the range out of children.
#[inline]
pub fn dontfork(addr: *mut c_void, length: usize) -> Result<(), Errno> {
    let Some(dontfork_range) = next::DONTFORK_RANGE.get() else {
        return Ok(());
    };
    // SAFETY: libibverbs takes any range, and reports those that it cannot advise on.
    if unsafe { dontfork_range(addr, length) } == 0 {
        Ok(())
    } else {
        Err(errno())
    }
}

/// Lets children have the range again. A failure is ignored, as libibverbs does.
#[inline]
pub fn dofork(addr: *mut c_void, length: usize) {
    if let Some(dofork_range) = next::DOFORK_RANGE.get() {
        // SAFETY: as for `dontfork`.
        unsafe { dofork_range(addr, length) };
    }
}
