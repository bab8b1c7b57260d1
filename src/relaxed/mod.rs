// SPDX-License-Identifier: MIT OR Apache-2.0
//! Relaxed registration: the meaning of `ibv_reg_mr_relaxed` and its kin on Linux, which has had no
//! FMR since 5.8.
//!
//! A relaxed region is an ordinary kernel region over whole pages. When the program releases the
//! region, this process's pool keeps it. The pool gives the region out again as long as its
//! translation is provably unchanged. The proof has two parts: `pool.rs` has the life of a region,
//! and `watch.rs` has the ways by which each change of its memory is seen.
//!
//! A hit takes no lock: it reads the log of changes, looks the region up in a table, takes the
//! region by one compare-and-swap, passes the fence if one is needed, and reads the log again. This
//! file has the part of a hit that is not in the pool.

mod account;
mod admission;
mod changes;
mod cleaner;
mod dropping;
mod ending;
mod filter;
mod flush;
pub mod foresight;
mod hit;
pub mod hooks;
mod index;
mod large;
mod limits;
mod list;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
mod owners;
mod pool;
mod region;
mod register;
mod release;
mod start;
pub mod subscription;
mod subscriptions;
mod sync;
mod table;
mod watch;
mod word;

pub use flush::flush;
pub use owners::{
    around_close_device, around_deregister_past_us, before_close_past_us, before_dealloc_pd,
    before_unimport_pd, flush_quietly, forget, relieve_program,
};
pub use register::{OWN_REGION, Unserved, is_shortage, register};
pub use release::{deregister, release};
pub use start::is_of_parent;

use crate::abi::rdma_core::ibv_mr;
use crate::call::{Access, Pd};
use crate::mr::Mr;
use crate::report::stats::{Counters, counter};
use crate::sys::pages::PageRange;
use crate::sys::process::PerProcess;
use crate::sys::thread;
use admission::Admission;
use cleaner::Cleaner;
use core::ptr::with_exposed_provenance_mut;
use ending::By;
pub use hit::Miss;
use limits::Limits;
use pool::{Locked, Pool};
use region::{Id, Purpose};
use watch::{Fence, Watch};
use word::{Grant, Left};

/// If this many regions wait to be deregistered, the cleaner is woken before its next tick.
const MANY: u32 = 256;

/// If the cleaner is behind by this many regions, each registering thread deregisters a share of
/// them itself.
const TOO_MANY: u32 = 512;
const SHARE: usize = 16;

/// The state of relaxed registration in this process. It exists from the first use on.
pub struct Instance {
    pool: &'static Pool,
    watch: Watch,
    admission: Admission,
    cleaner: &'static Cleaner,
    counters: &'static Counters,
    limits: Limits,
    /// No limit restricts how much memory the process may pin.
    may_pin_all: bool,
}

static INSTANCE: PerProcess<Instance> = PerProcess::new();

/// This process's instance, if the process has used relaxed registration. A forked child has none,
/// and makes none.
#[inline(always)]
fn existing() -> Option<&'static Instance> {
    INSTANCE.get()
}

/// Stands in place of a region's address: no region of the pool serves.
const NONE: usize = 0;
/// Stands in place of a region's address, for [`Miss::Unsettled`].
const UNSETTLED: usize = 1;

/// Finds a region of the pool that serves, and takes it for one more user.
#[inline(always)]
pub fn hit(pd: Pd, addr: usize, length: usize, access: Access) -> Result<*mut ibv_mr, Miss<()>> {
    region_or_miss(hit_by_address(pd, addr, length, access))
}

/// As [`hit()`], but takes only a region without users.
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

/// This function is not inlined and takes its arguments in registers. The compiler then inlines its
/// callees once, here.
#[inline(never)]
fn hit_by_address(pd: Pd, addr: usize, length: usize, access: Access) -> usize {
    hit_inlined(pd, addr, length, access, false)
}

/// Returns the address of a region's object, or [`NONE`], or [`UNSETTLED`].
///
/// The result fits into a register. A `Result` with an error in it went through memory, and the
/// load stalled: a hit with its release took 25 ns instead of 17.
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

/// As [`hit()`], but inlined into its one caller. That caller does not need the reason for a miss.
#[inline(always)]
pub fn hit_here(pd: Pd, addr: usize, length: usize, access: Access) -> Option<*mut ibv_mr> {
    let object = hit_inlined(pd, addr, length, access, false);
    (object > UNSETTLED).then(|| with_exposed_provenance_mut(object))
}

