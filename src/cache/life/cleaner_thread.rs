// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that deregisters the regions that the cache no longer needs: regions whose memory has
//! changed, regions that have been idle for long enough, and idle regions beyond the limit. The thread
//! sleeps while no region is idle. It shares the program's table of descriptors, by which it reaches
//! the devices, and therefore opens no file (`limits.rs`). `helper_thread.rs` has the rules that it
//! obeys.

use crate::account::Amount;
use crate::instance::{Cache, existing};
use crate::life::cleaner::{TICKS, ages, ticks_idle};
use crate::life::flush::deregister_unused;
use crate::life::{ending, owners};
use crate::locked::By;
use crate::region::slot::{Cause, NO_FILE, Slot};
use crate::watch::watch_fd::TABLE;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{Ordering::*, fence};
use core::time::Duration;
use rdmamr_mr::kernel_mr::{self, UverbsOfHelper};
use rdmamr_stats::{self as stats, counter};
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::{futex, helper_thread};
use rdmamr_trace as trace;

/// If the cache has more slots than this, the idle regions are shown only every so many ticks.
const FEW_SLOTS: usize = 4096;
const TICKS_BETWEEN_SHOWS: u32 = 8;

/// The cleaner sleeps without a time limit only after this many ticks at which it found no idle
/// region. One tick proves little: a region that the program takes and releases all the time is
/// sometimes in use when the cleaner looks.
const EMPTY_TICKS: u32 = 8;

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
    if is_filtered() || TABLE.this_thread_left() || !cleaner.starts.begin() {
        return;
    }
    let argument = (&raw const *cache).cast_mut();
    // SAFETY: `run` keeps to the rules of `helper_thread.rs`, and `cache` is never freed.
    match unsafe { helper_thread::start(run, argument.cast()) } {
        Some(number) => {
            TABLE.set(number);
            cleaner.running.store(true, Relaxed);
        }
        None => cleaner.starts.failed_for_now(),
    }
}

/// The reader has reported changes. Wakes the cleaner if idle regions may be among the changed
/// ones: their pages stay pinned until they end.
pub fn heard() {
    if let Some(cache) = existing() {
        if !cache.cleaner.nothing_is_idle() {
            cache.cleaner.wake();
        }
    }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    // SAFETY: `start` passed a `&'static Cache`.
    let cache = unsafe { &*argument.cast::<Cache>() };
    helper_thread::set_name(c"rdmamr-cleaner");
    helper_thread::run_anywhere();
    let (regions, cleaner) = (cache.regions, &cache.cleaner);
    let mut ticks = 0u32;
    let mut busy = EMPTY_TICKS;
    let (mut awake, mut looked_at) = (None, None);
    loop {
        // The clock has stood still, so the cleaner sets it first. Otherwise a region that is
        // released from now on would look as if it had been released long ago.
        let now = cleaner.set_clock();
        let awake_since = *awake.get_or_insert(now);
        cleaner.dormant.store(0, SeqCst);
        // Stored after `dormant`, for `nothing_is_idle`. The cleaner looks for work after both
        // stores.
        cleaner.signal.store(0, SeqCst);
        if regions.ring.is_behind() {
            if let Some(locked) = regions.lock_by(By::Restricted) {
                cache.apply(&locked, By::Restricted);
            }
        }
        ending::deregister_evicted(cache, By::Restricted);
        // The cleaner looks at all slots at most once in a tick, however often it is woken.
        if looked_at != Some(now) {
            looked_at = Some(now);
            let mut is_idle = false;
            let mut devices = IdleDevices::default();
            let is_due = |region: &Slot| {
                devices.note(region);
                let due = cleaner.is_due(region, now, awake_since);
                is_idle |= !due;
                due
            };
            deregister_unused(cache, Cause::Linger, is_due, By::Restricted);
            is_idle |= invalidate_aged(cache, now, awake_since);
            devices.end_gone(cache);
            if cache.watch.mappings.take_shortage() {
                deregister_unused(cache, Cause::Pressure, |_| true, By::Restricted);
            }
            keep_to_limit(cache, now, awake_since);
            ticks = ticks.wrapping_add(1);
            if ticks % TICKS_BETWEEN_SHOWS == 0 || regions.slots().len() <= FEW_SLOTS {
                show_idle(cache);
            }
            trace::switch::look();
            let is_idle = is_idle || regions.is_ending();
            busy = if is_idle { EMPTY_TICKS } else { busy - 1 };
        }
        let limit = Duration::from_millis(cleaner.tick.into());
        if busy == 0 {
            let any = || {
                let mut each = regions.each();
                let waits = |region: &Slot| region.state.load().is_unused() || ages(region);
                regions.is_ending() || each.any(|(_, region)| waits(region))
            };
            busy = EMPTY_TICKS;
            cleaner.dormant.store(1, SeqCst);
            // A thread that released a region before this fence did not see the store. This
            // thread's look at the regions sees that release. A thread that releases a region after
            // the look has seen the store.
            fence(SeqCst);
            if !any() {
                futex::wait(&cleaner.signal, 0, None);
                (awake, looked_at) = (None, None);
            }
        } else {
            futex::wait(&cleaner.signal, 0, Some(limit));
        }
    }
}

