// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that deregisters regions without a future: regions whose memory has changed, regions
//! that have been idle for long enough, and idle regions while the machine is short of memory. The
//! thread sleeps while no region is idle. It has the program's table of descriptors, by which it
//! reaches the devices, and opens no file: the limits reader (`limits_reader.rs`) does.
//! `helper_thread.rs` says what it must not do.

use crate::cache::life::ending::{self, By};
use crate::cache::life::limits;
use crate::cache::life::limits_reader;
use crate::cache::region::{CachedRegion, Id};
use crate::cache::start;
use crate::cache::state::{Batch, Cause};
use crate::cache::{Cache, existing};
use crate::mr::kernel_mr;
use crate::report::stats::{self, counter};
use crate::sys::{clock, futex, helper_thread};
use crate::trace;
use crate::watch;
use crate::watch::watch_fd::TABLE;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*, fence};
use core::time::Duration;
use rdmamr_policy::is_remote;

/// The cleaner, as the other threads see it. Each release reads `dormant` and `clock`.
pub struct Cleaner {
    /// 1 while the cleaner sleeps without a time limit, since no region is idle.
    dormant: AtomicU32,
    /// The cache's clock in ticks. It shows the present time, or a time shortly before.
    clock: AtomicU32,
    /// 1 while the cleaner has work. A futex.
    signal: AtomicU32,
    /// The length of a tick in ms.
    tick: u32,
    /// For how many ticks a region stays idle: with access for peers (`remote`), and without
    /// (`local`).
    remote: u32,
    local: u32,
    /// Whether the thread exists.
    exists: AtomicBool,
    /// Whether the cache may count on the thread, and on the limits reader.
    running: AtomicBool,
    /// When an attempt to start the threads may be made, in ns of the monotonic clock.
    attempt: AtomicU64,
}

/// How long to wait after a failed attempt to start the thread, in ns.
const ATTEMPTS_APART: u64 = 1_000_000_000;

/// A region's linger time has this many ticks.
const TICKS: u32 = 8;

/// How often the cleaner checks the machine's free memory, in ticks.
const LOOKS: u32 = 8;

/// If the cache has more slots than this, what is idle is shown every `LOOKS` ticks only.
const FEW_SLOTS: u32 = 4096;

/// If the kernel refuses to deregister a region, the cleaner waits 2 ticks before it tries again,
/// then twice as long each time, up to 2 to the power of this number.
const LONGEST_WAIT: u32 = 6;

/// No region must have been idle for this many ticks before the cleaner sleeps without a time
/// limit. If the program takes and releases a region all the time, the cleaner finds the region in
/// use now and then.
const PATIENCE: u32 = 8;

/// Milliseconds of the monotonic clock.
pub fn now_ms() -> u64 {
    clock::monotonic_by_kernel() / 1_000_000
}

impl Cleaner {
    /// A cleaner with these linger times, in ms.
    pub fn new(remote: u64, local: u64) -> Cleaner {
        let tick = (remote.min(local) / u64::from(TICKS)).clamp(5, 125) as u32;
        let ticks = |linger: u64| (linger / u64::from(tick)).min(u64::from(u32::MAX / 4)) as u32;
        Cleaner {
            signal: AtomicU32::new(0),
            dormant: AtomicU32::new(1),
            clock: AtomicU32::new(0),
            tick,
            remote: ticks(remote),
            local: ticks(local),
            exists: AtomicBool::new(false),
            running: AtomicBool::new(false),
            attempt: AtomicU64::new(0),
        }
    }

    /// The time by the cache's clock.
    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.clock.load(Relaxed)
    }

    /// Whether the cache may keep a region with this access at all: its linger time is not 0, and
    /// the cleaner's thread exists, and no attempt to start the limits reader has failed.
    pub fn keeps(&self, access: u32) -> bool {
        let linger = if is_remote(access) {
            self.remote
        } else {
            self.local
        };
        linger > 0 && self.running.load(Relaxed)
    }

    /// Sets the cache's clock. Returns the full number of ticks; the clock keeps its lower 32 bits.
    fn set_clock(&self) -> u64 {
        let now = now_ms() / u64::from(self.tick);
        self.clock.store(now as u32, Relaxed);
        now
    }

    /// Whether a thread that leaves a region idle must call `idle`.
    #[inline(always)]
    pub fn is_dormant(&self) -> bool {
        self.dormant.load(SeqCst) != 0
    }

    /// Whether no region is idle, as far as that is known without a look at the regions: the
    /// cleaner is dormant, and no thread has left a region idle since.
    pub fn nothing_is_idle(&self) -> bool {
        self.signal.load(SeqCst) == 0 && self.is_dormant()
    }

    /// A region became idle while the cleaner slept without a time limit.
    #[cold]
    pub fn idle(&self, region: &CachedRegion) {
        region.released.store(self.set_clock() as u32, Relaxed);
        self.wake();
    }

    /// Wakes the cleaner: it has work.
    pub fn wake(&self) {
        if self.signal.swap(1, SeqCst) == 0 && !watch::is_retired() {
            futex::wake(&self.signal, 1);
        }
    }

    /// Whether the cleaner ends this region without a user now.
    fn is_due(&self, region: &CachedRegion, now: u64, awake: u64) -> bool {
        match region.refusals.load(Relaxed) {
            _ if region.is_left() => true,
            0 => region.state.load().is_spent() || self.has_lingered(region, now, awake),
            refusals => {
                // The device may have gone, with many regions that the kernel then refuses to end.
                let wait = 1 << refusals.min(LONGEST_WAIT);
                idle(region.released.load(Relaxed), now, awake) >= wait
            }
        }
    }

    /// Whether an idle region has lingered for long enough now, or will have by the next tick. The
    /// cleaner is awake since the tick `awake`.
    fn has_lingered(&self, region: &CachedRegion, now: u64, awake: u64) -> bool {
        let linger = if is_remote(region.access()) {
            self.remote
        } else {
            self.local
        };
        idle(region.released.load(Relaxed), now, awake) + 1 >= i64::from(linger)
    }
}

