// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regions without an object, as the kernel has registered them, for a cache that keeps its own
//! objects.

use super::devices::Device;
pub use super::register::Own;
use super::state;
use super::{count_ended_elsewhere, fork};
use crate::abi::uapi::ib_uverbs_reg_mr_resp;
use crate::call::{Error, Pd, Request};
use crate::next::{PROVIDERS, Provider};
use crate::report::stats;
use crate::uverbs::context::Facts;
use crate::uverbs::mr;
pub use crate::uverbs::{Kernel, Uverbs, UverbsOfHelper};
use core::ptr::{with_exposed_provenance, without_provenance_mut};
use errno::Errno;
use once_cell::race::OnceBool;

/// What a deregistration needs.
pub struct Bare {
    /// The address of the region's [`Device`].
    pub device: usize,
    /// The file descriptor of the device.
    pub fd: i32,
    /// The kernel's name for the region.
    pub handle: u32,
}

/// Finds the means to register memory ourselves, before the caller enters a section that a signal
/// handler must not enter. An error says why libibverbs must serve the device, or this
/// registration.
pub fn find(pd: Pd, request: &Request) -> Result<Own, &'static str> {
    Own::find(pd, request)
}

/// Registers memory. libibverbs does not hear of it: see [`is_fork_protected`].
pub fn register(
    own: &Own,
    pd: Pd,
    request: &Request,
    is_watched: bool,
) -> Result<(Bare, ib_uverbs_reg_mr_resp), Error> {
    let answer = own.register_bare(pd, request, is_watched)?;
    // A region of ours with the same handle has ended elsewhere.
    if own.device.rows.forget(answer.mr_handle) {
        count_ended_elsewhere(1);
    }
    let bare = Bare {
        device: own.address(),
        fd: own.fd,
        handle: answer.mr_handle,
    };
    Ok((bare, answer))
}

impl Bare {
    /// Deregisters the region. If the kernel no longer knows it (a call past this library
    /// deregistered it), that counts as success.
    pub fn deregister(&self, kernel: &impl Kernel) -> Result<(), Errno> {
        // SAFETY: `register` stored the address of a device, and devices are never freed.
        let device = unsafe { with_exposed_provenance::<Device>(self.device).as_ref() };
        let device = device.ok_or(Errno(libc::EINVAL))?;
        let (result, learned) = mr::deregister(kernel, self.fd, device.facts(), self.handle);
        if learned != Facts::empty() {
            device.add_facts(learned);
        }
        match result {
            Err(Errno(libc::ENOENT)) => Ok(()),
            result => result,
        }
    }
}

static FORK_PROTECTED: [OnceBool; PROVIDERS] = [const { OnceBool::new() }; PROVIDERS];

/// Whether libibverbs keeps registered memory from children (`ibv_fork_init`). If so, libibverbs
/// must hear of each registration and of its end, and nothing may be registered here.
///
/// The first registration asks once: from then on `ibv_fork_init` comes too late.
pub fn is_fork_protected() -> bool {
    is_protected_by(Provider::ORDINARY)
}

/// As [`is_fork_protected`], by the libibverbs that opened the domain's device.
pub fn is_fork_protected_in(pd: Pd) -> bool {
    is_protected_by(Provider::of_pd(pd))
}

fn is_protected_by(provider: Provider) -> bool {
    // ibv_is_fork_initialized does not tell: before rdma-core 51, libibverbs keeps memory from
    // children even if the kernel copies it for them, and the function answers that protection is
    // not needed. (A program may have taken ibv_fork_init from a handle of libibverbs.) The test is
    // instead to protect an address that no process has: only a libibverbs that calls madvise finds
    // no memory there.
    FORK_PROTECTED[provider.number()].get_or_init(|| {
        let nowhere = without_provenance_mut(usize::MAX / 2 + 1 - (64 << 10));
        let errno = errno::errno();
        let is_kept = fork::dontfork_by(provider, nowhere, 1).is_err();
        errno::set_errno(errno);
        is_kept
    })
}

/// The place in the counters of the device at this address, which [`Bare::device`] has.
pub fn counted_at(device: usize) -> stats::Device {
    // SAFETY: `register` stored the address of a device, and devices are never freed.
    let device = unsafe { with_exposed_provenance::<Device>(device).as_ref() };
    device.map_or(stats::Device::at(0), |device| device.rows.counted_at())
}

/// The address of the [`Device`] for the context at `context`, if memory was registered on it.
pub fn device_at(context: usize) -> Option<usize> {
    let device: *const Device = state::existing()?.devices.get(context)?;
    Some(device.expose_provenance())
}
