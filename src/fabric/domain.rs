// SPDX-License-Identifier: MIT OR Apache-2.0
//! A domain: a verbs protection domain, as `struct fid_domain`, with the rules of its regions.

use super::errors::{Result, ensure, may_allocate};
use super::keys::Keys;
use super::mode::Mode;
use super::object::{Head, Hold, Process, Tables};
use super::provider::DeviceOfDomain;
use super::queue::Queue;
use super::raw_key::RawKey;
use super::refusals::*;
use super::region::{Plan, Region};
use super::segment::{Found, Segment};
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use errno::Errno;
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::domain_slots;
use rdmamr_abi::rdma_core::IBV_TRANSPORT_IWARP;
use rdmamr_cache::dispatch::{self, Mr};
use rdmamr_mr::{Access, Error, How, Request};
use rdmamr_next::Pd;
use rdmamr_stats::log::{self, Level};
use std::sync::OnceLock;

/// A domain.
#[repr(C)]
pub struct Domain {
    // The fields of `struct fid_domain`.
    _fid: Head,
    slots: &'static domain_slots,
    memory: &'static fi_ops_mr,
    // The private fields.
    tables: &'static Tables,
    pub process: Process,
    pub pd: Pd,
    pub mode: Mode,
    /// Whether the device is an iWARP device.
    pub iwarp: bool,
    /// The access flags that the device can grant.
    pub granted: Access,
    /// Whether a registration without flags may be a hit of the cache and nothing more: the domain
    /// is relaxed, its keys are the provider's and not raw, it does not page on demand, it is not
    /// iWARP, and no queue is bound to it.
    pub fast: AtomicBool,
    regions: RegionCount,
    pub keys: Keys,
    /// The queue that reports registrations, if one is bound. The domain keeps it open.
    bound: OnceLock<(&'static Queue, Hold)>,
    /// The device, if the domain opened it. It is closed with the domain.
    opened: Option<DeviceOfDomain>,
}
const _: () = assert!(offset_of!(Domain, tables) >= size_of::<fid_domain>());
const _: () = assert!(offset_of!(Domain, slots) == offset_of!(fid_domain, ops));
const _: () = assert!(offset_of!(Domain, memory) == offset_of!(fid_domain, mr));

/// The number of a domain's regions, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct RegionCount(AtomicUsize);

impl Domain {
    /// Opens a domain over a protection domain.
    pub fn open(
        tables: &'static Tables,
        pd: Pd,
        mode: Mode,
        context: *mut c_void,
        opened: Option<DeviceOfDomain>,
    ) -> Result<*mut fid_domain> {
        let begun = may_allocate().and_then(|()| match mode.on_demand {
            true => try_on_demand(pd),
            false => Ok(()),
        });
        begun.inspect_err(|_| {
            // The caller gets the first failure.
            if let Some(opened) = &opened {
                let _ = opened.close(pd);
            }
        })?;
        let mut mode = mode;
        if mode.cached && !dispatch::all_calls_come() {
            mode.cached = false;
            log::line(
                Level::Info,
                format_args!(
                    "the library does not stand before the C library's memory calls (it was loaded by \
                     dlopen), or not before libibverbs: a domain with the cache registers plainly"
                ),
            );
        }
        let iwarp = pd.transport() == Some(IBV_TRANSPORT_IWARP);
        let domain = Box::new(Domain {
            _fid: Head::new(FI_CLASS_DOMAIN, context, &tables.domain),
            slots: &tables.domain_rest,
            memory: &tables.memory,
            tables,
            process: Process::this(),
            pd,
            mode,
            iwarp,
            granted: Access::granted_by(pd),
            fast: AtomicBool::new(
                mode.cached && mode.provider_keys && !mode.raw && !mode.on_demand && !iwarp,
            ),
            regions: RegionCount::default(),
            keys: Keys::default(),
            bound: OnceLock::new(),
            opened,
        });
        Ok(Box::into_raw(domain).cast())
    }

    /// The domain that C names. It may belong to the parent process.
    ///
    /// # Safety
    /// `fid` is an open domain of this library. The objects that are made of it keep it open by
    /// counting.
    #[inline(always)]
    pub unsafe fn from_c(fid: *mut fid) -> &'static Domain {
        // SAFETY: the caller promised an open domain: only domains have the table that led here.
        unsafe { &*fid.cast::<Domain>() }
    }

