// SPDX-License-Identifier: MIT OR Apache-2.0
//! A domain: a verbs protection domain, as `struct fid_domain`, and the rules that the caller and
//! the library agreed on when the domain was opened.

use super::errors::{Failure, invalid, may_allocate, refused};
use super::foreign_queue::ForeignQueue;
use super::keys::Keys;
use super::raw_key::RawKey;
use super::region::Plan;
use super::rest::Rest;
use super::segment::{Room, Segment};
use super::{Process, Queue, Region, Tables};
use crate::abi::libfabric::*;
use crate::abi::libfabric_provider::domain_slots;
use crate::abi::rdma_core::IBV_TRANSPORT_IWARP;
use crate::dispatch::{self, Mr};
use crate::mr::{Access, Error, How, Request};
use crate::next::Pd;
use crate::report::log::{self, Level};
use core::ffi::c_void;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use errno::Errno;
use std::sync::OnceLock;

/// The rules of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The version of the interface for which the application was written.
    pub api_version: u32,
    /// The device chooses the keys; else the application does.
    pub provider_keys: bool,
    /// Peers name a byte by its virtual address; else by its offset.
    pub virtual_addresses: bool,
    /// Peers receive raw keys.
    pub raw: bool,
    /// The device pages memory on demand.
    pub on_demand: bool,
    /// The cache may serve regions.
    pub cached: bool,
    /// The largest key that the application may choose.
    pub last_key: u64,
}

impl Mode {
    /// Translates libfabric's `mr_mode`.
    pub fn agreed(api_version: u32, mr_mode: i32) -> Result<Mode, Failure> {
        const KNOWN: i32 =
            FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        let bits = match mr_mode {
            FI_MR_BASIC => FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
            FI_MR_SCALABLE => 0,
            bits => bits,
        };
        if bits & !KNOWN != 0 {
            return Err(invalid(
                "the mr_mode has a bit that the library does not serve",
            ));
        }
        let (provider_keys, virtual_addresses) =
            (bits & FI_MR_PROV_KEY != 0, bits & FI_MR_VIRT_ADDR != 0);
        if provider_keys && !virtual_addresses {
            return Err(invalid(
                "FI_MR_PROV_KEY needs FI_MR_VIRT_ADDR: a device cannot have each buffer begin at 0",
            ));
        }
        Ok(Mode {
            api_version,
            provider_keys,
            virtual_addresses,
            raw: bits & FI_MR_RAW != 0,
            on_demand: false,
            cached: false,
            // The value above is FI_KEY_NOTAVAIL, which is no key.
            last_key: FI_KEY_NOTAVAIL - 1,
        })
    }

    /// Limits the application's keys to a number of bytes, 1 to 8.
    pub fn with_key_size(self, bytes: usize) -> Result<Mode, Failure> {
        let last_key = match bytes {
            8 => FI_KEY_NOTAVAIL - 1,
            1..8 => (1 << (8 * bytes)) - 1,
            _ => {
                return Err(invalid(
                    "the size of the application's keys must be 1 to 8 bytes",
                ));
            }
        };
        Ok(Mode { last_key, ..self })
    }
}

/// A domain.
#[repr(C)]
pub struct Domain {
    // The fields of `struct fid_domain`.
    fclass: AtomicUsize,
    context: AtomicPtr<c_void>,
    ops: &'static fi_ops,
    slots: &'static domain_slots,
    memory: &'static fi_ops_mr,
    // The private fields.
    tables: &'static Tables,
    process: Process,
    pd: Pd,
    mode: Mode,
    iwarp: bool,
    /// Whether `fast.rs` may serve registrations: the domain is relaxed, its keys are the
    /// provider's and not raw, it does not page on demand, it is not iWARP, and no queue is bound
    /// to it.
    fast: AtomicBool,
    rest: Rest,
    pub keys: Keys,
    bound: OnceLock<Bound>,
    /// The device, if the domain opened it. It is closed with the domain.
    opened: Option<Box<dyn Opened>>,
}
const _: () = assert!(core::mem::offset_of!(Domain, tables) >= size_of::<fid_domain>());
const _: () =
    assert!(core::mem::offset_of!(Domain, slots) == core::mem::offset_of!(fid_domain, ops));
