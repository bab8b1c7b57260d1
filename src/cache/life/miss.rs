// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_reg_mr_relaxed(3) after a miss: looks closer for a region, and makes a new one if there is
//! none.

use crate::cause::Cause;
use crate::instance::{Cache, existing, is_of_parent};
use crate::life::admission::{Memory, NOW, Noted};
use crate::life::change;
use crate::life::cleaner::{MANY, SHARE, TOO_MANY, now_ms};
use crate::life::cleaning;
use crate::life::device_files::DEVICE_FILES;
use crate::life::ending;
use crate::life::flush::relieve;
use crate::life::hit::{Answer, hit};
use crate::locked::{By, Locked, New};
use crate::region::key::LookupKey;
use crate::region::link::Id;
use crate::region::slot::LEFT;
use crate::region::state::Grant;
use crate::released::RELEASED;
use crate::start;
use crate::watch::failure::say_passed_by;
use crate::watch::in_place;
use crate::watch::listeners::is_retired;
use crate::watch::table::TABLE;
use crate::watch::watcher::Unwatched;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::Ordering::*;
use core::time::Duration;
use rdmamr_config::{config, disabled};
use rdmamr_mr::kernel_mr::{self, Direct};
use rdmamr_mr::refused::{OnDevice, Refused, says};
use rdmamr_mr::{Error, How, Object, Registered, Request};
use rdmamr_next::Pd;
use rdmamr_policy::is_remote;
use rdmamr_stats::log;
use rdmamr_stats::{Change, Counter, counter};
use rdmamr_sys::aside;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::thread;

/// How many times a registration that missed looks closer: once for a new region, and again if an
/// event comes.
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
    matches!(errno, libc::ENOMEM | libc::EAGAIN) || errno == says(OnDevice::of(pd)).full
}

/// Refuses arguments that no relaxed registration can have. Returns the page range of the memory.
fn check(request: &Request) -> Result<PageRange, Error> {
    if let Some(why) = request.access.refusal() {
        return Err(Error::Argument(why));
    }
    if request.length == 0 {
        return Err(Error::Argument("the length is 0"));
    }
    PageRange::around(request.addr.addr() as u64, request.length as u64).ok_or(Error::Argument(
        "address and length run past the end of the address space",
    ))
}

/// The result of a closer look for a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// The next hit finds a region, as a rule.
    Again,
    Nothing,
    /// A region would serve, but the kernel has not said that its memory is the process's own.
    Uncertain,
}

/// Why the cache does not serve a registration.
pub enum Unserved {
    /// The caller must make a plain region. The counter tells the reason.
    Because(Counter),
    /// The registration failed.
    Failed(Error),
}

/// Registers memory after [`hit()`] has given this answer and no region. If `unshared` is set, the
/// caller does not share its region with another user.
///
/// Preserves errno, as a registration that succeeds must, be it here or later by the caller.
#[cold]
pub fn register(
    pd: Pd,
    request: &Request,
    answer: Answer,
    unshared: bool,
) -> Result<Registered, Unserved> {
    let errno = errno::errno();
    let now = || register_now(pd, request, answer, unshared);
    // A plain call has changed to the larger stack already (`dispatch/reuse.rs`).
    let registered = if unshared {
        Some(now())
    } else {
        aside::run_if_little(now)
    };
    errno::set_errno(errno);
    registered.unwrap_or(Err(Unserved::Because(counter!(bypassed_limit))))
}

