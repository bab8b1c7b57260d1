// SPDX-License-Identifier: MIT OR Apache-2.0
//! Relaxed registration: what `ibv_reg_mr_relaxed` and its kin mean on Linux, which has no FMR since 5.8.
//!
//! A relaxed region is an ordinary region of the kernel over whole pages. When the program lets go of it, the
//! pool of this process keeps it, and gives it out again as long as its translation is provably unchanged.
//! The proof is in two parts: what becomes of a region, in `pool.rs`, and what sees each change of its
//! memory, in `watch.rs`.
//!
//! A hit is lock-free, and in this file as far as it is not the pool's: a look at the log of changes, a table,
//! one compare-and-swap, the fence where it is needed, and a look at the log again.

mod account;
pub mod beside_plain;
mod changes;
mod cleaner;
mod dropping;
mod ending;
mod filter;
mod flush;
mod hit;
pub mod hooks;
mod hull;
mod index;
mod large;
mod list;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
mod pool;
mod region;
mod register;
mod release;
mod shared_memory;
mod start;
pub mod subscription;
mod subscriptions;
mod sync;
mod table;
pub mod transparent;
mod watch;
mod word;

pub use flush::flush;
pub use lock::{wait, wake};
pub use register::register;
pub use release::{deregister, release};

use crate::abi::rdma_core::ibv_mr;
use crate::mr::{Access, Mr, Pd};
use crate::process::PerProcess;
use crate::stats::{Counter, Counters};
use crate::thread;
use cleaner::Cleaner;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::AtomicBool;
use ending::By;
pub use hit::Miss;
use hull::Range;
use pool::{Locked, Pool};
use region::{Id, Purpose};
use watch::{Fence, Watch};
use word::{Grant, Left};

/// So many regions that nobody will use again do not wait for the cleaner's next tick.
const MANY: u32 = 256;

/// When the cleaner has not kept up with so many, who registers helps.
const TOO_MANY: u32 = 512;

/// What relaxed registration has in this process, once it has been used.
pub struct Instance {
    pool: &'static Pool,
    watch: Watch,
    cleaner: &'static Cleaner,
    counters: &'static Counters,
    /// As much may be pinned as there is memory.
    may_pin_all: bool,
    /// The cleaner has been woken to end a region, and may not: a thread of the program must.
    has_spent: AtomicBool,
}

static INSTANCE: PerProcess<Instance> = PerProcess::new();

/// This process's, if it has used relaxed registration. A forked child has none, and makes none.
#[inline(always)]
fn existing() -> Option<&'static Instance> {
    INSTANCE.get()
}

/// In place of a region's address: why there is none.
const NONE: usize = 0;
/// See [`Miss::Unsettled`].
const UNSETTLED: usize = 1;

/// A region of the pool that serves.
#[inline(always)]
pub fn hit(pd: Pd, addr: usize, length: usize, access: Access) -> Result<*mut ibv_mr, Miss<()>> {
    region_or_miss(hit_by_address(pd, addr, length, access))
}

/// One that nobody uses.
#[inline(always)]
pub fn hit_alone(
    pd: Pd,
    addr: usize,
    length: usize,
    access: Access,
) -> Result<*mut ibv_mr, Miss<()>> {
    region_or_miss(hit_inlined(pd, addr, length, access, true))
}

#[inline(always)]
fn region_or_miss(answer: usize) -> Result<*mut ibv_mr, Miss<()>> {
    match answer {
        NONE => Err(Miss::None),
        UNSETTLED => Err(Miss::Unsettled(None)),
        object => Ok(with_exposed_provenance_mut(object)),
    }
}

/// Not inlined, and with arguments in registers: then all that it calls is inlined into it, once.
#[inline(never)]
fn hit_by_address(pd: Pd, addr: usize, length: usize, access: Access) -> usize {
    hit_inlined(pd, addr, length, access, false)
}

/// The address of a region's object, or why there is none.
///
/// What it returns fits into a register: a `Result` with an error in it went through memory, and a hit with its
/// release took 25 ns instead of 17: the load stalled.
#[inline(always)]
fn hit_inlined(pd: Pd, addr: usize, length: usize, access: Access, alone: bool) -> usize {
    let Some(relaxed) = existing() else {
        return NONE;
    };
    match relaxed.hit(pd, addr as u64, length as u64, access, alone) {
        Ok(object) => object,
        Err(Miss::None) => NONE,
        Err(Miss::Unsettled(_)) => UNSETTLED,
    }
}

/// As [`hit`], inlined into the one caller that wants it so, and does not ask why there is none.
#[inline(always)]
pub fn hit_here(pd: Pd, addr: usize, length: usize, access: Access) -> Option<*mut ibv_mr> {
    let object = hit_inlined(pd, addr, length, access, false);
    (object > UNSETTLED).then(|| with_exposed_provenance_mut(object))
}

/// Whether a region is a use of one of the pool.
pub fn serves(mr: Mr) -> bool {
    start::is_object(mr.address()) || mr.is_pooled()
}

/// Registrations that hits have served: by the regions' own handles, of regions that have not ended, and `counted`
/// ones. A region that ends has its hits counted, under the lock, so that here none is counted twice or missing.
pub fn hits(counted: impl Fn() -> u64) -> u64 {
    let Some(relaxed) = existing() else {
        return counted();
    };
    // Not in a signal handler that has interrupted who holds it.
    let inside = (!thread::is_inside()).then(thread::enter);
    let locked = inside.is_some().then(|| relaxed.pool.lock());
    let hits = relaxed.pool.each().map(|(_, region)| region.hits());
    let hits = counted() + relaxed.pool.many_hits() + hits.sum::<u64>();
    drop(locked);
    hits
}