const _: () =
    assert!(core::mem::offset_of!(Domain, memory) == core::mem::offset_of!(fid_domain, mr));

/// The device that the provider opened for a domain.
pub trait Opened: Send + Sync {
    /// Closes the device. After an error the device is still open.
    fn close(&self, pd: Pd) -> Result<(), crate::mr::Error>;
}

/// The queue that reports registrations.
pub enum Bound {
    Own(&'static Queue),
    Foreign(ForeignQueue),
}

impl Domain {
    /// Opens a domain over a protection domain.
    pub fn open(
        tables: &'static Tables,
        pd: Pd,
        mode: Mode,
        context: *mut c_void,
        opened: Option<Box<dyn Opened>>,
    ) -> Result<*mut fid_domain, Failure> {
        may_allocate()?;
        if mode.on_demand {
            try_on_demand(pd)?;
        }
        let mut mode = mode;
        if mode.cached && !dispatch::changes::are_in_place() {
            mode.cached = false;
            log::line(
                Level::Info,
                format_args!(
                    "the library does not stand before the C library's memory calls (it was loaded by \
                     dlopen): a domain with the cache registers plainly"
                ),
            );
        }
        let iwarp = pd.transport() == Some(IBV_TRANSPORT_IWARP);
        let domain = Box::new(Domain {
            fclass: AtomicUsize::new(FI_CLASS_DOMAIN),
            context: AtomicPtr::new(context),
            ops: &tables.domain,
            slots: &tables.domain_rest,
            memory: &tables.memory,
            tables,
            process: Process::this(),
            pd,
            mode,
            iwarp,
            fast: AtomicBool::new(
                mode.cached && mode.provider_keys && !mode.raw && !mode.on_demand && !iwarp,
            ),
            rest: Rest::new(),
            keys: Keys::default(),
            bound: OnceLock::new(),
            opened,
        });
        Ok(Box::into_raw(domain).cast())
    }

    /// The domain that C names. It may belong to the parent process.
    ///
    /// # Safety
    /// `fid` is an open domain of this library.
    #[inline(always)]
    pub unsafe fn look(fid: *mut fid) -> &'static Domain {
        // SAFETY: the caller promised an open domain: only domains have the table that led here.
        unsafe { &*fid.cast::<Domain>() }
    }

