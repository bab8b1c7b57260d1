// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a claimed region: the kernel deregisters it, then its slot is free.

use crate::counted;
use crate::instance::Cache;
use crate::locked::{By, Locked};
use crate::region::slot::{Id, NO_FILE, Slot};
use crate::released;
use crate::watch::watch_fd::TABLE;
use core::sync::atomic::Ordering::*;
use errno::Errno;
use rdmamr_mr::kernel_mr::{self, KernelMr, Uverbs, UverbsOfHelper};
use rdmamr_policy::OF_GPU;
use rdmamr_stats::{Change, counter};
use rdmamr_sys::signals::Blocked;
use rdmamr_sys::{aside, helper_thread, probe, thread};
use rdmamr_trace::{self as trace, format::Call};

/// Runs `body`, which takes the cache's lock in an interposed call, with all signals but faults blocked.
/// Preserves errno. `None` if the thread has too little stack and no other could be mapped.
pub fn in_call<T>(body: impl FnOnce() -> T) -> Option<T> {
    let _blocked = Blocked::but_faults();
    in_blocked_call(body)
}

/// As [`in_call`], where the signals are blocked already.
pub fn in_blocked_call<T>(body: impl FnOnce() -> T) -> Option<T> {
    let entered = || {
        let _inside = thread::enter();
        body()
    };
    thread::keep_errno(|| aside::run_if_little(entered))
}

/// Deregisters a claimed region. After an error the region stays registered, and is never reused. A
/// flush of its domain or device tries to end it again, and so does the cleaner.
///
/// In another table of descriptors than the cache's, the regions' descriptor numbers mean other
/// files. A thread with such a table leaves the region to the cleaner.
pub fn deregister(cache: &Cache, id: Id, by: By) -> Result<(), Errno> {
    let regions = cache.regions;
    if !TABLE.is_here() {
        regions.queue(id);
        cache.cleaner.wake();
        return Ok(());
    }
    let region = regions.region(id);
    if let Err(errno) = deregister_in_kernel(cache, region, by) {
        region.refusals.fetch_add(1, Relaxed);
        region.released.store(cache.cleaner.now(), Relaxed);
        match regions.lock_by(by) {
            Some(locked) => locked.restore(id),
            // The thread that ends the evicted regions gets the error again.
            None => regions.queue(id),
        }
        if by == By::Program {
            // The cleaner may be asleep. Once awake, it tries again at its own times.
            cache.cleaner.wake();
        }
        return Err(errno);
    }
    // A call that is counted may hold the kernel's mmap lock for long, for which the end of a watch waits.
    // The cleaner may wait.
    let waits = by == By::Program && counted::is_any();
    let Some(locked) = (!waits).then(|| end_watch(cache, id, by)).flatten() else {
        // The kernel has unpinned the region. Its slot waits for a thread that gets the lock.
        region.fd.store(NO_FILE, Relaxed);
        regions.queue(id);
        if waits {
            cache.cleaner.wake();
        }
        return Ok(());
    };
    let device = region.device.load(Relaxed);
    if device == 0 {
        // The kernel has refused the region, so nobody has counted it.
        locked.free(id);
        return Ok(());
    }
    let (page_range, why) = (region.page_range(), region.cause.load(Relaxed));
    probe!(
        "evict",
        page_range.start,
        page_range.bytes(),
        u64::from(why)
    );
    let record = trace::end_of(|| Call {
        pd: region.pd(),
        addr: page_range.start,
        length: page_range.bytes(),
        access: region.access() & !OF_GPU,
        lkey: region.lkey(),
        ..trace::NOTHING
    });
    let (counters, thread) = (cache.counters, by.thread());
    let less = Change::less(region.pinned());
    counters.change_of_cache(thread, kernel_mr::counted_at(device), less);
    if let Some((cause, counter)) = region.cause() {
        counters.add(thread, counter, 1);
        released::ended(region, cause);
    }
    counters.add(thread, counter!(hits), region.forget_hits());
    locked.free(id);
    drop(locked);
    if let Some(record) = record {
        trace::ended(&record);
    }
    Ok(())
}

/// Has the kernel deregister a claimed region.
fn deregister_in_kernel(cache: &Cache, region: &Slot, by: By) -> Result<(), Errno> {
    if region.has_no_file() {
        // The kernel has ended the region, or another process owns the region now.
        return Ok(());
    }
    let ended = KernelMr {
        device: region.device.load(Relaxed),
        fd: region.fd.load(Relaxed),
        handle: region.kernel_handle.load(Relaxed),
    };
    match by {
        By::Program => ended.deregister(&Uverbs),
        By::Restricted => ended.deregister(&UverbsOfHelper),
    }?;
    cache.counters.add(by.thread(), counter!(dereg_kernel), 1);
    Ok(())
}

