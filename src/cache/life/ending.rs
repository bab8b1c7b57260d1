// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a claimed region: the kernel deregisters it, then its slot is free.

use crate::cause::Cause;
use crate::extents::{Heir, UNWATCH_AT_MOST};
use crate::instance::Cache;
use crate::life::cleaner::now_ms;
use crate::locked::{By, Locked, cause};
use crate::region::link::Id;
use crate::region::slot::{CachedRegion, LEFT};
use crate::released;
use crate::watch::extent::CHUNK;
use crate::watch::table::TABLE;
use core::sync::atomic::Ordering::*;
use core::time::Duration;
use errno::Errno;
use rdmamr_mr::kernel_mr::{self, KernelMr, Uverbs, UverbsOfHelper};
use rdmamr_stats::{Change, Counter, counter};
use rdmamr_sys::aside;
use rdmamr_sys::helper_thread;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::probe;
use rdmamr_sys::thread;
use rdmamr_trace::{self as trace, format::Call};

/// Runs `body`, which takes the cache's lock in an interposed call, with all signals blocked.
/// Preserves errno. `None` if the thread has too little stack.
pub fn in_call<T>(body: impl FnOnce() -> T) -> Option<T> {
    aside::run_blocked(|| {
        let _inside = thread::enter();
        body()
    })
}

/// The trace's record of a region.
fn described(region: &CachedRegion) -> Call {
    Call {
        pd: region.pd(),
        addr: region.page_range().start,
        length: region.page_range().bytes(),
        access: region.access(),
        lkey: region.lkey(),
        ..trace::NOTHING
    }
}

/// Deregisters a claimed region. After an error the region stays registered, and is never reused. A
/// flush of its domain or device tries to end it again, and so does the cleaner.
///
/// In another table of descriptors than the cache's, the regions' descriptor numbers mean other
/// files. A thread with such a table leaves the region to the cleaner.
pub fn end(cache: &Cache, id: Id, by: By) -> Result<(), Errno> {
    let regions = cache.regions;
    if !TABLE.is_here() {
        regions.ends_later(id);
        cache.cleaner.wake();
        return Ok(());
    }
    let region = regions.region(id);
    if let Err(errno) = deregister(cache, region, by) {
        region.refusals.fetch_add(1, Relaxed);
        region.released.store(cache.cleaner.now(), Relaxed);
        match by.lock(regions) {
            Some(locked) => locked.restore(id),
            // The thread that ends the evicted regions gets the error again.
            None => regions.ends_later(id),
        }
        if by == By::Program {
            // The cleaner may be asleep. Once awake, it tries again at its own times.
            cache.cleaner.wake();
        }
        return Err(errno);
    }
    let Some(locked) = by.lock(regions) else {
        // The kernel has unpinned the region. Its slot waits for a thread that gets the lock.
        region.fd.store(LEFT, Relaxed);
        regions.ends_later(id);
        return Ok(());
    };
    let (page_range, why) = (region.page_range(), region.cause.load(Relaxed));
    probe!(
        "evict",
        page_range.start,
        page_range.bytes(),
        u64::from(why)
    );
    let record = trace::end_of(|| described(region));
    let (counters, thread) = (cache.counters, by.thread());
    let device = kernel_mr::counted_at(region.device.load(Relaxed));
    let less = Change::less(region.page_range().bytes());
    counters.change_of_cache(thread, device, less);
    if let Some(cause) = cause(region) {
        counters.add(thread, counter(cause), 1);
    }
    released::ended(region, cause(region), region.hits());
    counters.add(thread, counter!(hits), region.forget_hits());
    leave(cache, &locked, id, by);
    drop(locked);
    if let Some(record) = record {
        trace::ended(&record);
    }
    Ok(())
}

