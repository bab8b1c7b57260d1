// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering, ibv_reg_mr_relaxed(3): a hit, or the long way to a new region.

use super::cleaner::{is_remote, now_ms};
use super::ending::{self, By};
use super::flush::{end_spent, relieve};
use super::hit::Miss;
use super::hull::Range;
use super::pool::{Cause, Locked};
use super::region::{Id, Purpose};
use super::watch::{Unwatched, Watched};
use super::{Fence, Instance, beside_plain, lock, start};
use crate::abi::rdma_core::ibv_mr;
use crate::config::{config, disabled};
use crate::mr::bare::{self, Own};
use crate::mr::{self, Access, Error, Object, Pd, Request};
use crate::stats::Counter;
use crate::thread;
use crate::trace::{self, format::how};
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicU32, Ordering::*};
use core::time::Duration;
use errno::Errno;

/// Access that a region of the pool cannot have. Such a region is the caller's own: what is paged on demand
/// is not pinned, a window that is bound to a shared region would keep it from ending, and the others
/// depend on the address and on the kind of the memory.
pub const OWN_REGION: Access = Access::ON_DEMAND
    .union(Access::ZERO_BASED)
    .union(Access::MW_BIND)
    .union(Access::HUGETLB);

/// How often a registration that misses looks closer: for a region that is new, for one that begins at another page, and
/// once more if the region was somebody's in between.
const LOOKS: u32 = 3;

/// What no relaxed registration can have.
fn check(request: &Request) -> Result<Range, Error> {
    if let Some(why) = request.access.refusal() {
        return Err(Error::Argument(why));
    }
    if request.length == 0 {
        return Err(Error::Argument("the length is 0"));
    }
    Range::hull(request.addr.addr() as u64, request.length as u64).ok_or(Error::Argument(
        "address and length run past the end of the address space",
    ))
}

/// Registers memory that missed; `alone` if another's region would not do while it is in use.
#[cold]
pub fn register(
    pd: Pd,
    request: &Request,
    miss: Miss<()>,
    alone: bool,
) -> Result<*mut ibv_mr, Error> {
    let hull = check(request)?;
    let own_region = |reason| {
        let counters = &mr::state::current().counters;
        counters.add(thread::number(), reason, 1);
        beside_plain::register(pd, request)
    };
    if disabled() {
        return own_region(Counter::BypassedDevice);
    }
    if request.access.intersects(OWN_REGION) {
        return own_region(Counter::BypassedAccess);
    }
    if thread::is_inside() {
        return own_region(Counter::BypassedBusy);
    }
    let Some(relaxed) = start::current() else {
        // A child of a process that had a pool, or no memory for one.
        return own_region(Counter::BypassedFork);
    };
    let Ok(own) = bare::find(pd, request) else {
        return own_region(Counter::BypassedDevice);
    };
    let purpose = relaxed.purpose(pd, hull, request.access, alone);
    let mut missed = miss;
    let mut looks = 0;
    let settled = loop {
        match missed {
            Miss::Unsettled(_) if !relaxed.settle() => break false,
            Miss::Unsettled(_) => {}
            // Where another way leads by the same place, or no handle is left, a hit finds nothing even then.
            Miss::None if looks < LOOKS && relaxed.look_closer(&purpose) => looks += 1,
            Miss::None => break true,
        }
        let addr = request.addr.addr();
        let hit = if alone {
            super::hit_alone(pd, addr, request.length, request.access)
        } else {
            super::hit(pd, addr, request.length, request.access)
        };
        match hit {
            Ok(mr) => return Ok(mr),
            Err(miss) => missed = miss,
        }
    };
    match relaxed.miss(&own, pd, request, &purpose, settled) {
        Err(Left::Own(reason)) => own_region(reason),
        Err(Left::Error(error)) => Err(error),
        Ok(object) => Ok(with_exposed_provenance_mut(object)),
    }
}

/// Why the pool has no region.
enum Left {
    /// The caller is to have a region of its own, for the reason that is counted.
    Own(Counter),
    Error(Error),
}

