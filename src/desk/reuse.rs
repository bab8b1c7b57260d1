// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transparent reuse, `RDMAMR_CACHE`: plain registrations that the pool serves.
//!
//! The program gets an object of its own. Like the object of any other region of this library it
//! lies in memory of the C library. The object stands for one use of a region of the pool. So an
//! `ibv_dereg_mr` that the program looked up in libibverbs by handle finds what it expects. That
//! call comes to `ibv_cmd_dereg_mr`, which ends the use and not the region. So a program whose every
//! function is libibverbs' is served as well: libibverbs' `ibv_reg_mr` jumps to the library's
//! `ibv_reg_mr_iova2` as its providers call the library's `ibv_cmd_dereg_mr`, by the same order of
//! the loaded files.
//!
//! A region in use is never shared: two regions of the program have two keys, as without the pool.
//!
//! Most programs register their memory once. So a range that comes for the first time is registered
//! plainly, and remembered when it is released (`pool/released.rs`).
//!
//! If the pool cannot serve a registration, the registration goes the way that it would go without
//! the pool. Its errors are then the kernel's, about the memory that the program named.

use super::turn_pool_on;
use crate::call::{Error, How, Pd, Registered, Request};
use crate::config::{Cache, config};
use crate::mr::{self, Mr};
use crate::pool::foresight::{self, Present};
use crate::pool::released::RELEASED;
use crate::pool::{self, Answer, Unserved};
use crate::report::log::{self, Level};
use crate::report::stats::{self, Counter, counter};
use crate::sys::aside;
use crate::sys::pages::PageRange;
use crate::watch::in_place;
use core::fmt;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use rdmamr_policy::{Range, unserved};

/// Says once what the program gives up, when a region of the pool first serves it. If no memory can
/// be watched, the program gives nothing up, and the watch has said so.
fn say_so(cache: Cache) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.load(Relaxed) || SAID.swap(true, Relaxed) {
        return;
    }
    if log::wants(Level::Info) && pool::is_watching() {
        // Its messages need 2 KiB of the stack.
        aside::run(|| say(cache));
    }
}

fn say(cache: Cache) {
    let settings = &config().relaxed;
    let which = name(cache);
    let (remote, linger) = match cache {
        Cache::All if !settings.fresh_keys => (
            ", also those that peers can reach: a key stays valid after ibv_dereg_mr for",
            settings.linger_remote,
        ),
        _ => (
            " that peers cannot reach: their memory stays pinned after ibv_dereg_mr for",
            settings.linger_local,
        ),
    };
    let seconds = linger as f64 / 1000.0;
    log::line(
        Level::Info,
        format_args!(
            "RDMAMR_CACHE={which}: the pool keeps and reuses regions{remote} {seconds} s. Each region covers whole pages"
        ),
    );
}

/// What becomes of a registration under `RDMAMR_CACHE`.
pub enum Served {
    /// The pool serves it.
    Pool(Registered),
    /// It is plain. The counter, if there is one, counts it once it has succeeded.
    Plain(Option<Counter>),
}

/// Registers memory by the pool if its range has come back and the pool can serve it.
///
/// A range that comes for the first time is known by the table of released ranges alone, as long as
/// there is no pool: a program that gains nothing by the cache pays for no more than that look.
#[inline(always)]
pub fn serve(cache: Cache, pd: Pd, request: &Request) -> Served {
    match rdmamr_policy::refusal_of(cache, foresight::asked(request)) {
        unserved::NONE => {}
        reason => return Served::Plain(refused(reason)),
    }
    if !super::pool_is_on() {
        match range(pd, request) {
            None => return Served::Plain(None),
            Some(range) if !RELEASED.comes_back(&range) => {
                return Served::Plain(Some(counter!(bypassed_first)));
            }
            Some(_) => {}
        }
    }
    match serve_by_pool(cache, pd, request) {
        Ok(registered) => Served::Pool(registered),
        Err(reason) => {
            stats::counters().count(reason);
            Served::Plain(None)
        }
    }
}

#[inline(always)]
fn range(pd: Pd, request: &Request) -> Option<Range> {
    let hull = PageRange::hull(request.addr.addr() as u64, request.length as u64)?;
    Some(pool::range(
        pd.address() as u64,
        hull,
        request.access.bits(),
    ))
}

/// Registers memory by the pool. An error is the reason why the pool does not serve the call.
#[inline(never)]
fn serve_by_pool(cache: Cache, pd: Pd, request: &Request) -> Result<Registered, Counter> {
    match rdmamr_policy::refusal_in(&Present) {
        unserved::NONE => {}
        reason => return Err(refused(reason).unwrap_or(counter!(bypassed_busy))),
    }
    let was_on = super::pool_is_on();
    let answer = pool::hit(
        pd,
        request.addr.addr(),
        request.length,
        request.access,
        true,
    );
    if let Some(mr) = answer.region() {
        return stand_for(request, Registered::by(How::Hit, mr));
    }
    let answer = was_on.then_some(answer);
    // A signal handler may have little stack.
    aside::run_if_little(|| missed(cache, pd, request, answer))
        .unwrap_or(Err(counter!(bypassed_limit)))
}

/// Registers memory for which the pool has no region. Without an `answer` there was no pool, and the
/// range is known to have come back.
#[inline(never)]
fn missed(
    cache: Cache,
    pd: Pd,
    request: &Request,
    answer: Option<Answer>,
) -> Result<Registered, Counter> {
    let range = range(pd, request).ok_or(counter!(bypassed_memory))?;
    if answer.is_some() && !RELEASED.comes_back(&range) {
        return Err(counter!(bypassed_first));
    }
    let answer = answer.unwrap_or(Answer::NONE);
    serve_again(cache, pd, request, answer).inspect_err(|&reason| {
        if reason != counter!(bypassed_busy) {
            RELEASED.give_up(&range);
        }
    })
}