/// Returns for how many ticks a region has been idle that was released at the tick `released`. The
/// cleaner is awake since the tick `awake`.
fn idle(released: u32, now: u64, awake: u64) -> i64 {
    // A thread may have released the region after `now` was read.
    let idle = (now as u32).wrapping_sub(released) as i32;
    // The releasing thread may have read the clock while the clock stood still. No region was idle
    // before the cleaner woke.
    i64::from(idle).min((now - awake) as i64)
}

/// Starts the thread, if it does not run and it is time for an attempt.
#[inline(always)]
pub fn start(cache: &'static Cache) {
    if !cache.cleaner.running.load(Relaxed) {
        try_to_start(cache);
    }
}

#[cold]
fn try_to_start(cache: &'static Cache) {
    let cleaner = &cache.cleaner;
    let (due, now) = (cleaner.attempt.load(Relaxed), clock::monotonic());
    let take = || {
        cleaner
            .attempt
            .compare_exchange(due, u64::MAX, Relaxed, Relaxed)
    };
    if now < due || start::has_left_table() || take().is_err() {
        return;
    }
    let exists = cleaner.exists.load(Relaxed);
    // The limits reader comes after the first region (`start_reader`).
    let started = if exists {
        limits_reader::start(cache)
    } else {
        start_thread(cache)
    };
    if started {
        cleaner.running.store(true, Relaxed);
    } else {
        cleaner.attempt.store(now + ATTEMPTS_APART, Relaxed);
    }
}

fn start_thread(cache: &'static Cache) -> bool {
    let argument = (&raw const *cache).cast_mut();
    // SAFETY: `run` keeps to the rules of `helper_thread.rs`, and `cache` is never freed.
    let Some(number) = (unsafe { helper_thread::start(run, argument.cast()) }) else {
        return false;
    };
    TABLE.set(number);
    cache.cleaner.exists.store(true, Relaxed);
    true
}

/// A region is kept. Starts the limits reader, if it does not run: not before, since the thread
/// that makes the first region waits for the reader, and the limits reader would take its
/// processor. If the kernel gives no thread, no further region is kept until a later attempt
/// succeeds.
#[inline(always)]
pub fn start_reader(cache: &'static Cache) {
    if !cache.limits_reader.is_running() {
        try_to_start_reader(cache);
    }
}

#[cold]
fn try_to_start_reader(cache: &'static Cache) {
    let cleaner = &cache.cleaner;
    if cleaner.running.load(Relaxed) && !limits_reader::start(cache) {
        let next = clock::monotonic() + ATTEMPTS_APART;
        cleaner.attempt.store(next, Relaxed);
        cleaner.running.store(false, Relaxed);
    }
}