/// Has the kernel deregister a claimed region.
fn deregister(cache: &Cache, region: &CachedRegion, by: By) -> Result<(), Errno> {
    if region.is_left() {
        // The kernel has ended the region, or another process owns the region now.
        return Ok(());
    }
    let ended = KernelMr {
        device: region.device.load(Relaxed),
        fd: region.fd.load(Relaxed),
        handle: region.handle.load(Relaxed),
    };
    match by {
        By::Program => ended.deregister(&Uverbs),
        By::Helper => ended.deregister(&UverbsOfHelper),
    }?;
    cache.counters.add(by.thread(), counter!(dereg_kernel), 1);
    Ok(())
}

/// Has the kernel deregister a claimed region now, and leaves the rest to the next thread that ends
/// the evicted regions.
pub fn unpin(cache: &Cache, id: Id) {
    let region = cache.regions.region(id);
    // After an error, the thread that ends the region gets the error again.
    if TABLE.is_here() && deregister(cache, region, By::Helper).is_ok() {
        region.fd.store(LEFT, Relaxed);
    }
    cache.regions.ends_later(id);
}

/// Frees the slot of a claimed region that the kernel has deregistered. Also stops watching the
/// region's memory, if that is useful.
pub fn leave(cache: &Cache, locked: &Locked<'_>, id: Id, by: By) {
    let region = cache.regions.region(id);
    let extent = region
        .extent()
        .filter(|_| region.page_range().bytes() <= UNWATCH_AT_MOST);
    let mut from = extent.map_or(0, |extent| extent.start);
    while extent.is_some_and(|extent| from < extent.end) {
        let chunk = PageRange::new(from, (from + 1).next_multiple_of(CHUNK));
        leave_chunk(cache, locked, id, by, chunk);
        from = chunk.end;
    }
    // Another region's memory may have come to this one meanwhile, beyond these chunks.
    if extent.is_none() || region.extent() != extent {
        cache.regions.leave_some();
    }
    locked.end(id);
}

/// Stops watching the memory that a region leaves in a chunk, unless another region takes the
/// memory over. The watch of a part of a mapping splits the mapping into VMAs. When the last region
/// leaves, the VMAs become one again, whichever region that is.
fn leave_chunk(cache: &Cache, locked: &Locked<'_>, id: Id, by: By, chunk: PageRange) {
    let (regions, watch) = (cache.regions, &cache.watch);
    let region = regions.region(id);
    // After a change the memory is gone, or is about to be registered anew, so its watch need not
    // end.
    let in_peace = matches!(
        cause(region),
        Some(Cause::Flush | Cause::Linger | Cause::Watermark | Cause::Pressure)
    );
    let wanted = in_peace || watch.mappings.is_crowded() || region.has_inherited();
    // Changed memory is no longer the cache's: applying the log removes it from the region's extent.
    cache.apply(locked, by);
    let Some(memory) = region.extent().and_then(|extent| extent.common(chunk)) else {
        return;
    };
    match locked.heir(memory, id) {
        Heir::Region(heir) => regions.region(heir).inherit(memory),
        // This runs under the lock, so a region that is linked here meanwhile registers its watch
        // after this.
        Heir::None if wanted && !regions.changes.is_long(now_ms) => drop(watch.unwatch(memory)),
        // If a call on much memory holds the kernel's mmap lock, this thread does not wait for it,
        // because it holds the cache's lock.
        Heir::None | Heir::Unknown => regions.leave_some(),
    }
}

/// Deregisters the evicted regions: claimed regions that wait for any thread to deregister them.
pub fn evicted(cache: &Cache, by: By) {
    some_evicted(cache, by, usize::MAX);
}

/// Deregisters at most `most` of the evicted regions.
pub fn some_evicted(cache: &Cache, by: By, most: usize) {
    if !TABLE.is_here() {
        cache.cleaner.wake();
        return;
    }
    for _ in 0..most {
        if cache.regions.is_locked_in_vain() {
            // The cleaner itself comes back at its next tick.
            if !helper_thread::is_current() {
                cache.cleaner.wake();
            }
            return;
        }
        let Some(id) = cache.regions.next_evicted() else {
            return;
        };
        let _ = end(cache, id, by);
    }
}

