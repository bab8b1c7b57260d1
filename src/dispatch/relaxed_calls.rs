// SPDX-License-Identifier: MIT OR Apache-2.0
//! The relaxed calls, ibv_reg_mr_relaxed(3), and the domains with the cache of libfabric's family.
//! The cache serves them. If it cannot, the caller gets a region of its own.

use super::listeners::{cache_is_on, turn_cache_on};
use super::register::register_rarely;
use crate::abi::rdma_core::ibv_mr;
use crate::cache::{self, Answer, Unserved};
use crate::mr::{Access, Error, How, Mr, Registered, Request};
use crate::next::Pd;
use crate::report::stats;

/// Registers memory.
#[inline(always)]
pub fn register_relaxed(pd: Pd, request: &Request) -> Result<Registered, Error> {
    let addr = request.addr.addr();
    let answer = cache::hit(pd, addr, request.length, request.access, false);
    match answer.region() {
        Some(mr) => Ok(Registered::by(How::Hit, mr)),
        None => register_missed(pd, request, answer),
    }
}

/// Registers memory after a miss.
#[cold]
fn register_missed(pd: Pd, request: &Request, answer: Answer) -> Result<Registered, Error> {
    turn_cache_on();
    match cache::register(pd, request, answer, false) {
        Ok(registered) => Ok(registered),
        Err(Unserved::Because(reason)) => {
            stats::counters().count(reason);
            register_rarely(pd, request)
        }
        Err(Unserved::Failed(error)) => Err(error),
    }
}

/// Returns a region of the cache that serves, if there is one. The caller does not need the reason
/// for a miss.
#[inline(always)]
pub fn hit_relaxed(pd: Pd, addr: usize, length: usize, access: Access) -> Option<*mut ibv_mr> {
    cache::hit(pd, addr, length, access, false).region()
}

/// Ends the caller's use of a region of the cache. Returns false if `mr` is no such region, or is
/// not in use.
#[inline(always)]
pub fn release_relaxed(mr: Mr) -> bool {
    // This is a hot path, so it does not ask whether the cache is on: the cache itself finds that
    // out.
    cache::release(mr)
}

/// Deregisters the released regions of a domain.
pub fn flush(pd: Pd) -> Result<(), Error> {
    if cache_is_on() {
        cache::flush(pd)
    } else {
        Ok(())
    }
}

/// Returns how many registrations were hits. `counted` returns the hits that the counters have
/// already.
pub fn relaxed_hits(counted: impl Fn() -> u64) -> u64 {
    if cache_is_on() {
        cache::hits(counted)
    } else {
        counted()
    }
}

/// The idle regions and the sum of their lengths, then the same for the regions in use.
pub fn relaxed_totals() -> [(u64, u64); 2] {
    if cache_is_on() {
        cache::totals()
    } else {
        Default::default()
    }
}
