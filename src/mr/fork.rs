// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection of registered memory across fork, ibv_fork_init(3).
//!
//! libibverbs owns the counts, in one tree for regions and for the providers' own queues. This
//! library therefore calls the functions of libibverbs where libibverbs' own registration would
//! call them: before registering and after deregistering, for all pinned memory. It calls them even
//! without fork support: the call tells libibverbs that a later `ibv_fork_init` comes too late.

use crate::next;
use core::ffi::c_void;
use errno::{Errno, errno};

/// Keeps the range out of child processes.
#[inline]
pub fn dontfork(addr: *mut c_void, length: usize) -> Result<(), Errno> {
    let Some(dontfork_range) = next::DONTFORK_RANGE.get() else {
        return Ok(());
    };
    // SAFETY: libibverbs accepts any range and reports a range that it cannot advise on.
    if unsafe { dontfork_range(addr, length) } == 0 {
        Ok(())
    } else {
        Err(errno())
    }
}

/// Lets children have the range again. Like libibverbs, ignores a failure.
#[inline]
pub fn dofork(addr: *mut c_void, length: usize) {
    if let Some(dofork_range) = next::DOFORK_RANGE.get() {
        // SAFETY: libibverbs accepts any range and reports a range that it cannot advise on.
        unsafe { dofork_range(addr, length) };
    }
}
