// SPDX-License-Identifier: MIT OR Apache-2.0
//! A miss, of a plain call or a relaxed one: makes a new region.

use crate::admission::{Unserved, admit};
use crate::counted;
use crate::instance::Cache;
use crate::life::cleaner::{MANY, SHARE, TOO_MANY};
use crate::life::device_files::DEVICE_FILES;
use crate::life::ending;
use crate::life::flush::relieve;
use crate::life::hit::{Answer, hit, hit_by};
use crate::locked::{By, Locked};
use crate::region::slot::{Cause, Id, LookupKey};
use crate::region::state::Grant;
use crate::regions::Regions;
use crate::released::RELEASED;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::Ordering::*;
use rdmamr_config::config;
use rdmamr_mr::gpu::{self, Export};
use rdmamr_mr::kernel_mr::{self, Direct};
use rdmamr_mr::refused::{OnDevice, Refused, says};
use rdmamr_mr::{Error, How, Registered, Request};
use rdmamr_next::Pd;
use rdmamr_policy::is_remote;
use rdmamr_stats::{Change, Counter, counter, log};
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::{aside, clock, thread};

/// How often a registration looks for a region again because of an event.
const LOOKS: u32 = 3;

/// How many times a registration asks a kernel that is short of a resource. Before each retry the
/// idle regions end, and other threads may leave more and more idle regions.
const TRIES: u32 = 4;

/// Whether a registration failed for want of what idle regions hold.
#[cold]
pub fn is_shortage(pd: Pd, request: &Request, error: Error) -> bool {
    let refused = Refused {
        request: *request,
        device: OnDevice::of(pd),
    };
    match error {
        Error::Kernel(errno) | Error::Next(errno) => refused.is_shortage(errno.0),
        Error::Gpu(_, obstacle) => obstacle
            .of_dmabuf()
            .is_some_and(|errno| is_shortage_for_dmabuf(pd, errno.0)),
        _ => false,
    }
}

/// Whether a dma-buf was refused for want of what idle regions hold: keys of the device.
pub fn is_shortage_for_dmabuf(pd: Pd, errno: i32) -> bool {
    matches!(errno, libc::ENOMEM | libc::EAGAIN | libc::ENOSPC)
        || errno == says(OnDevice::of(pd)).full
}

/// Registers memory after [`hit()`] has given this answer and no region. The region of a
/// plain call serves no other user at the same time.
///
/// Preserves errno, as a registration that succeeds must, be it here or later by the caller.
#[cold]
pub fn register(
    pd: Pd,
    request: &Request,
    answer: Answer,
    is_plain: bool,
) -> Result<Registered, Unserved> {
    let now = || register_now(pd, request, answer, is_plain);
    // A plain call has changed to the larger stack already (`dispatch/reuse.rs`).
    let registered = thread::keep_errno(|| match is_plain {
        true => Some(now()),
        false => aside::run_if_little(now),
    });
    registered.unwrap_or(Err(Unserved::Because(counter!(bypassed_limit))))
}

#[inline(never)]
fn register_now(
    pd: Pd,
    request: &Request,
    answer: Answer,
    is_plain: bool,
) -> Result<Registered, Unserved> {
    let admitted = admit(pd, request, is_plain)?;
    let cache = admitted.cache;
    let (mut answer, mut looks) = (answer, 0);
    while answer.is_unsettled() {
        if looks == LOOKS || !cache.catch_up() {
            return Err(Unserved::Because(counter!(bypassed_busy)));
        }
        looks += 1;
        let addr = request.addr.addr();
        answer = hit(pd, addr, request.length, request.access, is_plain);
        if let Some(mr) = answer.region() {
            return Ok(Registered::by(How::Hit, mr));
        }
    }
    cache.miss(&admitted.direct, pd, request, &admitted.lookup_key, None)
}

