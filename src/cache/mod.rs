// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache of regions: the meaning of `ibv_reg_mr_relaxed` and its kin on Linux, which has had
//! no FMR since 5.8.
//!
//! A relaxed region is an ordinary kernel region over whole pages. When the program releases the
//! region, this process's cache keeps it. The cache gives the region out again as long as its
//! translation is provably unchanged. `docs/proof.md` has the argument, in numbered lemmas, each
//! with the code that holds it and the test that shows it.
//!
//! - `region/`: a slot, its state (the state of a region in one atomic), lists of slots.
//! - `find/`: the look-up without a lock, the index by address, the filter of memory without
//!   regions.
//! - `life/`: what happens to a region, a file for each: hit, miss, change, release, end.
//! - `released.rs`: the ranges that were registered plainly and released, and so may come back.
//! - `state.rs`: what all threads share, and what they do without the lock. `locked.rs` and
//!   `extents.rs`: what they do under it.

mod extents;
mod find;
pub mod foresight;
pub mod life;
mod lock;
pub mod locked;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
mod place;
pub mod region;
pub mod released;
pub mod start;
pub mod state;

pub use life::flush::flush;
pub use life::hit::{Answer, hit};
pub use life::miss::{Unserved, is_shortage, register};
pub use life::owners::{
    around_close_device, around_deregister_bypassed, before_close_bypassed, before_dealloc_pd,
    before_unimport_pd, flush_quietly, forget, relieve_program,
};
pub use life::release::{deregister, release};
pub use region::range;

use crate::mr::Mr;
use crate::report::stats::{Counters, counter};
use crate::sys::process::{self, PerProcess};
use crate::sys::thread;
use crate::watch::Watch;
use life::admission::Admission;
use life::cleaner::{self, Cleaner};
use life::ending::By;
use life::limits::Limits;
use life::limits_reader::LimitsReader;
use locked::Locked;
use state::Regions;

/// If this many regions wait to be deregistered, the cleaner is woken before its next tick.
const MANY: u32 = 256;

/// If the cleaner is behind by this many regions, each registering thread deregisters a share of
/// them itself.
const TOO_MANY: u32 = 512;
const SHARE: usize = 16;

/// The state of relaxed registration in this process. It exists from the first use on.
///
/// What a hit and a release read lies in the first line of the processor's cache (`life/hit.rs`).
#[repr(C, align(64))]
pub struct Cache {
    pub regions: &'static Regions,
    cleaner: Cleaner,
    /// No limit restricts how much memory the process may pin.
    may_pin_all: bool,
    pub watch: Watch,
    counters: &'static Counters,
    admission: Admission,
    limits: Limits,
    limits_reader: LimitsReader,
    /// The process that has started the cache.
    process: u32,
}
const _: () = assert!(core::mem::offset_of!(Cache, watch) + Watch::READ_BY_HITS <= 64);

static CACHE: PerProcess<Cache> = PerProcess::new();

/// This process's instance, if the process has used relaxed registration. A forked child has none,
/// and makes none.
#[inline(always)]
pub fn existing() -> Option<&'static Cache> {
    CACHE.get()
}

/// Whether the cache has given out this region.
#[inline(always)]
pub fn is_region(mr: Mr) -> bool {
    place::is_object(mr.address())
}

/// Whether userfaultfd reports changes of memory to the cache.
pub fn is_watching() -> bool {
    existing().is_some_and(|cache| cache.watch.is_on())
}

/// Makes every later hit fail: the library itself has failed, perhaps while it wrote a change to
/// the log.
pub fn distrust() {
    if let Some(cache) = existing() {
        cache.regions.changes.distrust();
    }
}

/// Returns how many registrations were hits. The sum has three parts: the hits that `counted`
/// returns, the hits that the regions' own handles count in each region that has not ended, and the
/// overflow of those counts. A region that ends adds its count to `counted` under the lock, so the
/// sum neither misses a hit nor counts it twice.
pub fn hits(counted: impl Fn() -> u64) -> u64 {
    let Some(cache) = existing() else {
        return counted();
    };
    // A signal handler may have interrupted the thread that holds the lock, so it does not take the
    // lock.
    let inside = (!thread::is_inside()).then(thread::enter);
    let locked = inside
        .as_ref()
        .and_then(|_| cache.regions.lock_of_program());
    let hits = counted() + cache.regions.hits_of_regions();
    drop(locked);
    hits
}

/// The idle regions and the sum of their lengths, then the same for the regions in use.
pub fn totals() -> [(u64, u64); 2] {
    existing().map_or_else(Default::default, |cache| {
        [cache.regions.idle(), cache.regions.in_use()]
    })
}

impl Cache {
    /// Whether the calling process is the one that has started the cache. A child of vfork(2),
    /// which has its parent's memory until it execs, is not. Needs no lock and no thread-local
    /// variable.
    pub fn is_of_this_process(&self) -> bool {
        process::id() == self.process
    }

    /// Applies the log of changes, and counts the regions that this invalidated.
    pub fn apply(&self, locked: &Locked<'_>, by: By) {
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
