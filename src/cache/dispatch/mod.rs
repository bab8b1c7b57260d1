// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single entry for every call that registers memory or ends a registration. It decides whether
//! the kernel, libibverbs or the cache serves the call. Its result says which of them did.
//!
//! `capi/` and `fabric/` call these functions, and these functions call the rest of the cache and
//! `mr/`. With `RDMAMR_CACHE=off` this costs a plain registration one load.

use crate::admission::Unserved;
use crate::instance::existing;
use crate::life::flush::relieve_program;
use crate::life::hit::{Answer, hit};
use crate::life::miss::{self, is_shortage, is_shortage_for_dmabuf};
use crate::life::owners;
use crate::life::release;
use crate::regions::is_in_slot;
use core::ffi::c_int;
use errno::errno;
use rdmamr_abi::rdma_core::ibv_mr;
use rdmamr_config::{CacheMode, config};
use rdmamr_mr::{self as mr, Access, Error, How, Object, Registered, Request, Reregistration, gpu};
use rdmamr_next::{self as next, Pd};
use rdmamr_stats::{self as stats, counter};
use rdmamr_sys::thread;

mod of_gpu;
pub mod private;
mod reuse;

pub use crate::admission::verdict;
pub use crate::ended::{End, end_for_good, panicked};
pub use crate::instance::{hits as relaxed_hits, totals as relaxed_totals};
pub use crate::life::change as changes;
pub use crate::life::device_files::DEVICE_FILES;
pub use crate::life::flush::flush;
pub use crate::life::owners::{close_device, dealloc_pd, unimport_pd};
pub use crate::life::release::release as release_relaxed;
pub use crate::permitted::ask_filter;
pub use crate::start::{at_load, set_limits};
pub use crate::watch::calls::all_calls_come;
pub use crate::watch::watch_fd::{TABLE, WATCH_FD};
pub use of_gpu::is_of_gpu;
pub use rdmamr_mr::{Mr, devices, fork_init, is_ordinary, memory_with, mlx5, reg_other_memory};

/// Registers memory for a plain call of a program.
#[inline(always)]
pub fn register_for(pd: Pd, request: &Request) -> Result<Registered, Error> {
    let mode = config().cache_mode;
    if mode == CacheMode::Off {
        return register(pd, request);
    }
    let counter = match reuse::serve(mode, pd, request) {
        Ok(registered) => return Ok(registered),
        Err(counter) => counter,
    };
    let registered = retried(pd, request, mr::register(pd, request, counter));
    if registered.is_ok_and(|registered| registered.how == How::Gpu) {
        of_gpu::remember(pd, request);
    }
    registered
}

/// Registers memory without the cache: the caller gets a plain region.
#[inline(always)]
pub fn register(pd: Pd, request: &Request) -> Result<Registered, Error> {
    retried(pd, request, mr::register(pd, request, None))
}

/// As [`register`], for callers that register rarely: it is not inlined.
pub fn register_rarely(pd: Pd, request: &Request) -> Result<Registered, Error> {
    retried(pd, request, mr::register_rarely(pd, request))
}

/// Deregisters the cache's idle regions if they may hold what was short, and registers once more.
#[inline(always)]
fn retried(
    pd: Pd,
    request: &Request,
    result: Result<Registered, Error>,
) -> Result<Registered, Error> {
    match result {
        Err(error)
            if existing().is_some() && is_shortage(pd, request, error) && relieve_program() =>
        {
            mr::register_rarely(pd, request)
        }
        result => result,
    }
}

/// Registers memory of a dma-buf.
///
/// # Safety
/// `fd` is a file descriptor of the program, valid for `ibv_reg_dmabuf_mr`.
pub unsafe fn reg_dmabuf_mr(
    pd: Pd,
    place: (u64, usize, u64),
    fd: i32,
    access: Access,
) -> Result<Registered, Error> {
    // SAFETY: this function's contract.
    let ask = || unsafe { mr::reg_dmabuf_mr(pd, place, fd, access) };
    match ask() {
        Err(Error::Next(errno))
            if existing().is_some() && is_shortage_for_dmabuf(pd, errno.0) && relieve_program() =>
        {
            ask()
        }
        result => result,
    }
}