#[inline(never)]
fn register_now(
    pd: Pd,
    request: &Request,
    answer: Answer,
    unshared: bool,
) -> Result<Registered, Unserved> {
    let because = |reason| Err(Unserved::Because(reason));
    if disabled() {
        return because(counter!(bypassed_device));
    }
    if !rdmamr_policy::may_be_kept(request.access.bits()) {
        return because(counter!(bypassed_access));
    }
    let page_range = check(request).map_err(Unserved::Failed)?;
    // Once no hit can succeed any more, the cache makes no region, because it could not reuse it.
    let distrusted = existing().is_some_and(|cache| cache.regions.ring.is_distrusted());
    if thread::is_inside() {
        return because(counter!(bypassed_busy));
    }
    if distrusted {
        log::write_waiting();
        return because(counter!(bypassed_busy));
    }
    if kernel_mr::is_fork_protected_in(pd) {
        // When a region ends, its memory must be given back to children, and the cache's threads
        // cannot call libibverbs.
        return because(counter!(bypassed_fork));
    }
    // Checked before the cache starts: under `RDMAMR_CACHE` a device that libibverbs serves needs
    // no cache. (The start logs why regions are not reused, and users of relaxed calls should read
    // that.)
    let direct = Direct::find(pd, request);
    if unshared && direct.is_err() {
        return because(counter!(bypassed_device));
    }
    if is_retired() {
        return because(counter!(bypassed_watch));
    }
    if !in_place::ends_come() {
        // A plain region's object may be freed by a provider.
        if !in_place::are_in_place() {
            say_passed_by();
        }
        return because(counter!(bypassed_watch));
    }
    if start::would_keep_files() {
        return because(counter!(bypassed_watch));
    }
    let Some(cache) = start::current() else {
        // Another thread is starting the cache, or there is no memory for it.
        return because(if is_of_parent() {
            counter!(bypassed_fork)
        } else {
            counter!(bypassed_busy)
        });
    };
    cleaning::start(cache);
    let Ok(direct) = direct else {
        return because(counter!(bypassed_device));
    };
    if !TABLE.is_here() {
        // In this thread's table of descriptors, the numbers of the device and of the watch mean
        // other files.
        return because(counter!(bypassed_watch));
    }
    let lookup_key = LookupKey::of(pd, page_range, request.access, unshared);
    if !lookup_key.can_be_kept() {
        return because(counter!(bypassed_limit));
    }
    let mut answer = answer;
    // A hit still finds nothing if another entry of the table takes the place, or if no handle is
    // left.
    for _ in 0..LOOKS {
        match cache.look_closer(&lookup_key, answer) {
            Look::Again => {}
            Look::Nothing => break,
            // Another region here would be as uncertain as the one that is there.
            Look::Uncertain => return because(counter!(bypassed_busy)),
        }
        let addr = request.addr.addr();
        answer = hit(pd, addr, request.length, request.access, unshared);
        if let Some(mr) = answer.region() {
            return Ok(Registered::by(How::Hit, mr));
        }
    }
    if answer.is_unsettled() {
        return because(counter!(bypassed_busy));
    }
    let made = cache.miss(&direct, pd, request, &lookup_key);
    made.map(|object| Registered::by(How::Miss, with_exposed_provenance_mut(object)))
}

impl Cache {
    /// Looks for a region that would serve but that a hit did not find, with this answer.
    pub fn look_closer(&self, lookup_key: &LookupKey, answer: Answer) -> Look {
        let _inside = thread::enter();
        if answer.is_unsettled() {
            return match self.catch_up() {
                true => Look::Again,
                false => Look::Uncertain,
            };
        }
        let Some(locked) = self.regions.lock_of_program() else {
            return Look::Uncertain;
        };
        match locked.new_region(lookup_key) {
            Some(new) => self.look_at_memory(locked, new),
            None => Look::Nothing,
        }
    }

    /// Lets the reader read, and applies what it has read. False if another task holds the lock.
    #[cold]
    pub fn catch_up(&self) -> bool {
        let _inside = thread::enter();
        // The kernel may have an event that the reader has not begun to read.
        std::thread::yield_now();
        self.regions.ring.wait_for_reader();
        let locked = self.regions.lock_of_program();
        if let Some(locked) = &locked {
            self.apply(locked, By::Program);
        }
        locked.is_some()
    }

    /// Asks the kernel what kind of memory a region or monitored range has, before its first reuse.
    pub fn look_at_memory(&self, locked: Locked<'_>, new: New) -> Look {
        let newest = locked.kept();
        drop(locked);
        let memory = self.admission.ask(new.page_range, new.kept, newest);
        let Some(locked) = self.regions.lock_of_program() else {
            return Look::Uncertain;
        };
        match memory {
            Memory::Own if locked.admit(new) => Look::Again,
            Memory::Own => Look::Nothing,
            Memory::Foreign(foreign) => {
                RELEASED.give_up(&self.regions.region(new.id).range());
                locked.regions().foreign.note(foreign);
                locked.refuse(new);
                Look::Nothing
            }
            Memory::Unknown => Look::Uncertain,
        }
    }

