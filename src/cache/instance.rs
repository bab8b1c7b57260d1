// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache of this process: its regions, the watch of their memory, and the threads that work on
//! them.

use crate::account::{Amount, LimitsRead};
use crate::life::cleaner::Cleaner;
use crate::lock::Lock;
use crate::locked::{By, Locked};
use crate::region::slot::{Domain, LookupKey};
use crate::regions::{self, Regions};
use crate::watch::watcher::Watch;
use core::sync::atomic::{AtomicU64, Ordering::*};
use core::time::Duration;
use rdmamr_mr::Access;
use rdmamr_next::Pd;
use rdmamr_stats::{Counter, Counters, counter};
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::process::{self, PerProcess};
use rdmamr_sys::thread;

/// The cache of this process. The first use makes it.
///
/// The fields that a hit and a release read lie in its first cache line (`life/hit.rs`).
#[repr(C, align(64))]
pub struct Cache {
    pub regions: &'static Regions,
    /// The most bytes that a region may have beyond the pages of a local registration that it
    /// serves: none if a limit restricts how much the process may pin.
    pub(super) spare: AtomicU64,
    pub(super) cleaner: Cleaner,
    pub watch: Watch,
    pub(super) counters: &'static Counters,
    pub(super) limits_read: LimitsRead,
    /// The process that has started the cache.
    pub(super) process: u32,
}
const _: () = assert!(core::mem::offset_of!(Cache, watch) + Watch::READ_BY_HITS <= 64);

static CACHE: PerProcess<Cache> = PerProcess::new();

/// The thread that makes the instance holds this lock.
static STARTING: PerProcess<Lock> = PerProcess::new();

/// The lock of the thread that makes the instance.
pub(super) fn starting() -> &'static Lock {
    STARTING.get_or_make(|| Box::new(Lock::new()))
}

/// Waits for a thread that is starting the cache.
pub(super) fn wait_for_start(limit: Duration) {
    if existing().is_none() && !thread::is_inside() {
        if let Some(starting) = STARTING.get() {
            let _inside = thread::enter();
            drop(starting.lock(limit));
        }
    }
}

pub(super) fn publish(instance: &'static Cache) {
    CACHE.publish(instance);
}

/// Whether this process is a child, without a cache, of one that had a cache. Such a child makes none.
/// A process that is starting its own cache also has objects and no instance yet. It has `STARTING`,
/// which a child does not inherit from its parent.
#[inline(always)]
pub fn is_child_without_cache() -> bool {
    existing().is_none() && regions::has_had_cache() && STARTING.get().is_none()
}

/// This process's instance, if the process has used the cache. A forked child has none, and makes none
/// if its parent had one ([`is_child_without_cache`]).
#[inline(always)]
pub fn existing() -> Option<&'static Cache> {
    CACHE.get()
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
        .and_then(|_| cache.regions.lock_by(By::Program));
    let hits = counted() + cache.regions.hits_of_regions();
    drop(locked);
    hits
}

/// The idle regions and the sum of their lengths, then the same for the regions in use.
pub fn totals() -> [(u64, u64); 2] {
    let of = |sum: Amount| (sum.regions as u64, sum.bytes as u64);
    existing().map_or_else(Default::default, |cache| {
        let idle = Amount::sum(cache.regions.each_without_users());
        [of(idle), of(Amount::sum(cache.regions.each_used()))]
    })
}

impl Cache {
    /// Whether the calling process is the one that has started the cache. A child of vfork(2),
    /// which has its parent's memory until it execs, is not. Needs no lock and no thread-local
    /// variable.
    pub fn is_of_this_process(&self) -> bool {
        process::id() == self.process
    }

    /// The key by which a registration looks for a region.
    #[inline(always)]
    pub fn lookup_key(
        &self,
        pd: Pd,
        page_range: PageRange,
        access: Access,
        exclusive: bool,
    ) -> LookupKey {
        let access = access.bits();
        LookupKey {
            domain: Domain::of(pd),
            page_range,
            access,
            spare: rdmamr_policy::spare(access).min(self.spare.load(Relaxed)),
            exclusive,
            allocation: 0,
        }
    }

    /// Counts regions that a change has invalidated.
    pub(super) fn count_changed(&self, by: By, counter: Counter, invalidated: u64) {
        if invalidated > 0 {
            self.counters.add(by.thread(), counter, invalidated);
        }
    }

    /// Applies the ring of events, and counts the regions that this invalidated.
    pub fn apply(&self, locked: &Locked<'_>, by: By) {
        let (invalidated, is_broken) = locked.apply();
        self.count_changed(by, counter!(stale_avoided_event), invalidated);
        if is_broken {
            self.watch.reader_failed();
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::{Cache, existing, is_child_without_cache, publish, starting};
    use crate::account::LimitsRead;
    use crate::life::cleaner::Cleaner;
    use crate::regions::{self, Regions};
    use crate::watch::event_reader::Receivers;
    use crate::watch::watcher::Watch;
    use rdmamr_sys::process;

    /// Runs `check` in a forked child, so that the statics of this process stay as they are.
    pub fn in_a_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls no function that could wait for another thread's lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = if check() { 42 } else { 1 };
            // SAFETY: _exit ends the child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WEXITSTATUS(status) == 42
    }

    /// Publishes a cache of these regions, without a watch and without threads.
    pub fn publish_cache_of(regions: &'static Regions) {
        publish(Box::leak(Box::new(Cache {
            regions,
            spare: 0.into(),
            cleaner: Cleaner::new(1000, 1000),
            watch: Watch::start(Receivers {
                ring: &regions.ring,
                heard: || (),
            }),
            counters: rdmamr_stats::counters(),
            limits_read: LimitsRead::default(),
            process: process::id(),
        })));
    }

    /// The objects' addresses are known before the instance is. Between the two, the process counts
    /// as the one that starts its own cache, and a child that is forked then does not.
    #[test]
    fn a_process_that_starts_its_cache_is_no_child() {
        assert!(in_a_child(|| {
            let before = is_child_without_cache();
            starting();
            regions::take_objects(4096..8192);
            !before
                && existing().is_none()
                && !is_child_without_cache()
                && in_a_child(is_child_without_cache)
        }));
    }
}
