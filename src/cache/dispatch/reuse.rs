// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transparent reuse, `RDMAMR_CACHE`: plain registrations that the cache serves.
//!
//! The program gets a separate `ibv_mr` object, allocated by the C library like the object of a
//! plain region. The object stands for one use of a cached region. So an
//! `ibv_dereg_mr` that the program looked up in libibverbs by handle finds the object that it
//! expects. It calls `ibv_cmd_dereg_mr`, which ends the use and not the region. Therefore the cache
//! also serves a program that calls only libibverbs' own functions: libibverbs' `ibv_reg_mr` jumps
//! to the library's `ibv_reg_mr_iova2`, just as its providers call the library's
//! `ibv_cmd_dereg_mr`. Both symbols resolve in the same search order.
//!
//! A region in use is never shared: two regions of the program have two keys, as they do without
//! the cache. (Memory of a GPU is an exception, `of_gpu.rs`.)
//!
//! Most programs register their memory once. So the first registration of a range is plain, and the
//! range is remembered when it is released (`cache/released.rs`).
//!
//! If the cache cannot serve a registration, the registration takes the path that it takes without
//! the cache. Its errors are then the kernel's, about the memory that the program named.

use crate::admission::{self, Refusal, Unserved, name};
use crate::dispatch::of_gpu;
use crate::instance::existing;
use crate::life::hit::{Answer, hit};
use crate::life::miss;
use crate::life::release::release;
use crate::region::slot;
use crate::regions;
use crate::released::{self, RELEASED};
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use rdmamr_config::CacheMode;
use rdmamr_mr::{Error, How, Mr, Object, Registered, Request, gpu};
use rdmamr_next::Pd;
use rdmamr_policy::Range;
use rdmamr_stats::log::{self, Level};
use rdmamr_stats::text::Decimal;
use rdmamr_stats::{self as stats, Counter, counter};
use rdmamr_sys::aside;
use rdmamr_sys::pages::PageRange;

/// Logs once, when a cached region first serves the program, what the program gives up. If no
/// memory can be watched, the program gives nothing up, and the watch has logged that.
fn say_so(mode: CacheMode) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.load(Relaxed) || SAID.swap(true, Relaxed) {
        return;
    }
    if log::wants(Level::Info) && existing().is_some_and(|cache| cache.watch.is_on()) {
        // The messages need 2 KiB of stack.
        aside::run(|| say(mode));
    }
}

fn say(mode: CacheMode) {
    let settings = rdmamr_config::cache();
    let which = name(mode);
    let (remote, linger) = match mode {
        CacheMode::All if !settings.fresh_keys => (
            ", remotely accessible ones included: a key stays valid after ibv_dereg_mr for",
            settings.linger_remote,
        ),
        _ => (
            " that are not remotely accessible: their memory stays pinned after ibv_dereg_mr for",
            settings.linger_local,
        ),
    };
    let seconds = Decimal {
        value: linger,
        unit: 1000,
        // 1, 0.5, 0.25, 0.125
        decimals: [1000, 100, 10]
            .iter()
            .take_while(|&unit| linger % unit != 0)
            .count(),
    };
    log::line(
        Level::Info,
        format_args!(
            "RDMAMR_CACHE={which}: the cache reuses regions{remote} {seconds} s. Each region covers whole pages"
        ),
    );
}

/// Registers memory by the cache if its range has come back and the cache can serve it. An error says that
/// the registration is plain. Its counter, if it has one, counts the registration once our own kernel call
/// has succeeded; without one the attempt is counted already, or is not counted.
///
/// As long as the process has no cache, the table of released ranges alone tells whether a range
/// has come back. So a program that gains nothing by the cache pays only for that look-up.
#[inline(always)]
pub fn serve(mode: CacheMode, pd: Pd, request: &Request) -> Result<Registered, Option<Counter>> {
    admission::of_call(mode, request).map_err(Refusal::counter)?;
    if !regions::has_had_cache() && !gpu::may_be_seen(request.addr.addr() as u64) {
        let range = range(pd, request).ok_or(None)?;
        if !RELEASED.comes_back(&range) {
            return Err(Some(counter!(bypassed_first)));
        }
    }
    serve_by_cache(mode, pd, request).map_err(|reason| {
        stats::counters().count(reason);
        None
    })
}