impl Instance {
    /// Applies the log, and waits a moment for what is under way. False if that does not end: it may be
    /// this thread's, interrupted.
    pub(super) fn settle(&self) -> bool {
        const SPINS: u32 = 64;
        const YIELDS: u32 = 16;
        const SLEEPS: u32 = 40;
        for round in 0..SPINS + YIELDS + SLEEPS {
            let changes = &self.pool.changes;
            if changes.is_behind() {
                let _inside = thread::enter();
                self.apply(&self.pool.lock(), By::Program);
            }
            if changes.settled().is_some() {
                match self.watch.must_fence().then(|| self.watch.fence()) {
                    None | Some(Fence::Passed) => return true,
                    Some(Fence::UnderWay) => {}
                    // Nothing is certain any more, and no hit will be.
                    Some(Fence::Lost) => return false,
                }
            }
            if round < SPINS {
                core::hint::spin_loop();
            } else if round < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                // No more yields: a thread of real-time priority would keep the one that it waits for off.
                let never = AtomicU32::new(0);
                lock::wait(&never, 0, Some(Duration::from_micros(50)));
            }
        }
        false
    }

    /// Looks for a region that would serve, but that a hit does not find. If there is one, the next hit does, as a rule.
    pub(super) fn look_closer(&self, purpose: &Purpose) -> bool {
        let inside = thread::enter();
        let locked = self.pool.lock();
        if locked.has_new(purpose) {
            // The first time that a region is used again: a mapping may have been made by a bare system call,
            // and to read them takes 20 us or more, which a region that is used once need not pay for.
            drop(locked);
            start::read_shared_memory(self);
            return true;
        }
        // One that begins at another page.
        if !purpose.exact
            && let Some((id, grant)) = locked.take(purpose)
        {
            drop(locked);
            drop(inside);
            self.give_up(id, grant);
            return true;
        }
        false
    }

    /// Makes a region.
    fn miss(
        &self,
        own: &Own,
        pd: Pd,
        request: &Request,
        purpose: &Purpose,
        settled: bool,
    ) -> Result<usize, Left> {
        let inside = thread::enter();
        if self.pool.ending() > super::TOO_MANY {
            ending::doomed(self, By::Program);
        }
        if self.has_spent.load(Relaxed) && self.has_spent.swap(false, Relaxed) {
            end_spent(self);
        }
        loop {
            let locked = self.pool.lock();
            if purpose.alone && locked.is_crowded(purpose.hull.start) {
                return Err(Left::Own(Counter::BypassedLimit));
            }
            let made = locked.make(purpose);
            drop(locked);
            let id = made.ok_or(Left::Own(Counter::BypassedLimit))?;
            match self.pin(own, pd, request, id) {
                Ok(watched) => {
                    self.keep(id, purpose, watched, settled);
                    trace::note(how::MISS);
                    drop(inside);
                    // Little of it waits for the cleaner's next tick: to wake it now is to have it in the way.
                    if self.pool.has_much_to_end(super::MANY) {
                        self.cleaner.wake();
                    }
                    return Ok(self.pool.region(id).object());
                }
                Err(error) => {
                    self.pool.lock().end(id);
                    if own.is_left_to_libibverbs() {
                        return Err(Left::Own(Counter::BypassedDevice));
                    }
                    if !matches!(error, Error::Kernel(Errno(libc::ENOMEM | libc::EAGAIN))) {
                        return Err(Left::Error(error));
                    }
                    let under_way = self.pool.is_ending();
                    if !relieve(self) {
                        return Err(Left::Error(if under_way {
                            Error::Shortage(
                                "regions that were released are just being deregistered",
                            )
                        } else {
                            Error::Kernel(Errno(libc::ENOMEM))
                        }));
                    }
                }
            }
        }
    }

    /// Has the memory watched, then pinned and registered.
    fn pin(
        &self,
        own: &Own,
        pd: Pd,
        request: &Request,
        id: Id,
    ) -> Result<Result<Watched, Unwatched>, Error> {
        let region = self.pool.region(id);
        let hull = region.hull();
        let watched = self
            .watch
            .watch(hull, self.pool.filter.has_many_neighbours(hull));
        let start = with_exposed_provenance_mut(hull.start as usize);
        let pages = Request::at_address(start, hull.bytes() as usize, request.access);
        let watch = match watched {
            Ok(_) => bare::Watch::Own,
            Err(_) => bare::Watch::Unknown,
        };
        let (bare, answer) = bare::register(own, pd, &pages, watch)?;
        region.device.store(bare.device, Relaxed);
        region.fd.store(bare.fd, Relaxed);
        region.handle.store(bare.handle, Relaxed);
        region.watched.store(ending::watched(watched), Relaxed);
        if let Some(object) = Object::at(region.object()) {
            object.fill(pd, request, &answer);
        }
        let thread = thread::number();
        self.counters.add(thread, Counter::RegKernel, 1);
        Ok(watched)
    }

    /// Takes the lock, with the log applied and the range's shared memory, if any, not in doubt.
    pub(super) fn lock_with_shared_memory(&self, hull: Range) -> Locked<'_> {
        let locked = self.pool.lock();
        self.apply(&locked, By::Program);
        if locked.shared_memory().at(hull).is_none() || !locked.shared_memory().is_doubtful() {
            return locked;
        }
        drop(locked);
        start::read_shared_memory(self);
        let locked = self.pool.lock();
        self.apply(&locked, By::Program);
        locked
    }

    /// Lets others use the region, now or after its release, as far as that is safe.
    fn keep(&self, id: Id, purpose: &Purpose, watched: Result<Watched, Unwatched>, settled: bool) {
        let count = |reason| self.counters.add(thread::number(), reason, 1);
        let mut reason = watched.err().map(|why| match why {
            Unwatched::Refused => Counter::BypassedWatch,
            Unwatched::Memory => Counter::BypassedMemory,
            Unwatched::Limit => Counter::BypassedLimit,
        });
        if bare::is_fork_protected() {
            reason = reason.or(Some(Counter::BypassedFork));
        }
        let locked = self.lock_with_shared_memory(purpose.hull);
        if locked.shared_memory().at(purpose.hull).is_some() {
            reason = reason.or(Some(Counter::BypassedMemory));
        }
        // What nobody can watch is not even shared while it is in use.
        let own = reason == Some(Counter::BypassedMemory)
            || (config().relaxed.fresh_keys && is_remote(purpose.access));
        let brief = reason.is_some() || !self.cleaner.keeps(purpose.access);
        let certain = settled && !locked.may_be_dropping(purpose.hull, now_ms);
        let kept = own || (certain && locked.keep(id, brief));
        if !kept {
            locked.withdraw(id, Cause::Fence);
            reason = reason.or(Some(Counter::BypassedBusy));
        }
        drop(locked);
        count(reason.unwrap_or(Counter::Misses));
    }
}
