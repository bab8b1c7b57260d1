// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_reg_mr(3). The cache serves the call if `RDMAMR_CACHE` asks for that and the cache can.
//! Otherwise the caller gets a plain region.

use crate::dispatch::of_gpu;
use crate::dispatch::reuse;
use crate::instance::existing;
use crate::life::miss::{is_shortage, is_shortage_for_dmabuf};
use crate::life::owners::relieve_program;
use rdmamr_config::{CacheMode, config};
use rdmamr_mr::{self as mr, Access, Error, How, Registered, Request};
use rdmamr_next::Pd;

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

#[inline(always)]
pub(super) fn retried(
    pd: Pd,
    request: &Request,
    result: Result<Registered, Error>,
) -> Result<Registered, Error> {
    match result {
        Err(error) if existing().is_some() => register_again(pd, request, error),
        result => result,
    }
}

/// Deregisters the cache's idle regions if they may hold what is short, and registers once more.
#[cold]
fn register_again(pd: Pd, request: &Request, error: Error) -> Result<Registered, Error> {
    if is_shortage(pd, request, error) && relieve_program() {
        mr::register_rarely(pd, request)
    } else {
        Err(error)
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