#[inline(always)]
fn range(pd: Pd, request: &Request) -> Option<Range> {
    let page_range = PageRange::around(request.addr.addr() as u64, request.length as u64)?;
    Some(slot::range(
        pd.address() as u64,
        page_range,
        request.access.bits(),
    ))
}

/// Registers memory by the cache. An error is the reason why the cache does not serve the call.
#[inline(never)]
fn serve_by_cache(mode: CacheMode, pd: Pd, request: &Request) -> Result<Registered, Counter> {
    let answer = hit(
        pd,
        request.addr.addr(),
        request.length,
        request.access,
        true,
    );
    if let Some(mr) = answer.region() {
        return stand_for(request, Registered::by(How::Hit, mr));
    }
    // A signal handler may have little stack.
    aside::run_if_little(|| missed(mode, pd, request, answer))
        .unwrap_or(Err(counter!(bypassed_limit)))
}

/// Registers memory for which the cache has no region.
#[inline(never)]
fn missed(
    mode: CacheMode,
    pd: Pd,
    request: &Request,
    answer: Answer,
) -> Result<Registered, Counter> {
    admission::of_process_of_plain()?;
    let range = range(pd, request).ok_or(counter!(bypassed_memory))?;
    let comes_back = RELEASED.comes_back(&range);
    if gpu::may_be_seen(range.start) || comes_back && gpu::may_be_unseen() {
        if let Some(served) = of_gpu::serve(pd, request) {
            return stand_for(request, served?);
        }
    }
    if !comes_back {
        return Err(counter!(bypassed_first));
    }
    // Makes a region that the cache keeps. The first call starts the cache.
    let made = miss::register(pd, request, answer, true).map_err(Unserved::counter);
    let served = made.and_then(|registered| {
        say_so(mode);
        stand_for(request, registered)
    });
    served.inspect_err(|&reason| {
        if reason != counter!(bypassed_busy) {
            RELEASED.give_up(&range);
        }
    })
}

/// Remembers the range of a plain region that is about to be deregistered: the next registration of
/// the range has come back. (If the deregistration fails, this is too early, which does no harm.)
#[inline(never)]
pub fn remember(mode: CacheMode, mr: Mr) {
    if mr.is_of_dmabuf() {
        return;
    }
    let (public, access) = (mr.read(), mr.access());
    let page_range = PageRange::around(public.addr.addr() as u64, public.length as u64);
    if let Some(page_range) = page_range.filter(|_| mode.wants(access)) {
        released::add(&slot::range(public.pd.addr() as u64, page_range, access));
    }
}

/// Makes the program's own object, which stands for one use of the cached region.
#[inline(always)]
fn stand_for(request: &Request, served: Registered) -> Result<Registered, Counter> {
    // SAFETY: the cache has just given this region out, so it is live until this use is released.
    let region = unsafe { Mr::from_c(served.mr) }.ok_or(counter!(bypassed_limit))?;
    let Some(object) = Object::allocate() else {
        release(region);
        return Err(counter!(bypassed_limit));
    };
    object.stand_for(request.access, region);
    Ok(Registered::by(served.how, object.as_ptr()))
}

/// Ends one use of the cached region whose object lies at this address, if one does.
pub fn release_at(cached: usize) {
    // SAFETY: the address is that of an object in a slot of the cache, whose memory is never unmapped,
    // or of the program's own live region, which is in no slot. In a child, which has no cache,
    // `release` does not read the object.
    if let Some(region) = unsafe { Mr::from_c(with_exposed_provenance_mut(cached)) } {
        // In a child of the process that registered the region, `release` returns false: the region
        // belongs to the parent, and stays.
        release(region);
    }
}

/// Deregisters a region that the cache serves.
#[inline(never)]
pub fn end_use(mr: Mr) -> Result<How, Error> {
    let object = mr.claim_cached().ok_or(Error::Gone)?;
    release_at(object.cached());
    // SAFETY: the use has ended, and this thread has claimed its object.
    unsafe { object.free() };
    Ok(How::Kept)
}

/// Serves a provider that deregisters a region. Returns true if the cache serves the region: the
/// provider then frees the object.
pub fn deregister_bypassed(mr: Mr) -> bool {
    mr.claim_cached()
        .map(|object| release_at(object.cached()))
        .is_some()
}