/// Has the kernel deregister a claimed region now, and leaves the rest to the next thread that ends
/// the evicted regions.
pub fn unpin(cache: &Cache, id: Id) {
    let region = cache.regions.region(id);
    // After an error, the thread that ends the region gets the error again.
    if TABLE.is_here() && deregister_in_kernel(cache, region, By::Restricted).is_ok() {
        region.fd.store(NO_FILE, Relaxed);
    }
    cache.regions.queue(id);
}

/// Stops watching the memory that no other region needs, of a claimed region that the kernel has
/// deregistered, or of one that was never kept. Then its slot can be freed. `None` if another task
/// holds the lock.
///
/// The lock is free while the kernel works. A region that is linked meanwhile may lose its watch, so
/// it is not kept ([`Locked::keep`], [`Locked::invalidate_unkept_near`]).
pub fn end_watch(cache: &Cache, id: Id, by: By) -> Option<Locked<'_>> {
    let region = cache.regions.region(id);
    let mut from = 0;
    loop {
        let locked = cache.regions.lock_by(by)?;
        let Some(part) = locked.unneeded(id, from) else {
            if region.is_unwatching() {
                locked.invalidate_unkept_near(id);
            }
            return Some(locked);
        };
        region.begin_unwatching();
        drop(locked);
        cache.watch.unwatch_for(region.page_range(), part);
        from = part.end;
    }
}

/// Ends the watch of a monitored range, without leaving the lock, and frees its slot.
pub fn end_watch_and_free(cache: &Cache, locked: &Locked<'_>, id: Id) {
    let page_range = locked.regions().region(id).page_range();
    let mut from = 0;
    while let Some(part) = locked.unneeded(id, from) {
        cache.watch.unwatch_for(page_range, part);
        from = part.end;
    }
    if from > 0 {
        // A thread that does not hold the lock may have just had its region watched.
        locked.invalidate_unkept_near(id);
    }
    locked.free(id);
}

/// Deregisters the evicted regions: claimed regions that wait for any thread to deregister them.
pub fn deregister_evicted(cache: &Cache, by: By) {
    deregister_some_evicted(cache, by, usize::MAX);
}

/// Deregisters at most `most` of the evicted regions.
pub fn deregister_some_evicted(cache: &Cache, by: By, most: usize) {
    if !TABLE.is_here() {
        cache.cleaner.wake();
        return;
    }
    for _ in 0..most {
        if cache.regions.lock.is_in_vain() {
            // An attempt to take the lock is useless now. The cleaner itself comes back at its next
            // tick.
            if !helper_thread::is_current() {
                cache.cleaner.wake();
            }
            return;
        }
        let Some(id) = cache.regions.next_evicted() else {
            return;
        };
        let _ = deregister(cache, id, by);
    }
}

/// Deregisters a region that its last user has released, on the releasing thread of the program. If
/// that is a signal handler that interrupted its thread inside the cache, the cleaner deregisters
/// the region. Another thread may have ended the region since: then the slot has another
/// generation, or is free.
pub fn after_last_use(cache: &Cache, id: Id, generation: u32) {
    if thread::is_inside() {
        cache.cleaner.wake();
        return;
    }
    let _inside = thread::enter();
    let claimed = match cache.regions.lock_by(By::Program) {
        Some(locked) => locked.claim_generation(id, generation),
        None => {
            // The cleaner ends a region that has no user and will get none.
            cache.cleaner.wake();
            return;
        }
    };
    if claimed {
        // A region that the kernel refuses to deregister stays unused. The cleaner tries again.
        let _ = deregister(cache, id, By::Program);
    } else {
        // A change of the region's memory claimed it first, and left it on the list of evicted
        // regions.
        deregister_evicted(cache, By::Program);
    }
}

/// Tells whether a region belongs to this device. `device` is the address of the region's `Device`.
pub fn of_device(device: usize) -> impl Fn(&Slot) -> bool {
    move |region| region.device.load(Relaxed) == device
}

/// Tells whether a region belongs to this protection domain.
pub fn of_pd(pd: u64) -> impl Fn(&Slot) -> bool {
    move |region| region.pd() == pd
}