/// Registers memory of a GPU for which no region serves, and ends the regions there of allocations that
/// were freed. Preserves errno.
#[cold]
pub fn register_of_gpu(
    pd: Pd,
    request: &Request,
    lookup_key: &LookupKey,
) -> Result<Registered, Unserved> {
    let errno = errno::errno();
    // The runtime, and the close of the export, may be cancellation points. `ibv_reg_mr` is none.
    let _uncancelled = thread::uncancelled();
    let made = admit(pd, request, true).and_then(|admitted| {
        let cache = admitted.cache;
        let inside = thread::enter();
        if let Some(locked) = cache.lock_and_apply() {
            locked.invalidate_freed(lookup_key.page_range, lookup_key.allocation);
            drop(locked);
            ending::deregister_evicted(cache, By::Program);
        }
        drop(inside);
        // An event may have kept a region from serving, or another thread may have made one.
        let (addr, length) = (request.addr.addr() as u64, request.length as u64);
        let answer = hit_by(cache, lookup_key, addr, length);
        if let Some(mr) = answer.region() {
            return Ok(Registered::by(How::Hit, mr));
        }
        if answer.is_unsettled() {
            return Err(Unserved::Because(counter!(bypassed_busy)));
        }
        let export = match gpu::was_refused() {
            true => {
                let exported = gpu::export_pages(lookup_key.page_range);
                Some(exported.ok_or(Unserved::Because(counter!(bypassed_memory)))?)
            }
            false => None,
        };
        cache.miss(&admitted.direct, pd, request, lookup_key, export.as_ref())
    });
    errno::set_errno(errno);
    made
}

impl Cache {
    /// Lets the reader read, and applies what it has read. False if another task holds the lock.
    #[cold]
    pub fn catch_up(&self) -> bool {
        let _inside = thread::enter();
        // The kernel may have an event that the reader has not begun to read.
        std::thread::yield_now();
        self.lock_and_apply().is_some()
    }

    /// Makes a new region for the caller, of its memory or of an export of it.
    fn miss(
        &self,
        direct: &Direct,
        pd: Pd,
        request: &Request,
        lookup_key: &LookupKey,
        export: Option<&Export>,
    ) -> Result<Registered, Unserved> {
        let inside = thread::enter();
        self.mind_limits(direct, pd);
        if self.regions.ending() > TOO_MANY {
            ending::deregister_some_evicted(self, By::Program, SHARE);
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(locked) = self.lock_to_link(lookup_key.page_range) else {
                return Err(Unserved::Because(counter!(bypassed_busy)));
            };
            if lookup_key.exclusive && locked.is_crowded(lookup_key.page_range.start) {
                return Err(Unserved::Because(counter!(bypassed_limit)));
            }
            let made = locked.make(lookup_key);
            drop(locked);
            let id = made.ok_or(Unserved::Because(counter!(bypassed_limit)))?;
            match self.pin(direct, request, id, export) {
                Ok(unwatched) => {
                    self.keep(id, lookup_key, unwatched);
                    drop(inside);
                    log::write_waiting();
                    // A few regions can wait for the cleaner's next tick: a cleaner that is woken
                    // now would compete with this thread.
                    if self.regions.ending() >= MANY {
                        self.cleaner.wake();
                    }
                    let object = self.regions.region(id).object();
                    let mr = with_exposed_provenance_mut(object);
                    return Ok(Registered::by(How::Miss, mr));
                }
                Err(error) => {
                    match ending::end_watch(self, id, By::Program) {
                        Some(locked) => locked.free(id),
                        // The cleaner ends this region, which has no user and does not exist in the
                        // kernel.
                        None => {
                            let _ = self.regions.region(id).state.release(Grant::Own);
                            self.cleaner.wake();
                        }
                    }
                    if direct.must_forward() {
                        return Err(Unserved::Because(counter!(bypassed_device)));
                    }
                    let is_short = match export {
                        Some(_) => is_shortage_for_dmabuf(pd, error.errno()),
                        None => is_shortage(pd, request, error),
                    };
                    if !is_short || tries == TRIES || !relieve(self) {
                        return Err(Unserved::Failed(error));
                    }
                }
            }
        }
    }