/// Invalidates the regions in use whose age has come: they serve no further hit, and end with their
/// present use. Returns whether the age of others is still to come.
fn invalidate_aged(cache: &Cache, now: u64, awake: u64) -> bool {
    let (regions, cleaner) = (cache.regions, &cache.cleaner);
    let has_aged = |region: &Slot| ages(region) && cleaner.has_lingered(region, now, awake);
    let mut is_aging = false;
    for (id, region) in regions.each() {
        if !has_aged(region) {
            is_aging |= ages(region);
            continue;
        }
        let Some(locked) = regions.lock_by(By::Restricted) else {
            return true;
        };
        // Another region may have taken the slot.
        if has_aged(region) {
            locked.invalidate(id, Cause::Linger);
        }
    }
    is_aging
}

/// The devices that have idle regions, each with its file. Of more devices than fit the others are
/// looked at later.
#[derive(Default)]
struct IdleDevices([(usize, i32); IdleDevices::MOST]);

impl IdleDevices {
    const MOST: usize = 16;

    #[inline]
    fn note(&mut self, region: &Slot) {
        let device = region.device.load(Relaxed);
        let mut places = self.0.iter_mut();
        if let Some(place) = places.find(|place| place.0 == device || place.0 == 0) {
            *place = (device, region.fd.load(Relaxed));
        }
    }

    /// Nobody tells the library that a device was unplugged, and a hit does not ask the kernel: so
    /// the cleaner asks at each tick.
    fn end_gone(&self, cache: &Cache) {
        for &(device, fd) in self.0.iter().filter(|place| place.0 != 0) {
            if kernel_mr::has_gone(&UverbsOfHelper, device, fd) {
                // The regions' keys are dead: the kernel has ended them with the device.
                let of = ending::of_device(device);
                owners::invalidate_those(cache, &of, By::Restricted, Some(NO_FILE));
                deregister_unused(cache, Cause::Flush, of, By::Restricted);
            }
        }
    }
}

/// Sums the idle regions if more is registered than may be idle, and ends those beyond the limit, the
/// older ones first. If new regions have found no room since the last tick, all those end that were
/// idle for `TICKS` ticks. The lock is free between any two portions.
fn keep_to_limit(cache: &Cache, now: u64, awake: u64) {
    let (regions, account) = (cache.regions, &cache.regions.account);
    let was_full = cache.cleaner.was_full.swap(false, Relaxed);
    if !was_full && account.registered().fits(account.limit()) {
        return;
    }
    let sum = Amount::sum(regions.each_without_users());
    let Some(locked) = regions.lock_by(By::Restricted) else {
        return;
    };
    let mut excess = account.found_idle(sum);
    drop(locked);
    for age in [TICKS, 0] {
        let is_old =
            |region: &Slot| ticks_idle(region.released.load(Relaxed), now, awake) >= i64::from(age);
        let all = was_full && age > 0;
        if all || !excess.fits(Amount::default()) {
            // Up to this slot enough of them are old.
            let mut old = regions.each_without_users().filter(|region| is_old(region));
            let last = old.find(|region| {
                excess = excess.less(Amount::of(region));
                excess.fits(Amount::default()) && !all
            });
            let last = last.map_or(usize::MAX, Slot::object);
            let ends = |region: &Slot| is_old(region) && region.object() <= last;
            deregister_unused(cache, Cause::Watermark, ends, By::Restricted);
        }
    }
}

/// Shows the idle regions and the hits in the live page. Neither is counted when it happens,
/// because a hit must not write to any cache line but its region's.
fn show_idle(cache: &Cache) {
    let (regions, counters) = (cache.regions, cache.counters);
    let mut idle = stats::Idle::default();
    for region in regions.each_without_users() {
        let device = kernel_mr::counted_at(region.device.load(Relaxed));
        idle.add(device, region.pinned());
    }
    // This takes no lock: a registration would wait for it while all slots are read.
    let hits = counters.get(counter!(hits)) + regions.hits_of_regions();
    counters.show_idle(&idle, hits);
}
