// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering, ibv_reg_mr(3). The pool serves the call if the user wants that and the pool can.
//! Otherwise the call gets a region of its own.

use super::pool_is_on;
use super::reuse::{self, Served};
use crate::call::{Error, Pd, Registered, Request};
use crate::config::{Cache, config};
use crate::mr;
use crate::pool;

/// Registers memory for a plain call of a program.
#[inline(always)]
pub fn register_for(pd: Pd, request: &Request) -> Result<Registered, Error> {
    let counter = match config().cache {
        Cache::Off => None,
        cache => match reuse::serve(cache, pd, request) {
            Served::Pool(registered) => return Ok(registered),
            Served::Plain(counter) => counter,
        },
    };
    retried(pd, request, mr::register(pd, request, counter))
}

/// Registers memory without the pool: the caller gets a region of its own.
#[inline(always)]
pub fn register(pd: Pd, request: &Request) -> Result<Registered, Error> {
    retried(pd, request, mr::register(pd, request, None))
}

/// As [`register`], for callers that register rarely: it is not inlined.
pub fn register_rarely(pd: Pd, request: &Request) -> Result<Registered, Error> {
    retried(pd, request, mr::register_rarely(pd, request))
}

#[inline(always)]
fn retried(
    pd: Pd,
    request: &Request,
    result: Result<Registered, Error>,
) -> Result<Registered, Error> {
    match result {
        Err(error) if pool_is_on() && pool::is_shortage(error) => register_again(pd, request),
        result => result,
    }
}

/// Deregisters the pool's idle regions, which may hold what is short, and registers once
/// more.
#[cold]
fn register_again(pd: Pd, request: &Request) -> Result<Registered, Error> {
    pool::relieve_program();
    mr::register_rarely(pd, request)
}
