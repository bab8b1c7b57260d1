// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel regions without an `ibv_mr` and without a row in the table, for a cache that has its own
//! objects.

use super::devices::{self, Device};
use super::gpu::Export;
use super::outcome::Error;
use super::request::Request;
use core::ptr::with_exposed_provenance;
use errno::Errno;
use rdmamr_abi::uapi::ib_uverbs_reg_mr_resp;
use rdmamr_stats as stats;
use rdmamr_uverbs::context::{self, Facts};
use rdmamr_uverbs::mr;

pub use super::fork::{is_fork_protected, is_fork_protected_in};
pub use super::register::Direct;
pub use rdmamr_uverbs::{Kernel, Uverbs, UverbsOfHelper};

/// The values that a deregistration needs.
pub struct KernelMr {
    /// The address of the region's [`Device`].
    pub device: usize,
    /// The file descriptor of the device.
    pub fd: i32,
    /// The kernel's handle of the region.
    pub handle: u32,
}

/// Has the kernel pin and register memory, without telling libibverbs: for a process in which libibverbs
/// keeps no memory from children ([`is_fork_protected`]). With `export`, registers all of a dma-buf.
pub fn register(
    direct: &Direct,
    request: &Request,
    export: Option<&Export>,
    is_watched: bool,
) -> Result<(KernelMr, ib_uverbs_reg_mr_resp), Error> {
    let answer = match export {
        Some(export) => direct.ask_kernel_for_dmabuf(request, export.at(0)),
        None => direct.ask_kernel(request, is_watched),
    };
    let answer = answer.map_err(Error::Kernel)?;
    // A region of ours with the same handle has ended elsewhere.
    direct.device.rows.forget(answer.mr_handle);
    let registered = KernelMr {
        device: direct.address(),
        fd: direct.fd,
        handle: answer.mr_handle,
    };
    Ok((registered, answer))
}

impl KernelMr {
    /// Deregisters the region. If the kernel no longer knows it (a call that bypassed this library
    /// deregistered it), that counts as success.
    pub fn deregister(&self, kernel: &impl Kernel) -> Result<(), Errno> {
        let device = at_address(self.device).ok_or(Errno(libc::EINVAL))?;
        match mr::deregister(kernel, self.fd, device.facts.get(), self.handle) {
            Err(Errno(libc::ENOENT)) => Ok(()),
            result => result,
        }
    }
}

/// The device at this address, a value of [`KernelMr::device`].
fn at_address(address: usize) -> Option<&'static Device> {
    // SAFETY: 0, or the address of a device that `Direct::address` returned; devices are never freed.
    unsafe { with_exposed_provenance::<Device>(address).as_ref() }
}

/// The place in the counters of the device at this address, a value of [`KernelMr::device`].
pub fn counted_at(address: usize) -> stats::Device {
    at_address(address).map_or(stats::Device::at(0), |device| device.rows.counted_at())
}

/// Asks the kernel whether the device at this address, which [`KernelMr::device`] has, is gone.
/// True the first time that it is. `fd` is the device's file.
pub fn has_gone(kernel: &impl Kernel, address: usize, fd: i32) -> bool {
    let Some(device) = at_address(address) else {
        return false;
    };
    let facts = device.facts.get();
    let has_gone = !facts.contains(Facts::GONE) && context::is_gone(kernel, fd, facts);
    if has_gone {
        device.facts.add(Facts::GONE);
    }
    has_gone
}

/// The address of the [`Device`] for the context at `context`, if memory was registered on it.
pub fn device_at(context: usize) -> Option<usize> {
    let device: *const Device = devices::existing()?.get(context)?;
    Some(device.expose_provenance())
}