    /// As `from_c`; a domain that the parent process made is refused.
    ///
    /// # Safety
    /// As for `from_c`.
    #[inline(always)]
    pub unsafe fn of_this_process(fid: *mut fid) -> Result<&'static Domain> {
        // SAFETY: the caller promised an open domain of this library.
        let domain = unsafe { Domain::from_c(fid) };
        domain.process.check()?;
        Ok(domain)
    }

    /// The domain of a region.
    #[inline(always)]
    pub fn of(region: &Region) -> &'static Domain {
        // SAFETY: a domain counts its regions, so it exists as long as `region` does.
        unsafe { &*with_exposed_provenance::<Domain>(region.domain) }
    }

    /// Whether the device has each buffer at the buffer's own address.
    #[inline(always)]
    pub fn is_at_own_address(&self) -> bool {
        self.iwarp || self.mode.on_demand
    }

    /// The queue that reports registrations, if one is bound.
    #[inline(always)]
    pub fn queue(&self) -> Option<&'static Queue> {
        self.bound.get().map(|(queue, _)| *queue)
    }

    /// Makes a region in the state `UnderWay`, which no other thread knows. `None` if there is no
    /// memory.
    #[inline(always)]
    pub fn open_region(&self, context: *mut c_void, plan: Plan) -> Option<&'static Region> {
        let domain = (&raw const *self).expose_provenance();
        let ops = &self.tables.region;
        let region = Region::make(ops, domain, self.process, self.mode.raw, (context, plan))?;
        self.regions.0.fetch_add(1, AcqRel);
        Some(region)
    }

    /// Gives up a region that has no registration. After this call the domain may be gone.
    #[inline(always)]
    pub fn close_region(&self, region: &Region) {
        // SAFETY: this thread alone has claimed the region, or no other thread knows it.
        unsafe { region.die() };
        self.regions.0.fetch_sub(1, AcqRel);
    }

    /// Closes the domain.
    ///
    /// # Safety
    /// `fid` is an open domain of this library. After success the caller does not use it again.
    pub unsafe fn close(fid: *mut fid) -> Result<()> {
        // SAFETY: the caller promised an open domain of this library.
        let domain = unsafe { Domain::of_this_process(fid) }?;
        ensure(domain.regions.0.load(Acquire) == 0, HAS_REGIONS)?;
        ensure(!domain.keys.has_mapped(), HAS_RAW_KEYS)?;
        if let Some(opened) = &domain.opened {
            opened.close(domain.pd)?;
        }
        // SAFETY: `open` made the box, and the caller promised not to use the domain again.
        drop(unsafe { Box::from_raw(fid.cast::<Domain>()) });
        Ok(())
    }

    /// Binds a queue that reports registrations: fi_domain_bind(3).
    ///
    /// # Safety
    /// `queue` is NULL or an open object.
    pub unsafe fn bind(&self, queue: *mut fid, flags: u64) -> Result<()> {
        // SAFETY: the caller promised NULL or an open object.
        let object = unsafe { queue.as_ref() }.ok_or(NULL_QUEUE)?;
        ensure(object.fclass == FI_CLASS_EQ, NOT_A_QUEUE)?;
        ensure(flags == FI_REG_MR, BIND_FLAGS)?;
        ensure(self.bound.get().is_none(), BOUND_ALREADY)?;
        ensure(self.regions.0.load(Acquire) == 0, BOUND_TOO_LATE)?;
        let is_ours = core::ptr::eq(object.ops, &self.tables.queue);
        ensure(is_ours, FOREIGN_QUEUE)?;
        // SAFETY: the table is that of this library's queues; the hold keeps the queue open.
        let queue: &'static Queue = unsafe { Queue::from_c(queue.cast()) }?;
        self.fast.store(false, Relaxed);
        let bound = (queue, Hold::on(&queue.holds));
        self.bound.set(bound).map_err(|_| BOUND_ALREADY.into())
    }

    /// Maps a raw key that a remote peer has sent: fi_mr_map_raw(3).
    pub fn map(&self, bytes: &[u8], base: u64, flags: u64) -> Result<u64> {
        ensure(flags == 0, MAP_FLAGS)?;
        may_allocate()?;
        self.keys.map(RawKey::read(bytes, base)?)
    }

    /// Finds a range of a remote peer's memory: `rdmamr_resolve`.
    pub fn resolve(&self, key: u64, start: u64, length: u64, found: &mut Found) -> Result<()> {
        match u32::try_from(key) {
            // The device's key. The keys of mapped raw keys are larger.
            Ok(rkey) if self.mode.provider_keys => {
                let has_end = start.checked_add(length).is_some();
                ensure(length != 0 && has_end, EMPTY_RANGE)?;
                found.push(Segment {
                    addr: start,
                    length,
                    lkey: 0,
                    rkey,
                });
            }
            _ => self.keys.resolve(key, start, length, found)?,
        }
        found.check()
    }
}

/// Registers a little memory to find out whether the device pages on demand.
fn try_on_demand(pd: Pd) -> Result<()> {
    let mut page = Box::new([0u8; 64]);
    let addr = page.as_mut_ptr().cast();
    let request = Request::at_address(addr, page.len(), Access::ON_DEMAND);
    let refused = [libc::EOPNOTSUPP, libc::EINVAL];
    let registered = dispatch::register_rarely(pd, &request).map_err(|error| match error {
        Error::Kernel(Errno(errno)) | Error::Next(Errno(errno)) if refused.contains(&errno) => {
            NO_ON_DEMAND
        }
        error => error,
    })?;
    // SAFETY: `register_rarely` has just returned this registration.
    let mr = unsafe { Mr::from_c(registered.mr) };
    mr.map_or(Ok(How::Kernel), dispatch::deregister)?;
    Ok(())
}
