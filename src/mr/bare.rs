// SPDX-License-Identifier: MIT OR Apache-2.0
//! A region without an object: what the kernel has registered, for a pool that keeps its own objects.

use super::devices::Device;
pub use super::prefault::Watch;
pub use super::register::Own;
use super::state;
use super::{Error, Pd, Request, count_vanished, fork};
use crate::abi::uapi::ib_uverbs_reg_mr_resp;
use crate::uverbs::context::Facts;
use crate::uverbs::mr;
pub use crate::uverbs::{Kernel, Uverbs, UverbsOfHelper};
use core::ffi::c_void;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut, without_provenance_mut};
use errno::Errno;
use once_cell::race::OnceBool;

/// What it takes to deregister it.
pub struct Bare {
    /// The address of its [`Device`].
    pub device: usize,
    /// The kernel's file.
    pub fd: i32,
    /// The kernel's name for the region.
    pub handle: u32,
}

/// What it takes to register memory by ourselves, found out before the caller is where a signal handler
/// must not be. An error says why the device, or this registration, is left to libibverbs.
pub fn find(pd: Pd, request: &Request) -> Result<Own, &'static str> {
    Own::find(pd, request)
}

/// Registers memory.
pub fn register(
    own: &Own,
    pd: Pd,
    request: &Request,
    watch: Watch,
) -> Result<(Bare, ib_uverbs_reg_mr_resp), Error> {
    let answer = own.register_bare(pd, request, watch)?;
    // One of ours with that handle has vanished.
    if own.device.rows.forget(answer.mr_handle) {
        count_vanished(state::current(), 1);
    }
    let device: *const Device = own.device;
    let bare = Bare {
        device: device.expose_provenance(),
        fd: own.fd,
        handle: answer.mr_handle,
    };
    Ok((bare, answer))
}

impl Bare {
    /// Deregisters it. What the kernel does not know any more, with its device or past us, counts as that.
    pub fn deregister(&self, kernel: &impl Kernel) -> Result<(), Errno> {
        // SAFETY: the address of a device, which are never freed.
        let device = unsafe { with_exposed_provenance::<Device>(self.device).as_ref() };
        let device = device.ok_or(Errno(libc::EINVAL))?;
        let (result, learned) = mr::deregister(kernel, self.fd, device.facts(), self.handle);
        if learned != Facts::empty() {
            device.add_facts(learned);
        }
        match result {
            Err(Errno(libc::EIO | libc::ENODEV | libc::EBADF | libc::ENOENT)) => Ok(()),
            result => result,
        }
    }

    /// Lets children have the memory again.
    pub fn dofork(&self, start: usize, length: usize) {
        let start: *mut c_void = with_exposed_provenance_mut(start);
        fork::dofork(start, length);
    }
}

static FORK_PROTECTED: OnceBool = OnceBool::new();

/// Whether [`is_fork_protected`] was asked, and is so; for threads that cannot ask.
pub fn is_known_fork_protected() -> bool {
    FORK_PROTECTED.get() == Some(true)
}

/// Whether registered memory is kept from children (`ibv_fork_init`): then libibverbs must hear of each end
/// of a registration before its memory can change.
///
/// Asked once, at the first registration: from then on `ibv_fork_init` comes too late.
pub fn is_fork_protected() -> bool {
    // ibv_is_fork_initialized does not say it: before rdma-core 52, and with RDMAV_FORK_SAFE=1, memory is kept
    // from children although the kernel copies it for them, and the answer is that this is not needed. But only
    // who does it finds out that there is no memory at an address that no process has.
    FORK_PROTECTED.get_or_init(|| {
        let nowhere = without_provenance_mut(usize::MAX / 2 + 1 - (64 << 10));
        let errno = errno::errno();
        let is_kept = fork::dontfork(nowhere, 1).is_err();
        errno::set_errno(errno);
        is_kept
    })
}

/// The address of the [`Device`] of the context at an address, if memory was registered on it.
pub fn device_at(context: usize) -> Option<usize> {
    let device: *const Device = state::existing()?.devices.get(context)?;
    Some(device.expose_provenance())
}