/// The reader has reported changes: wakes the cleaner if idle regions may be among what changed.
/// Their pages stay pinned until they end.
pub fn heard() {
    if let Some(cache) = existing()
        && !cache.cleaner.nothing_is_idle()
    {
        cache.cleaner.wake();
    }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    // SAFETY: `start` passed a `&'static Cache`.
    let cache = unsafe { &*argument.cast::<Cache>() };
    helper_thread::set_name(c"rdmamr-cleaner");
    helper_thread::run_anywhere();
    let (regions, cleaner) = (cache.regions, &cache.cleaner);
    let mut ticks = 0u32;
    let mut busy = PATIENCE;
    let (mut awake, mut looked_at) = (None, None);
    loop {
        // The clock has stood still, so the cleaner sets it first. A region that is released from
        // now on does not look as if it had been released long ago.
        let now = cleaner.set_clock();
        let awake_since = *awake.get_or_insert(now);
        cleaner.dormant.store(0, SeqCst);
        // After `dormant`, for `nothing_is_idle`. All work is looked for after both.
        cleaner.signal.store(0, SeqCst);
        if regions.changes.is_behind()
            && let Some(locked) = regions.lock_in_call()
        {
            cache.apply(&locked, By::Helper);
        }
        regions.touch_ahead();
        ending::evicted(cache, By::Helper);
        if regions.ending() < crate::cache::MANY {
            regions.nothing_waits();
        }
        // The cleaner looks at all slots at most once in a tick, however often it is woken.
        if looked_at != Some(now) {
            looked_at = Some(now);
            let mut is_idle = false;
            end_all(cache, Cause::Linger, |region| {
                let due = cleaner.is_due(region, now, awake_since);
                is_idle |= !due;
                due
            });
            if ticks.is_multiple_of(LOOKS) {
                cache.limits_reader.ask_and_wait();
                if cache.limits_reader.is_short_of_memory() {
                    end_all(cache, Cause::Pressure, |_| true);
                }
            } else {
                cache.read_old_limits(limits::SECOND);
            }
            ticks = ticks.wrapping_add(1);
            keep_to_limit(cache);
            if ticks.is_multiple_of(LOOKS) || !regions.has_more_slots_than(FEW_SLOTS) {
                show_idle(cache);
            }
            trace::switch::look();
            let is_idle = is_idle || regions.is_ending();
            busy = if is_idle { PATIENCE } else { busy - 1 };
        }
        let limit = Duration::from_millis(cleaner.tick.into());
        if busy == 0 {
            let idle = || {
                let mut each = regions.each();
                regions.is_ending() || each.any(|(_, region)| region.state.load().is_unused())
            };
            busy = PATIENCE;
            cleaner.dormant.store(1, SeqCst);
            // A thread that released a region before this fence did not see the store. This
            // thread's look at the regions sees that release. A thread that releases a region after
            // the look has seen the store.
            fence(SeqCst);
            if !idle() {
                futex::wait(&cleaner.signal, 0, None);
                (awake, looked_at) = (None, None);
            }
        } else {
            futex::wait(&cleaner.signal, 0, Some(limit));
        }
    }
}

fn end_all(cache: &Cache, cause: Cause, mut which: impl FnMut(&CachedRegion) -> bool) {
    let mut from = Some(Id(0));
    while let Some(start) = from {
        let mut batch = Batch::new();
        from = cache.regions.find_idle(start, &mut batch, &mut which);
        if !batch.ids().is_empty() {
            match cache.regions.lock_in_call() {
                Some(locked) => locked.claim_those(&mut batch, cause, &mut which),
                None if cache.regions.is_orphaned() => batch.retain(|id| cache.regions.claim(id)),
                // The next tick comes.
                None => return,
            }
        }
        for &id in batch.ids() {
            // If the kernel refuses to deregister a region, the cleaner tries again at the next
            // tick.
            let _ = ending::end(cache, id, By::Helper);
        }
    }
}

/// Counts the idle regions if more is registered than may be idle, and ends those that exceed the
/// limit. The lock is free between any two portions.
fn keep_to_limit(cache: &Cache) {
    const SLOTS: u32 = 512;
    let regions = cache.regions;
    let mut at_end = regions.account.all_fits();
    while !at_end {
        let mut batch = Batch::new();
        let Some(locked) = regions.lock_in_call() else {
            return;
        };
        at_end = locked.count_idle(SLOTS, &mut batch, cache.cleaner.now());
        drop(locked);
        for &id in batch.ids() {
            let _ = ending::end(cache, id, By::Helper);
        }
    }
}

/// Shows in the live page what is idle, and the hits. Neither is counted where it happens: a hit
/// must write to no other cache line than its region's.
fn show_idle(cache: &Cache) {
    let (regions, counters) = (cache.regions, cache.counters);
    let mut idle = stats::Idle::default();
    regions.each_idle(|region| {
        let device = kernel_mr::counted_at(region.device.load(Relaxed));
        idle.add(device, region.page_range().bytes());
    });
    // Without the lock, which a registration would wait for while all slots are read.
    let hits = counters.get(counter!(hits)) + regions.hits_of_regions();
    counters.show_idle(&idle, hits);
}

#[cfg(test)]
mod tests {
    use super::idle;

    #[test]
    fn nothing_is_idle_for_longer_than_the_cleaner_is_awake() {
        let days: u64 = (1 << 33) + 1000;
        assert_eq!(idle(days as u32 + 2, days + 9, days), 7);
        // A thread released the region while `now` was read.
        assert_eq!(idle(days as u32 + 10, days + 9, days), -1);
        // The clock still showed the time before the cleaner slept, or the time before the cleaner
        // existed.
        assert_eq!(idle(days as u32 - 800, days + 9, days), 9);
        assert_eq!(idle(0, days + 9, days + 9), 0);
        // The lower 32 bits of the clock wrap around.
        assert_eq!(idle(u32::MAX, days + 6, 1), 1007);
    }
}
