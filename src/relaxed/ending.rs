// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a region: deregistered by the kernel, then its slot is free. Only for claimed regions.

use super::Instance;
use super::pool::{Cause, Locked, cause};
use super::region::{Id, Region};
use super::watch::{Unwatched, Watched};
use crate::mr::bare::{Bare, Uverbs, UverbsOfHelper};
use crate::stats::Counter;
use crate::thread;
use crate::trace::{self, format::Call};
use core::sync::atomic::Ordering::*;
use errno::Errno;

/// Who ends it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A thread of the program.
    Program,
    /// A thread that the C library does not know.
    Helper,
}

impl By {
    /// The thread's number.
    pub fn thread(self) -> thread::Number {
        match self {
            By::Program => thread::number(),
            By::Helper => thread::Number::HELPER,
        }
    }
}

/// What the trace has of a region.
fn described(region: &Region) -> Call {
    Call {
        pd: region.pd(),
        addr: region.hull().start,
        length: region.hull().bytes(),
        access: region.access(),
        lkey: region.lkey(),
        ..trace::NOTHING
    }
}

/// Deregisters a claimed region. An error leaves it registered, and never used again.
pub fn end(relaxed: &Instance, id: Id, by: By) -> Result<(), Errno> {
    let pool = relaxed.pool;
    let region = pool.region(id);
    let bare = Bare {
        device: region.device.load(Relaxed),
        fd: region.fd.load(Relaxed),
        handle: region.handle.load(Relaxed),
    };
    let result = match by {
        By::Program => bare.deregister(&Uverbs),
        By::Helper => bare.deregister(&UverbsOfHelper),
    };
    if let Err(errno) = result {
        pool.lock().restore(id);
        if by == By::Program {
            // To try again, or to have it tried. (It has its own time for what it is refused itself.)
            relaxed.cleaner.wake();
        }
        return Err(errno);
    }
    trace::ended(|| described(region));
    let (counters, thread) = (relaxed.counters, by.thread());
    counters.add(thread, Counter::DeregKernel, 1);
    if let Some(cause) = cause(region) {
        counters.add(thread, counter(cause), 1);
    }
    if by == By::Program {
        // A helper could not, and ends nothing where it must be done.
        let hull = region.hull();
        bare.dofork(hull.start as usize, hull.bytes() as usize);
    }
    let locked = pool.lock();
    counters.add(thread, Counter::Hits, region.forget_hits());
    leave(relaxed, &locked, id);
    Ok(())
}

/// Frees the slot of a claimed region that the kernel has no more, and stops watching its memory where that is
/// of use.
pub fn leave(relaxed: &Instance, locked: &Locked<'_>, id: Id) {
    let pool = relaxed.pool;
    let region = pool.region(id);
    let hull = region.hull();
    // Memory that has changed is not there any more, or is about to be registered anew.
    let in_peace = matches!(
        cause(region),
        Some(Cause::Flush | Cause::Linger | Cause::Watermark | Cause::Pressure)
    );
    let watched = region.watched.load(Relaxed);
    locked.end(id);
    if hull.bytes() > UNWATCH_AT_MOST {
        return;
    }
    let watch = &relaxed.watch;
    let unwatch = watched != 0 && (in_peace || watch.is_crowded());
    if !unwatch && !watch.has_holes() {
        return;
    }
    // Under the lock, so that a region that is just linked there is watched after this. Whichever is the last in a
    // chunk, the mappings are mended that others have left there.
    let chunks = hull.extended(super::filter::CHUNK);
    let done = !pool.filter.may_hold(chunks) && watch.unwatch(chunks);
    if !done && unwatch && watched == PAGES && !locked.has_regions(hull) {
        watch.unwatch_pages(hull);
    }
}

/// Values of `Region::watched`, besides 0.
const CHUNKS: u32 = 1;
const PAGES: u32 = 2;

/// The value of `Region::watched` for what is watched.
pub fn watched(watched: Result<Watched, Unwatched>) -> u32 {
    watched.map_or(0, |watched| match watched {
        Watched::Chunks => CHUNKS,
        Watched::Pages => PAGES,
    })
}

/// To stop watching takes 80 ns a page (measured), under the lock; large ranges split few mappings.
const UNWATCH_AT_MOST: u64 = 8 << 20;

/// Deregisters the regions that were claimed for whoever comes.
pub fn doomed(relaxed: &Instance, by: By) {
    while let Some(id) = relaxed.pool.next_doomed() {
        let _ = end(relaxed, id, by);
    }
}

/// Ends a region that was its last user's, as the program's thread that released it. Where the thread was
/// interrupted in the pool, the cleaner does.
pub fn spent(relaxed: &Instance, id: Id) {
    if thread::is_inside() {
        relaxed.cleaner.wake();
        return;
    }
    let _inside = thread::enter();
    let claimed = relaxed.pool.lock().claim(id);
    if claimed {
        // A refusal of the kernel leaves a region that nobody uses; the cleaner tries again.
        let _ = end(relaxed, id, By::Program);
    } else {
        // A change of its memory was quicker, and has left it to whoever comes.
        doomed(relaxed, By::Program);
    }
}

fn counter(cause: Cause) -> Counter {
    match cause {
        Cause::Flush => Counter::FlushedFlush,
        Cause::Watermark => Counter::FlushedWatermark,
        Cause::Linger => Counter::FlushedLinger,
        Cause::Pressure => Counter::FlushedPressure,
        Cause::Hook => Counter::FlushedHook,
        Cause::Event => Counter::FlushedEvent,
        Cause::Fence => Counter::FlushedFence,
        Cause::Stamp => Counter::FlushedStamp,
    }
}

/// Whether a region is one of a device, by the address of its `Device`.
pub fn of_device(device: usize) -> impl Fn(&Region) -> bool {
    move |region| region.device.load(Relaxed) == device
}

/// Whether a region belongs to a domain.
pub fn of_pd(pd: u64) -> impl Fn(&Region) -> bool {
    move |region| region.pd() == pd
}