/// Whether the pool has given out this region.
#[inline(always)]
pub fn is_region(mr: Mr) -> bool {
    start::is_object(mr.address())
}

/// Whether userfaultfd reports changes of memory to the pool.
pub fn is_watching() -> bool {
    existing().is_some_and(|relaxed| relaxed.watch.is_on())
}

/// Makes every later hit fail: the library itself has failed, perhaps while it wrote a change to
/// the log.
pub fn distrust() {
    if let Some(relaxed) = existing() {
        relaxed.pool.changes.distrust();
    }
}

/// Returns how many registrations were hits. The sum has three parts: the hits that `counted`
/// returns, the hits that the regions' own handles count in each region that has not ended, and the
/// overflow of those counts. A region that ends adds its count to `counted` under the lock, so the
/// sum neither misses a hit nor counts it twice.
pub fn hits(counted: impl Fn() -> u64) -> u64 {
    let Some(relaxed) = existing() else {
        return counted();
    };
    // A signal handler may have interrupted the thread that holds the lock, so it does not take the
    // lock.
    let inside = (!thread::is_inside()).then(thread::enter);
    let locked = inside.is_some().then(|| relaxed.pool.lock());
    let hits = relaxed.pool.each().map(|(_, region)| region.hits());
    let hits = counted() + relaxed.pool.many_hits() + hits.sum::<u64>();
    drop(locked);
    hits
}

/// The idle regions and the sum of their lengths, then the same for the regions in use.
pub fn totals() -> [(u64, u64); 2] {
    existing().map_or_else(Default::default, |relaxed| {
        [relaxed.pool.idle(), relaxed.pool.in_use()]
    })
}

/// Access flags for which a region with more of them serves as well: local write, and the flags
/// that a device may ignore.
pub const LOCAL: Access = Access::LOCAL_WRITE.union(Access::OPTIONAL_RANGE);

/// The steps of a hit that takes its region.
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
    fn purpose(&self, pd: Pd, hull: PageRange, access: Access, alone: bool) -> Purpose {
        // A caller that shares its region with nobody must find as much memory left to pin as
        // without the pool. A larger region would count for more than the caller asked for.
        let exact = alone && !self.may_pin_all;
        Purpose {
            pd: pd.address() as u64,
            hull,
            access: access.bits(),
            exact: exact || !LOCAL.contains(access),
            alone,
        }
    }

    /// Returns the object of a region that serves, if the region's translation certainly holds.
    #[inline(always)]
    fn hit(
        &self,
        pd: Pd,
        addr: u64,
        length: u64,
        access: Access,
        alone: bool,
    ) -> Result<usize, Miss<()>> {
        let hull = PageRange::hull(addr, length).ok_or(Miss::None)?;
        let purpose = self.purpose(pd, hull, access, alone);
        let hit = hit::hit(&self.pool.changes, hull, Take(self, &purpose));
        let (id, grant) = hit.map_err(|miss| self.missed(miss))?;
        let Some(object) = self.pool.object(id, grant, addr, length) else {
            self.give_up(id, grant);
            return Err(Miss::None);
        };
        if grant == Grant::Another {
            let thread = thread::number();
            self.counters.add(thread, counter!(hits), 1);
            self.counters.add(thread, counter!(shared), 1);
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

    /// Whether no event is in flight. Without need for the fence the answer is yes.
    #[inline(always)]
    fn no_event_in_flight(&self) -> bool {
        !self.watch.must_fence() || self.is_fenced()
    }

    #[inline(always)]
    fn is_fenced(&self) -> bool {
        let fence = self.watch.fence();
        if fence != Fence::Passed {
            self.refused_by_fence();
        }
        fence == Fence::Passed
    }

    #[cold]
    fn refused_by_fence(&self) {
        let thread = thread::number();
        self.counters.add(thread, counter!(stale_avoided_fence), 1);
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

    /// Applies the log of changes, and counts the regions that this withdrew.
    fn apply(&self, locked: &Locked<'_>, by: By) {
        let applied = locked.apply(cleaner::now_ms);
        let thread = by.thread();
        if applied.by_hook > 0 {
            self.counters
                .add(thread, counter!(stale_avoided_hook), applied.by_hook);
        }
        if applied.by_event > 0 {
            self.counters
                .add(thread, counter!(stale_avoided_event), applied.by_event);
        }
        if applied.lost {
            self.watch.lose();
        }
    }
}