/// The regions that are kept idle and the sum of their lengths, and those that are in use.
pub fn totals() -> [(u64, u64); 2] {
    existing().map_or_else(Default::default, |relaxed| {
        [relaxed.pool.idle(), relaxed.pool.in_use()]
    })
}

/// Access of which containment serves: that of the local side, and what a device may ignore.
const LOCAL: Access = Access::LOCAL_WRITE.union(Access::OPTIONAL_RANGE);

/// A hit that takes the region.
struct Take<'a>(&'a Instance, &'a Purpose);

impl hit::Steps for Take<'_> {
    type Taken = (Id, Grant);

    #[inline(always)]
    fn take(&self) -> Option<(Id, Grant)> {
        self.0.pool.take(self.1)
    }

    #[inline(always)]
    fn fence(&self) -> bool {
        self.0.no_event_in_flight()
    }
}

impl Instance {
    #[inline(always)]
    fn purpose(&self, pd: Pd, hull: Range, access: Access, alone: bool) -> Purpose {
        // Who has a region alone must find as much left to pin as without the pool: a larger region would count
        // for more than was asked for.
        let exact = alone && !self.may_pin_all;
        Purpose {
            pd: pd.address() as u64,
            hull,
            access: access.bits(),
            exact: exact || !LOCAL.contains(access),
            alone,
        }
    }

    /// An object of a region of the pool that serves, if it is certain that its translation holds.
    #[inline(always)]
    fn hit(
        &self,
        pd: Pd,
        addr: u64,
        length: u64,
        access: Access,
        alone: bool,
    ) -> Result<usize, Miss<()>> {
        let hull = Range::hull(addr, length).ok_or(Miss::None)?;
        let purpose = self.purpose(pd, hull, access, alone);
        let hit = hit::hit(&self.pool.changes, Take(self, &purpose));
        let (id, grant) = hit.map_err(|miss| self.missed(miss))?;
        if self.watch.has_stamp() && !self.is_stamped(id) {
            self.give_up(id, grant);
            return Err(Miss::None);
        }
        let Some(object) = self.pool.object(id, grant, addr, length) else {
            self.give_up(id, grant);
            return Err(Miss::None);
        };
        if grant == Grant::Another {
            let thread = thread::number();
            self.counters.add(thread, Counter::Hits, 1);
            self.counters.add(thread, Counter::Shared, 1);
        }
        Ok(object)
    }

    #[inline(always)]
    fn missed(&self, miss: Miss<(Id, Grant)>) -> Miss<()> {
        match miss {
            Miss::None => Miss::None,
            Miss::Unsettled(taken) => {
                if let Some((id, grant)) = taken {
                    self.give_up(id, grant);
                }
                Miss::Unsettled(None)
            }
        }
    }

    /// Whether no event is in flight, where that is to be asked.
    #[inline(always)]
    fn no_event_in_flight(&self) -> bool {
        !self.watch.must_fence() || self.is_fenced()
    }

    #[inline(always)]
    fn is_fenced(&self) -> bool {
        let fence = self.watch.fence();
        if fence != Fence::Passed {
            self.refused_by_fence(fence);
        }
        fence == Fence::Passed
    }

    #[cold]
    fn refused_by_fence(&self, fence: Fence) {
        let thread = thread::number();
        self.counters.add(thread, Counter::StaleAvoidedFence, 1);
        if fence == Fence::Lost {
            self.lose_watch();
        }
    }

    /// Withdraws everything that userfaultfd has watched.
    fn lose_watch(&self) {
        if self.watch.lose() {
            let changes = &self.pool.changes;
            changes.begin();
            changes.write(changes::Change {
                start: 0,
                end: u64::MAX,
                kind: changes::Kind::Called,
            });
            changes.end();
            self.cleaner.wake();
        }
    }

    #[cold]
    fn is_stamped(&self, id: Id) -> bool {
        let region = self.pool.region(id);
        let holds = self.watch.stamp_holds(region.hull());
        if !holds && !thread::is_inside() {
            let _inside = thread::enter();
            if self.pool.lock().withdraw(id, pool::Cause::Stamp) {
                let thread = thread::number();
                self.counters.add(thread, Counter::StaleAvoidedStamp, 1);
            }
        }
        holds
    }

    #[cold]
    fn give_up(&self, id: Id, grant: Grant) {
        match self.pool.give_back(id, grant) {
            Some(Left::Spent) => ending::spent(self, id),
            Some(Left::Idle) if self.cleaner.is_dormant() => {
                self.cleaner.idle(self.pool.region(id));
            }
            _ => {}
        }
    }

    /// Applies the log.
    fn apply(&self, locked: &Locked<'_>, by: By) {
        let applied = locked.apply(cleaner::now_ms);
        let thread = by.thread();
        if applied.by_hook > 0 {
            self.counters
                .add(thread, Counter::StaleAvoidedHook, applied.by_hook);
        }
        if applied.by_event > 0 {
            self.counters
                .add(thread, Counter::StaleAvoidedEvent, applied.by_event);
        }
        if applied.lost {
            self.watch.lose();
        }
    }
}
