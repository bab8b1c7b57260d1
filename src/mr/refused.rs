// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is wrong with a request that was refused, as far as its arguments, its memory and its
//! device show. This file allocates nothing.

use super::access::Access;
use super::devices::{self, Device};
use super::request::Request;
use super::unpinned;
use core::fmt;
use rdmamr_abi::uapi::{RDMA_DRIVER_MLX5, RDMA_DRIVER_RXE};
use rdmamr_next::Pd;
use rdmamr_sys::kernel::is_before;
use rdmamr_sys::pages::{PageRange, page_size};
use rdmamr_uverbs::Uverbs;
use rdmamr_uverbs::context::{self, Most};
use rdmamr_uverbs::driver::{CORE_SAYS, Driver, Says};

/// The device that refused.
#[derive(Clone, Copy)]
pub struct OnDevice {
    device: &'static Device,
    context: usize,
    fd: i32,
}

impl fmt::Debug for OnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the device on fd {}", self.fd)
    }
}

impl OnDevice {
    /// The device of a domain, if the library knows the device.
    pub fn of(pd: Pd) -> Option<OnDevice> {
        let context = pd.device()?;
        Some(OnDevice {
            device: devices::existing()?.get(context.address())?,
            context: context.address(),
            fd: context.fd()?,
        })
    }

    fn driver(self) -> Option<&'static Driver> {
        self.device.facts.get().driver()
    }

    /// What the device can have at most. `None` if the kernel does not tell, or if the program has
    /// closed the device since.
    pub fn most(self) -> Option<Most> {
        let facts = self.device.facts.get();
        let is_open = self.device.is_of(self.context);
        let is_same = is_open && context::still_holds(&Uverbs, self.fd, facts);
        is_same.then(|| context::most(&Uverbs, self.fd, facts).ok())?
    }
}

/// The errnos by which that device's driver refuses.
pub fn says(device: Option<OnDevice>) -> Says {
    let driver = device.and_then(OnDevice::driver);
    driver.map_or(CORE_SAYS, |driver| driver.says)
}

/// A request that was refused, and where.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    pub request: Request,
    pub device: Option<OnDevice>,
}

/// An argument that the kernel's core or every driver refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The iova and the address have these offsets in their page.
    Offsets(u64, u64),
    Other(&'static str),
    /// The region would be longer than this (`max_mr_size`).
    Longer(u64),
}

impl Refused {
    /// The argument that is wrong.
    pub fn wrong_argument(&self) -> Option<Wrong> {
        let (length, iova, access) = (self.request.length, self.request.iova, self.request.access);
        let page = page_size();
        let start = self.request.addr.addr() as u64;
        if start % page != iova % page {
            return Some(Wrong::Offsets(iova % page, start % page));
        }
        let end = start.checked_add(length as u64);
        let pages = end.map(|end| end.div_ceil(page) - start / page);
        let other = match pages {
            _ if access.refusal().is_some() => access.refusal(),
            _ if access.on_demand() => Some("the device has no on-demand paging for this"),
            _ if length == 0 => Some("the length is 0"),
            None => Some("address and length run past the end of the address space"),
            Some(pages) if pages > u64::from(u32::MAX) => {
                Some("the range has more than 2^32 - 1 pages")
            }
            _ if access.intersects(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT) => Some(
                "the kernel or the device does not know flush access flags, or the memory is not persistent",
            ),
            _ => None,
        };
        let longer = || self.too_long().map(Wrong::Longer);
        other.map(Wrong::Other).or_else(longer)
    }

    /// The device's `max_mr_size`, if the request is longer. (Some drivers say 0.)
    pub fn too_long(&self) -> Option<u64> {
        let most = self.device?.most()?.bytes;
        (most != 0 && self.request.length as u64 > most).then_some(most)
    }

    fn is_by(&self, driver: u32) -> bool {
        let refusing = self.device.and_then(OnDevice::driver);
        refusing.is_some_and(|refusing| refusing.id == driver)
    }

    /// Whether soft-RoCE refused it.
    pub fn is_by_rxe(&self) -> bool {
        self.is_by(RDMA_DRIVER_RXE)
    }

    /// Whether EAGAIN may come from the device's firmware, which has no key left: `cmd_status_to_err` of
    /// mlx5's `cmd.c` (`MLX5_CMD_STAT_NO_RES_ERR`), or the driver's table.
    pub fn may_lack_keys_by_eagain(&self) -> bool {
        says(self.device).full == libc::EAGAIN || self.is_by(RDMA_DRIVER_MLX5)
    }

    /// Whether soft-RoCE of Linux 7.2 refuses the length: its table of 16 bytes a page is one
    /// allocation of at most 4 MiB.
    pub fn is_too_long_for_rxe(&self) -> bool {
        const MOST: u64 = (4 << 20) / 16;
        // Of later kernels it is not known.
        let has_table = || !is_before(7, 2) && is_before(7, 3);
        let (addr, length) = (self.request.addr.addr() as u64, self.request.length as u64);
        let bytes = PageRange::around(addr, length).map_or(0, PageRange::bytes);
        self.is_by_rxe() && page_size() == 4096 && bytes / 4096 > MOST && has_table()
    }

    /// Whether the kernel refused for want of what other regions hold: pinned memory and keys of
    /// the device (ENOMEM, or the driver's own errno), or the objects that the rdma cgroup allows
    /// (EAGAIN). Some drivers refuse wrong requests by the same errno.
    pub fn is_shortage(&self, errno: i32) -> bool {
        let says = says(self.device);
        match errno {
            libc::EAGAIN => true,
            libc::ENOMEM if says.unmapped != libc::ENOMEM => {
                self.too_long().is_none() && !self.is_too_long_for_rxe()
            }
            _ if errno == libc::ENOMEM || errno == says.full => {
                // Most drivers have another errno for memory that cannot be pinned.
                let is_refused = || errno == says.unmapped && unpinned::is_refused(&self.request);
                self.wrong_argument().is_none() && !is_refused()
            }
            _ => false,
        }
    }
}