    /// The domain that C names. A domain that the parent process made is refused.
    ///
    /// # Safety
    /// `fid` is an open domain of this library. The objects that are made of it keep it open by
    /// counting.
    #[inline(always)]
    pub unsafe fn from_c(fid: *mut fid) -> Result<&'static Domain, Failure> {
        // SAFETY: the caller promised an open domain of this library.
        let domain = unsafe { Domain::look(fid) };
        domain.check()?;
        Ok(domain)
    }

    /// The domain of a region.
    #[inline(always)]
    pub fn of(region: &Region) -> &'static Domain {
        // SAFETY: a domain counts its regions, so it exists as long as `region` does.
        unsafe { &*with_exposed_provenance::<Domain>(region.domain) }
    }

    /// The address by which regions remember their domain.
    pub fn address(&self) -> usize {
        (&raw const *self).expose_provenance()
    }

    /// Whether this library made the domain.
    ///
    /// # Safety
    /// `domain` is an open domain of any provider.
    pub unsafe fn is_ours(domain: *mut fid_domain, tables: &Tables) -> bool {
        // SAFETY: the caller promised an open domain.
        let memory = unsafe { (*domain).mr };
        core::ptr::eq(memory, &tables.memory)
    }

    #[inline(always)]
    pub fn check(&self) -> Result<(), Failure> {
        self.process.check()
    }

    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    pub fn pd(&self) -> Pd {
        self.pd
    }

    pub fn is_iwarp(&self) -> bool {
        self.iwarp
    }

    /// The queue that reports registrations, if one is bound.
    #[inline(always)]
    pub fn queue(&self) -> Option<&Bound> {
        self.bound.get()
    }

    /// Whether `fast.rs` may serve a registration.
    #[inline(always)]
    pub fn is_fast(&self) -> bool {
        self.fast.load(Relaxed)
    }

    /// The properties that all regions of the domain share.
    pub fn plan(&self) -> Plan {
        Plan {
            ops: &self.tables.region,
            domain: self.address(),
            process: self.process,
            raw: self.mode.raw,
            context: core::ptr::null_mut(),
            table_key: None,
            is_placed: false,
            base: 0,
            length: 0,
        }
    }

    /// Counts a region, and returns memory of an older region if that memory has rested long
    /// enough. If not, the caller makes the region by `new_region`.
    #[inline(always)]
    pub fn rested(&self) -> Option<usize> {
        self.rest.open()
    }

    /// Makes a region in new memory. `rested` has counted the region already.
    pub fn new_region(&self, plan: &Plan) -> Result<&'static Region, Failure> {
        Region::make_new(plan).inspect_err(|_| self.rest.count_off())
    }

    /// Makes a region in the state `UnderWay`.
    #[inline(always)]
    pub fn open_region(&self, plan: &Plan) -> Result<&'static Region, Failure> {
        match self.rested() {
            Some(rested) => Ok(Region::make(plan, rested)),
            None => self.new_region(plan),
        }
    }

    /// Gives up a region that has no registration. After this call the domain may be gone.
    #[inline(always)]
    pub fn close_region(&self, region: &Region) {
        region.die();
        if let Some(oldest) = self.rest.close(region.address()) {
            // SAFETY: the region is closed, and its memory has left `Rest`, which holds it no
            // longer.
            unsafe { Region::free(oldest) };
        }
    }

    /// Closes the domain.
    ///
    /// # Safety
    /// `fid` is an open domain of this library. After success the caller does not use it again.
    pub unsafe fn close(fid: *mut fid) -> Result<(), Failure> {
        // SAFETY: the caller promised an open domain of this library.
        let domain = unsafe { Domain::from_c(fid) }?;
        if domain.rest.open_now() > 0 {
            return Err(refused(
                FI_EBUSY,
                "the domain still has regions that are not closed",
            ));
        }
        if domain.keys.has_mapped() {
            return Err(refused(
                FI_EBUSY,
                "the domain still has raw keys that are mapped",
            ));
        }
        if let Some(opened) = &domain.opened {
            opened.close(domain.pd)?;
        }
        if let Some(Bound::Own(queue)) = domain.queue() {
            queue.unbind();
        }
        for region in domain.rest.drain() {
            // SAFETY: the region is closed, and the domain that held its memory ends here.
            unsafe { Region::free(region) };
        }
        // SAFETY: `open` made the box, and the caller promised not to use the domain again.
        drop(unsafe { Box::from_raw(fid.cast::<Domain>()) });
        Ok(())
    }

    /// Binds a queue that reports registrations: fi_domain_bind(3).
    ///
    /// # Safety
    /// `queue` is NULL or an open object.
    pub unsafe fn bind(&self, queue: *mut fid, flags: u64) -> Result<(), Failure> {
        if queue.is_null() {
            return Err(invalid("the queue is NULL"));
        }
        // SAFETY: the caller promised an open object, and `queue` is not NULL.
        if unsafe { (*queue).fclass } != FI_CLASS_EQ {
            return Err(invalid("a domain can be bound to an event queue only"));
        }
        if flags != FI_REG_MR {
            return Err(refused(
                FI_EBADFLAGS,
                "a domain is bound with FI_REG_MR and no other flag",
            ));
        }
        if self.bound.get().is_some() {
            return Err(refused(FI_EBUSY, "the domain is bound to a queue already"));
        }
        if self.rest.open_now() > 0 {
            return Err(refused(
                FI_EOPBADSTATE,
                "the domain has regions: bind the queue before the first registration",
            ));
        }
        let eq = queue.cast::<fid_eq>();
        // SAFETY: the class says that the object is an event queue.
        let bound = if unsafe { Queue::is_ours(eq, self.tables) } {
            // SAFETY: `is_ours` found our table; the count of `bind` keeps the queue open.
            let queue = unsafe { Queue::from_c(eq) }?;
            queue.bind();
            Bound::Own(queue)
        } else {
            // SAFETY: the queue is open, and the application keeps it open while a domain is bound
            // to it.
            Bound::Foreign(unsafe { ForeignQueue::try_out(eq) }?)
        };
        self.fast.store(false, Relaxed);
        self.bound.set(bound).map_err(|bound| {
            if let Bound::Own(queue) = bound {
                queue.unbind();
            }
            refused(FI_EBUSY, "the domain is bound to a queue already")
        })
    }

    /// Maps a raw key that a peer has sent: fi_mr_map_raw(3).
    pub fn map(&self, bytes: &[u8], base: u64, flags: u64) -> Result<u64, Failure> {
        if flags != 0 {
            return Err(refused(FI_EBADFLAGS, "a raw key is mapped without flags"));
        }
        may_allocate()?;
        self.keys.map(RawKey::read(bytes, base)?)
    }

    /// Finds a range of a peer's memory: `rdmamr_resolve`.
    pub fn resolve(
        &self,
        key: u64,
        start: u64,
        length: u64,
        room: &mut Room,
    ) -> Result<(), Failure> {
        match u32::try_from(key) {
            // The device's own key. The keys of mapped raw keys are larger.
            Ok(rkey) if self.mode.provider_keys => {
                if length == 0 || start.checked_add(length).is_none() {
                    return Err(invalid(
                        "the range is empty, or runs past the end of the addresses",
                    ));
                }
                room.push(Segment {
                    addr: start,
                    length,
                    lkey: 0,
                    rkey,
                });
            }
            _ => self.keys.resolve(key, start, length, room)?,
        }
        room.check()
    }
}