/// Ends the idle regions that the changes in the log touch, and stops watching a range of memory.
/// With `adjoining`, does the same to the regions and the watched memory that adjoin the range, if
/// some of the range is watched. Returns whether some of the memory was watched. Any thread may
/// call this, in an interposed memory call too.
pub fn touched(cache: &Cache, range: PageRange, adjoining: bool) -> bool {
    let regions = cache.regions;
    // A garbage collector may unmap memory while its signal handler has stopped all other threads.
    // The cleaner ends the regions that this call leaves: the log has invalidated them.
    let Some(locked) = regions.lock_in_call() else {
        cache.cleaner.wake();
        return false;
    };
    cache.apply(&locked, By::Helper);
    let memory = if adjoining {
        locked.invalidate_adjoining(range)
    } else {
        range
    };
    let watched = locked.unwatch(memory, |part| cache.watch.unwatch(part));
    locked.note_clear(range);
    drop(locked);
    evicted(cache, By::Helper);
    // Another thread may be ending a region of this memory.
    for _ in 0..PATIENCE {
        let is_ending = || {
            let locked = regions.lock_in_call();
            locked.is_some_and(|locked| locked.is_ending(range))
        };
        if !regions.is_ending() || !is_ending() {
            break;
        }
        regions.wait_for_an_end(Duration::from_millis(1));
    }
    watched
}

/// Whether the watch leaves the mapping of a range whole ([`Locked::is_whole`]). Also true if
/// another task holds the lock.
pub fn is_whole(cache: &Cache, range: PageRange) -> bool {
    let locked = cache.regions.lock_in_call();
    locked.is_none_or(|locked| {
        cache.apply(&locked, By::Helper);
        locked.is_whole(range)
    })
}

/// How long an interposed memory call waits for another thread that ends a region of the memory, in
/// ms.
const PATIENCE: u32 = 20;

/// Deregisters a region that its last user has released, on the releasing thread of the program. If
/// that is a signal handler that interrupted its thread inside the cache, the cleaner deregisters
/// the region. Another thread may have ended the region since: then the slot has another
/// generation, or is free.
pub fn spent(cache: &Cache, id: Id, generation: u32) {
    if thread::is_inside() {
        cache.cleaner.wake();
        return;
    }
    let _inside = thread::enter();
    let claimed = match cache.regions.lock_of_program() {
        Some(locked) => locked.claim_generation(id, generation),
        None => {
            // The cleaner ends a region that has no user and will get none.
            cache.cleaner.wake();
            return;
        }
    };
    if claimed {
        // A region that the kernel refuses to deregister stays unused. The cleaner tries again.
        let _ = end(cache, id, By::Program);
    } else {
        // A change of the region's memory claimed it first, and left it on the list of evicted
        // regions.
        evicted(cache, By::Program);
    }
}

fn counter(cause: Cause) -> Counter {
    match cause {
        Cause::Flush => counter!(flushed_flush),
        Cause::Watermark => counter!(flushed_watermark),
        Cause::Linger => counter!(flushed_linger),
        Cause::Pressure => counter!(flushed_pressure),
        Cause::Hook => counter!(flushed_hook),
        Cause::Event => counter!(flushed_event),
        Cause::Fence => counter!(flushed_fence),
    }
}

/// Tells whether a region belongs to this device. `device` is the address of the region's `Device`.
pub fn of_device(device: usize) -> impl Fn(&CachedRegion) -> bool {
    move |region| region.device.load(Relaxed) == device
}

/// Tells whether a region belongs to this protection domain.
pub fn of_pd(pd: u64) -> impl Fn(&CachedRegion) -> bool {
    move |region| region.pd() == pd
}