/// Registers memory whose range has come back: makes a region that the pool keeps. The first call
/// starts the pool.
#[cold]
fn serve_again(
    cache: Cache,
    pd: Pd,
    request: &Request,
    answer: Answer,
) -> Result<Registered, Counter> {
    if !in_place::are_in_place() {
        // Nothing could be kept. And an end that the program takes from libibverbs would not come
        // here: it would end the pool's region in the kernel.
        say_without_effect(cache, log::always, PASSED_BY);
        return Err(counter!(bypassed_watch));
    }
    turn_pool_on();
    match pool::register(pd, request, answer, true) {
        Ok(registered) => {
            say_so(cache);
            stand_for(request, registered)
        }
        Err(Unserved::Because(reason)) => Err(reason),
        Err(Unserved::Failed(Error::Shortage(_))) => Err(counter!(bypassed_busy)),
        Err(Unserved::Failed(_)) => Err(counter!(bypassed_memory)),
    }
}

/// The counter of a reason why the rule refuses a registration. A registration of length 0, which
/// the kernel refuses too, is not counted.
#[cold]
fn refused(reason: u32) -> Option<Counter> {
    Some(match reason {
        unserved::ACCESS => counter!(bypassed_access),
        unserved::ADDRESS => counter!(bypassed_address),
        unserved::INTERRUPTED => counter!(bypassed_busy),
        unserved::CHILD => counter!(bypassed_fork),
        unserved::FORK => {
            let say = |message: fmt::Arguments<'_>| log::line(Level::Info, message);
            say_without_effect(config().cache, say, KEPT_FROM_CHILDREN);
            counter!(bypassed_fork)
        }
        unserved::DISABLED | unserved::DEVICE => counter!(bypassed_device),
        _ => return None,
    })
}

/// Remembers the range of a plain region that is about to be deregistered: the next registration of
/// the range has come back. (If the deregistration fails, that is too early, and does no harm.)
#[inline(never)]
pub fn remember(cache: Cache, mr: Mr) {
    let (public, access) = (mr.read(), mr.access());
    let hull = PageRange::hull(public.addr.addr() as u64, public.length as u64);
    if let Some(hull) = hull.filter(|_| cache.wants(access)) {
        RELEASED.add(&pool::range(public.pd.addr() as u64, hull, access));
        super::listen_for_ranges();
    }
}

/// The memory of this range changes: what is registered there later comes for the first time.
#[inline(never)]
pub fn memory_changes(addr: usize, length: usize) {
    if let Some(hull) = PageRange::hull(addr as u64, length as u64) {
        RELEASED.forget(hull.start, hull.end);
    }
}

const PASSED_BY: &str = "dlopen loaded the library, so the program's memory calls pass it by. \
    Preload the library (LD_PRELOAD), or link the program to it";
const KEPT_FROM_CHILDREN: &str = "libibverbs keeps registered memory from children (ibv_fork_init, \
    RDMAV_FORK_SAFE), since this kernel does not copy it for them, or the program took \
    ibv_fork_init from libibverbs itself";

/// Says once that the setting has no effect, and why.
#[cold]
fn say_without_effect(cache: Cache, say: fn(fmt::Arguments<'_>), why: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.load(Relaxed) || SAID.swap(true, Relaxed) {
        return;
    }
    say(format_args!(
        "RDMAMR_CACHE={} is without effect: {why}",
        name(cache)
    ));
}

fn name(cache: Cache) -> &'static str {
    match cache {
        Cache::Off => "off",
        Cache::Local => "local",
        Cache::All => "all",
    }
}

/// Makes the program's own object, which stands for one use of the pool's region.
#[inline(always)]
fn stand_for(request: &Request, served: Registered) -> Result<Registered, Counter> {
    // SAFETY: the pool has just given this region out, so it is live until this use is released.
    let region = unsafe { Mr::from_c(served.mr) }.ok_or(counter!(bypassed_limit))?;
    match mr::new_object() {
        Some(object) => {
            object.stand_for(request.access, region);
            Ok(Registered::by(served.how, object.as_ptr()))
        }
        None => {
            pool::release(region);
            Err(counter!(bypassed_limit))
        }
    }
}

/// Ends one use of the region of the pool whose object lies at `pooled`.
pub fn end(pooled: usize) {
    // SAFETY: `pooled` is an object in a slot of the pool, and the pool's memory is never unmapped.
    // In a child, which has no pool, `release` does not read the object.
    if let Some(region) = unsafe { Mr::from_c(with_exposed_provenance_mut(pooled)) } {
        // `release` returns false in a child of the process that registered the region: the region
        // is the parent's, and stays.
        pool::release(region);
    }
}

/// Deregisters a region that the pool serves.
#[inline(never)]
pub fn deregister(mr: Mr) -> Result<How, Error> {
    let object = mr.claim_pooled().ok_or(Error::Gone)?;
    end(object.pooled());
    mr::put_object_away(object);
    Ok(How::Kept)
}

/// A provider deregisters a region that the pool serves. Returns true if there is such a region:
/// the provider then frees the object.
pub fn deregister_past_us(mr: Mr) -> bool {
    mr.claim_pooled()
        .map(|object| end(object.pooled()))
        .is_some()
}
