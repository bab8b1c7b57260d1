// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection of registered memory across fork, ibv_fork_init(3).
//!
//! libibverbs owns the counts, in one tree for regions and for the providers' own queues. This
//! library therefore calls the functions of libibverbs where libibverbs' own registration would
//! call them: before registering and after deregistering, for all pinned memory. It calls them even
//! without fork support: the call tells libibverbs that a later `ibv_fork_init` comes too late.

use super::require;
use crate::abi::rdma_core::{IBV_FORK_UNNEEDED, ibv_context};
use crate::call::{Error, Pd};
use crate::config::disabled;
use crate::next::{self, Provider};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use errno::{Errno, errno};

/// Has libibverbs keep registered memory from children if the kernel does not copy that memory for
/// them, as rdma-core 51 and later do. Before, libibverbs marks the memory on any kernel: each
/// registration then takes a madvise(2) and splits mappings, and the cache can keep no region.
///
/// libibverbs calls its own `ibv_fork_init` through its PLT, for `RDMAV_FORK_SAFE`, and so reaches
/// this library as well.
pub fn init() -> Result<(), Error> {
    /// Whether libibverbs has been told to mark memory. A later call then is libibverbs' again: the
    /// call reads `RDMAV_HUGEPAGES_SAFE`.
    static MARKS: AtomicBool = AtomicBool::new(false);
    if !MARKS.load(Relaxed) && !disabled() && kernel_copies() {
        return Ok(());
    }
    // SAFETY: ibv_fork_init(3) may be called at any time.
    match unsafe { require(&next::FORK_INIT, Provider::ORDINARY)?() } {
        0 => {
            MARKS.store(true, Relaxed);
            Ok(())
        }
        errno => Err(Error::Next(Errno(errno))),
    }
}

/// Whether the kernel copies registered pages for a child (Linux 5.12 and later). libibverbs asks
/// the kernel by RDMA netlink. Without an answer: no.
fn kernel_copies() -> bool {
    let Some(is_initialized) = next::IS_FORK_INITIALIZED.get() else {
        return false;
    };
    let errno = errno();
    // SAFETY: ibv_is_fork_initialized(3) may be called at any time.
    let copies = unsafe { is_initialized() } == IBV_FORK_UNNEEDED;
    errno::set_errno(errno);
    copies
}

/// Keeps the range out of child processes, by the libibverbs that opened the domain's device. Not
/// inlined, nor is [`dofork`]: many copies of the callers are.
#[inline(never)]
pub fn dontfork(pd: Pd, addr: *mut c_void, length: usize) -> Result<(), Errno> {
    dontfork_by(Provider::of_pd(pd), addr, length)
}

/// As [`dontfork`].
#[inline]
pub fn dontfork_by(provider: Provider, addr: *mut c_void, length: usize) -> Result<(), Errno> {
    let Some(dontfork_range) = next::DONTFORK_RANGE.by(provider) else {
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
#[inline(never)]
pub fn dofork(context: *mut ibv_context, addr: *mut c_void, length: usize) {
    if let Some(dofork_range) = next::DOFORK_RANGE.by(Provider::of_c(context)) {
        // SAFETY: libibverbs accepts any range and reports a range that it cannot advise on.
        unsafe { dofork_range(addr, length) };
    }
}
