// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fast path of a registration that the cache serves, and of its close. These functions do what
//! `register.rs` and `close.rs` do, for the one case in which nanoseconds count: a domain with the
//! cache, the provider's keys, no queue, no flags. In every other case they return `None` or false,
//! and the caller takes the long path.
//!
//! The arguments and results here fit into registers. A `Result` with a `Failure` would pass
//! through memory.

use super::access;
use super::domain::Domain;
use super::region::{Plan, Region};
use crate::dispatch::{self, Mr};
use core::ffi::c_void;

/// Registers memory that the cache already has.
#[inline(always)]
pub fn register(
    domain: &'static Domain,
    addr: usize,
    length: usize,
    access: u64,
    context: *mut c_void,
) -> Option<&'static Region> {
    if !domain.is_fast() || domain.check().is_err() {
        return None;
    }
    let access = access::known(access)?;
    let mr = dispatch::hit_relaxed(domain.pd(), addr, length, access)?;
    // SAFETY: `hit_relaxed` has just returned this registration.
    let served = unsafe { Mr::from_c(mr) }?;
    let Some(rested) = domain.rested() else {
        return long_way(domain, served, context);
    };
    // SAFETY: `rested` returned the memory of a closed region of this domain to this thread only.
    Some(unsafe { Region::serve(rested, mr, &served.read(), context) })
}

/// Continues the fast path if no memory of a region has rested long enough.
#[cold]
fn long_way(domain: &'static Domain, served: Mr, context: *mut c_void) -> Option<&'static Region> {
    let public = served.read();
    let plan = Plan {
        context,
        base: public.addr.addr() as u64,
        length: public.length as u64,
        ..domain.plan()
    };
    let Ok(region) = domain.new_region(&plan) else {
        // No memory is left for the region. The caller takes the long path, which reports the
        // error.
        dispatch::release_relaxed(served);
        return None;
    };
    // SAFETY: `new_region` has just made the region, and no other thread has seen it.
    Some(unsafe { Region::serve(region.address(), served.as_ptr(), &public, context) })
}

/// Closes a region whose registration goes back to the cache. False if the region needs the long
/// path, or was closed already.
#[inline(always)]
pub fn close(region: &Region) -> bool {
    let Some(mr) = region.served() else {
        return false;
    };
    // The domain is read only now: a closed region may have outlived its domain.
    let domain = Domain::of(region);
    // The cache releases a region once, so of two threads that close it, one fails here.
    if !domain.is_fast() || !dispatch::release_relaxed(mr) {
        return false;
    }
    domain.close_region(region);
    true
}