/// Registers memory for a relaxed call.
#[inline(always)]
pub fn register_relaxed(pd: Pd, request: &Request) -> Result<Registered, Error> {
    let addr = request.addr.addr();
    let answer = hit(pd, addr, request.length, request.access, false);
    match answer.region() {
        Some(mr) => Ok(Registered::by(How::Hit, mr)),
        None => register_missed(pd, request, answer),
    }
}

#[cold]
fn register_missed(pd: Pd, request: &Request, answer: Answer) -> Result<Registered, Error> {
    match miss::register(pd, request, answer, false) {
        Ok(registered) => Ok(registered),
        Err(Unserved::Because(reason)) => {
            stats::counters().count(reason);
            register_rarely(pd, request)
        }
        // The miss has restored errno.
        Err(Unserved::Failed(error)) => {
            retried(pd, request, gpu::instead(pd, request, error, errno()))
                .inspect(|_| stats::counters().count(counter!(bypassed_memory)))
        }
    }
}

/// Returns a cached region that serves, if there is one. The caller does not need the reason for a
/// miss.
#[inline(always)]
pub fn hit_relaxed(pd: Pd, addr: usize, length: usize, access: Access) -> Option<*mut ibv_mr> {
    hit(pd, addr, length, access, false).region()
}

#[inline(always)]
pub fn deregister(mr: Mr) -> Result<How, Error> {
    if mr.is_stand_in() {
        return reuse::end_use(mr);
    }
    if is_in_slot(mr) {
        return release::end_relaxed_use(mr);
    }
    match config().cache_mode {
        CacheMode::Off => {}
        mode => reuse::remember(mode, mr),
    }
    mr::deregister(mr)
}

/// Forgets an imported region, ibv_unimport_mr(3). The kernel may keep the region for another
/// process.
pub fn unimport_mr(mr: Mr) {
    let region = mr.claim_cached().map_or(mr.address(), Object::cached);
    owners::forget(region);
    reuse::release_at(region);
    if is_in_slot(mr) {
        // The cache owns the object, so no provider may free it.
        return;
    }
    if let Some(next) = next::UNIMPORT_MR.by(mr.maker()) {
        let _uncancelled = thread::uncancelled();
        // SAFETY: the program passed this region to ibv_unimport_mr(3), and `next` is that function
        // of libibverbs. The region is live: its caller promised so to `Mr::from_c`.
        unsafe { next(mr.as_ptr()) }
    }
}

/// Changes a region. A region that the cache serves first becomes the program's own, with its keys,
/// which remote peers may hold: from then on the cache neither reuses nor deregisters it.
///
/// # Safety
/// As for [`mr::rereg`].
pub unsafe fn rereg(mr: Mr, change: &Reregistration) -> Result<c_int, Error> {
    give_to_program(mr)?;
    // SAFETY: this function's caller promises the contract of `mr::rereg` for `change`.
    unsafe { mr::rereg(mr, change) }
}

/// Makes a region of the program's own of one that the cache serves. Fails if a relaxed registration
/// uses the region as well, which would then change, or end, with the program's. (No other plain
/// registration uses it: the cache shares no region between plain calls.)
pub fn give_to_program(mr: Mr) -> Result<(), Error> {
    if is_in_slot(mr) {
        return Err(Error::Argument(
            "a relaxed region cannot be changed: others may use it, now or later",
        ));
    }
    let Some(object) = mr.claim_cached() else {
        return Ok(());
    };
    let cached = object.cached();
    if owners::is_of_gpu(cached) {
        mr.unretire();
        return Err(Error::Argument("a region of a dma-buf cannot be changed"));
    }
    if !owners::forget_unshared(cached) {
        mr.unretire();
        return Err(Error::Argument(
            "a relaxed registration uses the same region",
        ));
    }
    reuse::release_at(cached);
    mr::adopt(mr);
    Ok(())
}
