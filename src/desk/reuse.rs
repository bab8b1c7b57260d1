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
//! If the pool cannot serve a registration, the registration goes the way that it would go without
//! the pool. Its errors are then the kernel's, about the memory that the program named.

use super::{register as plain_register, turn_pool_on};
use crate::call::{Error, How, Pd, Registered, Request};
use crate::config::{Cache, config};
use crate::mr::{self, Mr};
use crate::pool::{self, Unserved};
use crate::report::log::{self, Level};
use crate::report::stats::{self, Counter, counter};
use crate::sys::thread;
use crate::watch::in_place;
use core::fmt;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Says once what the program gives up, when a region of the pool first serves it. If no memory can
/// be watched, the program gives nothing up, and the watch has said so.
fn say_so(cache: Cache) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.load(Relaxed) || SAID.swap(true, Relaxed) {
        return;
    }
    if !pool::is_watching() {
        return;
    }
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

/// Registers memory, by the pool if the pool can serve.
#[inline(never)]
pub fn register(cache: Cache, pd: Pd, request: &Request) -> Result<Registered, Error> {
    turn_pool_on();
    // The kernel refuses a registration of length 0.
    if request.length != 0 {
        match serve(cache, pd, request) {
            Ok(registered) => return Ok(registered),
            Err(reason) => stats::counters().count(reason),
        }
    }
    plain_register(pd, request)
}

/// Registers memory by the pool. An error is the reason why the pool does not serve the call.
#[inline(always)]
fn serve(cache: Cache, pd: Pd, request: &Request) -> Result<Registered, Counter> {
    if let Some(reason) = unserved(cache, request) {
        return Err(reason);
    }
    let addr = request.addr.addr();
    let answer = pool::hit(pd, addr, request.length, request.access, true);
    let hit = answer.region().map(|mr| Registered::by(How::Hit, mr));
    match hit.map_or_else(|| pool::register(pd, request, answer, true), Ok) {
        Ok(registered) => {
            say_so(cache);
            stand_for(request, registered)
        }
        Err(Unserved::Because(reason)) => Err(reason),
        Err(Unserved::Failed(Error::Shortage(_))) => Err(counter!(bypassed_busy)),
        Err(Unserved::Failed(_)) => Err(counter!(bypassed_memory)),
    }
}

/// Returns the reason why the pool does not serve a registration. `None`: the pool tries to serve
/// it.
#[inline(always)]
fn unserved(cache: Cache, request: &Request) -> Option<Counter> {
    let wanted = match cache {
        Cache::Off => false,
        Cache::Local => pool::LOCAL.contains(request.access),
        Cache::All => !request.access.intersects(pool::OWN_REGION),
    };
    // If a signal handler interrupts the library, its registration goes as if the pool were off.
    // The same holds in a child of a process that had a pool. If libibverbs keeps registered memory
    // from children, the pool serves nothing.
    if !wanted {
        Some(counter!(bypassed_access))
    } else if request.iova != request.addr.addr() as u64 {
        // A region has one address for all its users.
        Some(counter!(bypassed_address))
    } else if thread::is_inside() {
        Some(counter!(bypassed_busy))
    } else if pool::is_of_parent() {
        Some(counter!(bypassed_fork))
    } else if !in_place::are_in_place() {
        // Nothing could be kept. And an end that the program takes from libibverbs would not come
        // here: it would end the pool's region in the kernel.
        say_without_effect(cache, log::always, PASSED_BY);
        Some(counter!(bypassed_watch))
    } else if mr::bare::is_fork_protected() {
        let say = |message: fmt::Arguments<'_>| log::line(Level::Info, message);
        say_without_effect(cache, say, KEPT_FROM_CHILDREN);
        Some(counter!(bypassed_fork))
    } else {
        None
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