    /// Makes a new region for the caller.
    fn miss(
        &self,
        direct: &Direct,
        pd: Pd,
        request: &Request,
        lookup_key: &LookupKey,
    ) -> Result<usize, Unserved> {
        let inside = thread::enter();
        self.limits.mind(self.regions, direct, pd);
        if self.regions.ending() > TOO_MANY {
            ending::some_evicted(self, By::Program, SHARE);
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(locked) = self.lock_to_link(lookup_key.page_range) else {
                return Err(Unserved::Because(counter!(bypassed_busy)));
            };
            if lookup_key.unshared && locked.is_crowded(lookup_key.page_range.start) {
                return Err(Unserved::Because(counter!(bypassed_limit)));
            }
            let known = locked.watched_around(lookup_key.page_range);
            let made = locked.make(lookup_key);
            drop(locked);
            let id = made.ok_or(Unserved::Because(counter!(bypassed_limit)))?;
            match self.pin(direct, pd, request, id, known) {
                Ok(watched) => {
                    self.keep(id, lookup_key, watched);
                    drop(inside);
                    log::write_waiting();
                    // A few regions can wait for the cleaner's next tick: a cleaner that is woken
                    // now would compete with this thread.
                    if self.regions.ending() >= MANY {
                        self.cleaner.wake();
                    }
                    return Ok(self.regions.region(id).object());
                }
                Err(error) => {
                    // This cause also ends the watch of the memory, so that no mapping stays split.
                    let region = self.regions.region(id);
                    region.cause.store(Cause::Flush.in_word(), Relaxed);
                    match ending::leave(self, id, By::Program) {
                        Some(locked) => locked.end(id),
                        // The cleaner ends this region, which has no user and does not exist in the
                        // kernel.
                        None => {
                            region.fd.store(LEFT, Relaxed);
                            region.device.store(direct.address(), Relaxed);
                            let device = kernel_mr::counted_at(direct.address());
                            // The thread that ends the region subtracts this again.
                            let more = Change::more(region.page_range().bytes());
                            self.counters
                                .change_of_cache(thread::number(), device, more);
                            let _ = self.regions.give_back(id, Grant::Own);
                            self.cleaner.wake();
                        }
                    }
                    if direct.must_forward() {
                        return Err(Unserved::Because(counter!(bypassed_device)));
                    }
                    if !is_shortage(pd, request, error) || tries == TRIES || !relieve(self) {
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
        let locked = self.regions.lock_of_program()?;
        if !locked.is_unwatching_near(page_range) {
            return Some(locked);
        }
        drop(locked);
        self.regions.wait_for_an_end(Duration::from_millis(1));
        self.regions.lock_of_program()
    }

    /// Has userfaultfd watch the memory of a region or monitored range that is linked and not kept.
    /// `known` is what is watched around it for others. Beside another thread's call that may change
    /// any memory it is not watched, since it would not be kept.
    pub fn watch_memory(&self, id: Id, known: Option<PageRange>) -> Result<(), Unwatched> {
        let region = self.regions.region(id);
        if change::is_under_way() {
            return Err(Unwatched::Busy);
        }
        let claim = |extent| region.claim_extent(extent);
        let watched = self.watch.watch(region.page_range(), known, claim);
        if watched == Err(Unwatched::HugePages) {
            match self.regions.lock_of_program() {
                Some(locked) => locked.invalidate_near(id),
                None => self.regions.ring.lose(),
            }
        }
        watched
    }

    /// First has userfaultfd watch the memory, then has the kernel pin and register it.
    fn pin(
        &self,
        direct: &Direct,
        pd: Pd,
        request: &Request,
        id: Id,
        known: Option<PageRange>,
    ) -> Result<Result<(), Unwatched>, Error> {
        let region = self.regions.region(id);
        let page_range = region.page_range();
        let watched = self.watch_memory(id, known);
        let start = with_exposed_provenance_mut(page_range.start as usize);
        let pages = Request::at_address(start, page_range.bytes() as usize, request.access);
        let (made, answer) = kernel_mr::register(direct, &pages, watched.is_ok())?;
        region.device.store(made.device, Relaxed);
        region.fd.store(made.fd, Relaxed);
        DEVICE_FILES.add(made.fd);
        region.handle.store(made.handle, Relaxed);
        if let Some(object) = Object::at(region.object()) {
            object.fill(pd, request, &answer);
        }
        let thread = thread::number();
        let device = kernel_mr::counted_at(made.device);
        self.counters.add(thread, counter!(reg_kernel), 1);
        self.counters.count_on(thread, device);
        let more = Change::more(page_range.bytes());
        self.counters.change_of_cache(thread, device, more);
        Ok(watched)
    }

    /// Takes the lock and applies the ring. Also tells whether this memory is known to be foreign.
    /// `None` if another task holds the lock.
    pub fn lock_and_look(&self, page_range: PageRange) -> Option<(Locked<'_>, bool)> {
        self.regions.ring.wait_for_reader();
        let locked = self.regions.lock_of_program()?;
        self.apply(&locked, By::Program);
        match locked.regions().foreign.look(page_range) {
            Noted::Nothing => return Some((locked, false)),
            Noted::Foreign => return Some((locked, true)),
            Noted::Ask => {}
        }
        let newest = locked.kept();
        drop(locked);
        let memory = self.admission.ask(page_range, NOW, newest);
        let locked = self.regions.lock_of_program()?;
        self.apply(&locked, By::Program);
        match memory {
            Memory::Own => locked.regions().foreign.forget(page_range),
            Memory::Foreign(range) => locked.regions().foreign.note(range),
            Memory::Unknown => {}
        }
        Some((locked, memory != Memory::Own))
    }

    /// Lets other registrations use the region, now or after its release, as far as that is safe.
    fn keep(&self, id: Id, lookup_key: &LookupKey, watched: Result<(), Unwatched>) {
        let count = |reason| self.counters.add(thread::number(), reason, 1);
        let mut reason = watched.err().map(|why| match why {
            Unwatched::Refused => counter!(bypassed_watch),
            Unwatched::Memory | Unwatched::HugePages => counter!(bypassed_memory),
            Unwatched::Limit => counter!(bypassed_limit),
            Unwatched::Busy => counter!(bypassed_busy),
        });
        let Some((locked, foreign)) = self.lock_and_look(lookup_key.page_range) else {
            // The region was not kept, so only its caller uses it. The invalidated bit needs no
            // lock.
            self.regions.region(id).state.invalidate();
            return count(counter!(bypassed_busy));
        };
        if foreign {
            reason = reason.or(Some(counter!(bypassed_memory)));
        }
        // Only the caller uses the region, even while it is in use, if the library would not learn
        // of a change of its memory, if remote peers must get fresh keys, or if the cache keeps no
        // region with this access.
        let own = reason.is_some()
            || (config().cache.fresh_keys && is_remote(lookup_key.access))
            || !self.cleaner.keeps(lookup_key.access);
        let kept = own || (self.is_certain(&locked, lookup_key.page_range) && locked.keep(id));
        if own && reason != Some(counter!(bypassed_busy)) {
            RELEASED.give_up(&self.regions.region(id).range());
        }
        if !kept {
            locked.invalidate(id, Cause::Fence);
            reason = reason.or(Some(counter!(bypassed_busy)));
        }
        drop(locked);
        count(reason.unwrap_or(counter!(misses)));
    }
    /// Whether no change of this memory is under way that would neither invalidate a region nor
    /// raise an event from now on. Also false once no hit may succeed any more.
    pub fn is_certain(&self, locked: &Locked<'_>, page_range: PageRange) -> bool {
        !change::is_under_way()
            && !self.regions.noted.overlap(page_range)
            && self.regions.ring.is_settled()
            && !locked.may_be_dropping(page_range, now_ms)
    }
}