    /// Takes the lock, in order to link a region. First waits a moment for the end of a watch nearby,
    /// beside which the region would not be kept: of memory, for example, that the program has just
    /// freed and got again. `None` if another task holds the lock.
    pub fn lock_to_link(&self, page_range: PageRange) -> Option<Locked<'_>> {
        let locked = self.regions.lock_by(By::Program)?;
        // While a call is counted, the region is not kept in any case.
        if !locked.is_unwatching_near(page_range) || counted::is_any() {
            return Some(locked);
        }
        drop(locked);
        self.regions.wait_for_an_end();
        self.regions.lock_by(By::Program)
    }

    /// Has userfaultfd watch the memory of a region or monitored range that is linked and not kept.
    /// Watches nothing while a call is counted, since the region would not be kept. An error is the
    /// counter of the reason.
    pub fn watch_memory(&self, id: Id) -> Result<(), Counter> {
        if counted::is_any() {
            return Err(counter!(bypassed_busy));
        }
        let region = self.regions.region(id);
        // Before the kernel knows: whoever learns of a change right after that must find it.
        region.set_watched();
        self.watch.watch(region.page_range())
    }

    /// First has userfaultfd watch the memory, then has the kernel pin and register it. Memory of a GPU is
    /// not watched: its allocation tells whether it is the same (`dispatch/of_gpu.rs`). Returns why
    /// memory is not watched.
    fn pin(
        &self,
        direct: &Direct,
        request: &Request,
        id: Id,
        export: Option<&Export>,
    ) -> Result<Option<Counter>, Error> {
        let region = self.regions.region(id);
        let page_range = region.page_range();
        let needs_watch = !region.is_of_gpu();
        let unwatched = needs_watch.then(|| self.watch_memory(id).err()).flatten();
        let start = with_exposed_provenance_mut(page_range.start as usize);
        let pages = Request::at_address(start, page_range.bytes() as usize, request.access);
        let is_watched = needs_watch && unwatched.is_none();
        let (made, answer) = kernel_mr::register(direct, &pages, export, is_watched)?;
        region.device.store(made.device, Relaxed);
        region.fd.store(made.fd, Relaxed);
        DEVICE_FILES.add(made.fd);
        region.kernel_handle.store(made.handle, Relaxed);
        region.describe(request, &answer);
        let thread = thread::number();
        let device = kernel_mr::counted_at(made.device);
        self.counters.add(thread, counter!(reg_kernel), 1);
        self.counters.count_on(thread, device);
        let more = Change::more(region.pinned());
        self.counters.change_of_cache(thread, device, more);
        Ok(unwatched)
    }

    /// Takes the lock and applies the ring. `None` if another task holds the lock.
    pub fn lock_and_apply(&self) -> Option<Locked<'_>> {
        self.regions.ring.wait_for_reader();
        let locked = self.regions.lock_by(By::Program)?;
        self.apply(&locked, By::Program);
        Some(locked)
    }

    /// Lets other registrations use the region, now or after its release, as far as that is safe.
    fn keep(&self, id: Id, lookup_key: &LookupKey, unwatched: Option<Counter>) {
        let unproved = || match lookup_key.allocation {
            0 => self.watch.is_private(lookup_key.page_range).err(),
            _ => None,
        };
        let count = |reason| self.counters.add(thread::number(), reason, 1);
        let mut reason = unwatched.or_else(unproved);
        let Some(locked) = self.lock_and_apply() else {
            // The region was not kept, so only its caller uses it. The invalidated bit needs no
            // lock.
            self.regions.region(id).state.invalidate();
            return count(counter!(bypassed_busy));
        };
        // The region serves its caller alone, now and after its release, if the library would not learn
        // of a change of its memory, if remote peers must get fresh keys, or if the cache keeps no
        // region with this access.
        let own = reason.is_some()
            || (config().cache.fresh_keys && is_remote(lookup_key.access))
            || !self.cleaner.keeps(lookup_key.access);
        if own && reason != Some(counter!(bypassed_busy)) {
            RELEASED.give_up(&self.regions.region(id).range());
        }
        let is_kept = || self.is_certain(&locked, lookup_key.page_range) && locked.keep(id);
        if !own && !is_kept() {
            locked.invalidate(id, Cause::Uncertain);
            reason = Some(counter!(bypassed_busy));
        }
        drop(locked);
        count(reason.unwrap_or(counter!(misses)));
    }

    /// Whether no change of this memory is under way that would neither invalidate a region nor
    /// raise an event from now on. Also false once no hit may succeed any more.
    pub fn is_certain(&self, locked: &Locked<'_>, page_range: PageRange) -> bool {
        let Regions { ring, noted, .. } = locked.regions();
        !noted.overlap(page_range)
            && ring.is_settled()
            && !ring.may_be_dropping(page_range, clock::monotonic_by_kernel)
    }
}
