// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is wrong with a request that was refused, as far as its arguments, its memory and its
//! device show. This file allocates nothing.

use super::access::Access;
use super::devices::Device;
use super::request::Request;
use super::state;
use core::fmt;
use rdmamr_next::{Context, Pd};
use rdmamr_sys::pages::page_size;
use rdmamr_sys::proc;
use rdmamr_uverbs::Uverbs;
use rdmamr_uverbs::context::{self, Most};
use rdmamr_uverbs::driver::{CORE_SAYS, Says};

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
        // SAFETY: the context of a live protection domain stays open as long as the domain exists.
        let context = unsafe { Context::from_c(pd.context()) }?;
        Some(OnDevice {
            device: state::existing()?.devices.get(context.address())?,
            context: context.address(),
            fd: context.fd()?,
        })
    }

    fn says(self) -> Option<Says> {
        self.device.facts.get().driver().map(|driver| driver.says)
    }

    /// What the device can have at most. `None` if the kernel does not tell, or if the program has
    /// closed the device since.
    pub fn most(self) -> Option<Most> {
        let facts = self.device.facts.get();
        let is_open = self.device.is_of(self.context);
        let ask = || context::most(&Uverbs, self.fd, facts).ok();
        (is_open && context::still_holds(&Uverbs, self.fd, facts))
            .then(ask)
            .flatten()
    }
}

/// The errnos by which that device's driver refuses.
pub fn says(device: Option<OnDevice>) -> Says {
    device.and_then(OnDevice::says).unwrap_or(CORE_SAYS)
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

/// What the mappings show of the memory of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// The mappings cannot be read.
    Unread,
    /// All of the memory is mapped, with the rights that the access flags need.
    Whole,
    /// Nothing is mapped at this address.
    Hole(u64),
    /// The memory at this address cannot be pinned, for this reason.
    Unfit(u64, &'static str),
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
            _ if access.intersects(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT) => {
                Some("the kernel or the device does not know flush access flags")
            }
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

    /// What the mappings show of the memory.
    pub fn memory(&self) -> Mapped {
        let start = self.request.addr.addr() as u64;
        let end = start.saturating_add(self.request.length as u64);
        let for_writing = self.request.access.pins_for_writing();
        let mut at = start;
        let mut unfit = None;
        let read = proc::each_mapping(|mapping| {
            if mapping.range.end <= at {
                return true;
            }
            if mapping.range.start > at {
                return false;
            }
            unfit = if !mapping.readable && !mapping.writable {
                Some("is not accessible (PROT_NONE)")
            } else if for_writing && !mapping.writable {
                Some("is mapped read-only, and the access flags need it writable")
            } else if for_writing && mapping.shared && mapping.file {
                Some(
                    "is a shared mapping of a file, which kernels from 6.5 do not pin for writing: \
                     map it private, use memfd or tmpfs, or register it without write access",
                )
            } else {
                at = mapping.range.end;
                None
            };
            unfit.is_none() && at < end
        });
        match unfit {
            _ if !read => Mapped::Unread,
            Some(why) => Mapped::Unfit(at, why),
            None if at < end || start == end => Mapped::Hole(at),
            None => Mapped::Whole,
        }
    }

    /// Whether the kernel refused for want of what other regions hold: pinned memory and keys of
    /// the device (ENOMEM, or the driver's own errno), or the objects that the rdma cgroup allows
    /// (EAGAIN). Some drivers refuse wrong requests by the same errno.
    pub fn is_shortage(&self, errno: i32) -> bool {
        let says = says(self.device);
        match errno {
            libc::EAGAIN => true,
            libc::ENOMEM if says.unmapped != libc::ENOMEM => self.too_long().is_none(),
            _ if errno == libc::ENOMEM || errno == says.full => {
                self.wrong_argument().is_none()
                    && matches!(self.memory(), Mapped::Whole | Mapped::Unread)
            }
            _ => false,
        }
    }
}
