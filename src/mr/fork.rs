// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection of registered memory across fork, ibv_fork_init(3).
//!
//! libibverbs owns the counts, in one tree for regions and for the providers' own queues. This
//! library therefore calls the functions of libibverbs where libibverbs' own registration would
//! call them: before registering and after deregistering, for all pinned memory of plain regions. It
//! calls them even without fork support: the call tells libibverbs that a later `ibv_fork_init` comes
//! too late. (The cache makes its regions only while [`is_fork_protected`] is false.)

use super::outcome::Error;
use super::require::{done, require};
use core::ffi::c_void;
use core::ptr::without_provenance_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use errno::{Errno, errno};
use once_cell::race::OnceBool;
use rdmamr_abi::rdma_core::IBV_FORK_UNNEEDED;
use rdmamr_config::disabled;
use rdmamr_next::{self as next, Context, MAKERS, Maker, Pd};
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::thread;

/// Has libibverbs keep registered memory from children if the kernel does not copy that memory for
/// them, as rdma-core 51 and later do. Earlier releases mark the memory on any kernel: each
/// registration then takes a madvise(2) and splits mappings, and the cache can keep no region.
///
/// libibverbs calls its own `ibv_fork_init` through its PLT, for `RDMAV_FORK_SAFE`, and so reaches
/// this library as well.
pub fn init() -> Result<(), Error> {
    /// Whether libibverbs has been told to mark memory. If so, a later call goes to libibverbs as
    /// well, because the call reads `RDMAV_HUGEPAGES_SAFE`.
    static MARKS: AtomicBool = AtomicBool::new(false);
    let _uncancelled = thread::uncancelled();
    // The answer needs a socket, at which a filter of the program may kill.
    if !MARKS.load(Relaxed) && !disabled() && !is_filtered() && kernel_copies() {
        return Ok(());
    }
    // SAFETY: ibv_fork_init(3) may be called at any time.
    done(unsafe { require(&next::FORK_INIT, Maker::ORDINARY)?() })?;
    MARKS.store(true, Relaxed);
    Ok(())
}

/// Whether the kernel copies registered pages for a child, as it does since Linux 5.12. libibverbs
/// asks the kernel by RDMA netlink, which answers since Linux 5.13. False without an answer.
fn kernel_copies() -> bool {
    let Some(is_initialized) = next::IS_FORK_INITIALIZED.get() else {
        return false;
    };
    // SAFETY: ibv_is_fork_initialized(3) may be called at any time.
    thread::keep_errno(|| unsafe { is_initialized() } == IBV_FORK_UNNEEDED)
}

/// Keeps the range out of child processes, by the libibverbs that opened the device. As [`dofork`],
/// this is not inlined, because its callers are inlined in many places.
#[inline(never)]
pub fn dontfork(context: Context, addr: *mut c_void, length: usize) -> Result<(), Errno> {
    let maker = Maker::of(context);
    let _uncancelled = uncancelled_in(maker);
    dontfork_by(maker, addr, length)
}

/// libibverbs may read the size of the memory's pages from a file (`RDMAV_HUGEPAGES_SAFE`) if it
/// keeps registered memory from children. If it does not, it only returns, and the registration is
/// spared two calls.
#[inline]
fn uncancelled_in(maker: Maker) -> Option<thread::Uncancelled> {
    is_protected_by(maker).then(thread::uncancelled)
}

#[inline]
fn dontfork_by(maker: Maker, addr: *mut c_void, length: usize) -> Result<(), Errno> {
    let Some(dontfork_range) = next::DONTFORK_RANGE.by(maker) else {
        return Ok(());
    };
    // SAFETY: libibverbs accepts any range and reports a range that it cannot advise on.
    let is_done = unsafe { dontfork_range(addr, length) } == 0;
    is_done.then_some(()).ok_or_else(errno)
}

/// Gives the range back to child processes. Like libibverbs, ignores a failure.
#[inline(never)]
pub fn dofork(context: Context, addr: *mut c_void, length: usize) {
    let maker = Maker::of(context);
    if let Some(dofork_range) = next::DOFORK_RANGE.by(maker) {
        let _uncancelled = uncancelled_in(maker);
        // SAFETY: libibverbs accepts any range and reports a range that it cannot advise on.
        unsafe { dofork_range(addr, length) };
    }
}

static FORK_PROTECTED: [OnceBool; MAKERS] = [const { OnceBool::new() }; MAKERS];

/// Whether libibverbs keeps registered memory from children (`ibv_fork_init`). If so, libibverbs
/// must be told of each registration and of its end, and the cache must not register memory by
/// itself.
///
/// The first registration asks, and its answer stays valid: from then on `ibv_fork_init` comes too
/// late.
pub fn is_fork_protected() -> bool {
    is_protected_by(Maker::ORDINARY)
}

/// As [`is_fork_protected`], by the libibverbs that opened the domain's device.
pub fn is_fork_protected_in(pd: Pd) -> bool {
    is_protected_by(Maker::of(pd.device()))
}

fn is_protected_by(maker: Maker) -> bool {
    // ibv_is_fork_initialized does not tell: before rdma-core 51, libibverbs keeps memory from
    // children even if the kernel copies it for them, and the function answers that protection is
    // not needed. (A program may have taken ibv_fork_init from a handle of libibverbs.) The test is
    // instead to protect an address that no process has: only a libibverbs that calls madvise finds
    // no memory there.
    FORK_PROTECTED[maker.number()].get_or_init(|| {
        let nowhere = without_provenance_mut(usize::MAX / 2 + 1 - (64 << 10));
        let _uncancelled = thread::uncancelled();
        thread::keep_errno(|| dontfork_by(maker, nowhere, 1).is_err())
    })
}