/// Registers a little memory to find out whether the device pages on demand.
fn try_on_demand(pd: Pd) -> Result<(), Failure> {
    let mut page = Box::new([0u8; 64]);
    let addr = page.as_mut_ptr().cast();
    let request = Request::at_address(addr, page.len(), Access::ON_DEMAND);
    match dispatch::register_rarely(pd, &request) {
        Ok(registered) => {
            // SAFETY: `register_rarely` has just returned this registration.
            let mr = unsafe { Mr::from_c(registered.mr) };
            let ended = mr.map_or(Ok(How::Kernel), dispatch::deregister);
            ended.map(|_| ()).map_err(Failure::from)
        }
        Err(Error::Kernel(Errno(errno)) | Error::Next(Errno(errno)))
            if errno == libc::EOPNOTSUPP || errno == libc::EINVAL =>
        {
            Err(refused(
                FI_ENOSYS,
                "FI_DYNAMIC_MR: the device has no on-demand paging",
            ))
        }
        Err(error) => Err(Failure::from(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_bytes_that_were_agreed() {
        let mode = Mode::agreed(0, FI_MR_SCALABLE).unwrap();
        let last_key = |bytes| mode.with_key_size(bytes).map(|mode| mode.last_key).ok();
        assert_eq!(last_key(1), Some(0xff));
        assert_eq!(last_key(4), Some(0xffff_ffff));
        // The value above is FI_KEY_NOTAVAIL.
        assert_eq!(last_key(8), Some(u64::MAX - 1));
        assert_eq!((last_key(0), last_key(9)), (None, None));
    }
}
