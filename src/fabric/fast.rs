// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way of a registration that the pool serves, and back: what `register.rs` and `close.rs` do, for the
//! case that is worth nanoseconds. A relaxed domain, the provider's keys, no queue, no flags; all else is
//! `None`, and goes the long way.
//!
//! What goes back and forth here fits into registers; a `Result` with a failure in it goes through memory.

use super::access;
use super::domain::Domain;
use super::region::{Plan, Region};
use crate::abi::libfabric::fid_mr;
use crate::mr::Mr;
use crate::relaxed;
use core::ffi::c_void;

/// Registers memory that the pool has.
#[inline(always)]
pub fn register(
    domain: &'static Domain,
    addr: usize,
    length: usize,
    access: u64,
    context: *mut c_void,
) -> Option<*mut fid_mr> {
    if !domain.is_fast() || domain.check().is_err() {
        return None;
    }
    let access = access::known(access)?;
    let mr = relaxed::hit_here(domain.pd(), addr, length, access)?;
    // SAFETY: just registered.
    let served = unsafe { Mr::from_c(mr) }?;
    let Some(rested) = domain.rested() else {
        return long_way(domain, served, context);
    };
    // SAFETY: memory of a region of that domain, which nobody else has.
    let region = unsafe { Region::serve(rested, mr, &served.read(), context) };
    Some(region.as_ptr())
}

/// Where no memory has rested for long enough.
#[cold]
fn long_way(domain: &'static Domain, served: Mr, context: *mut c_void) -> Option<*mut fid_mr> {
    let public = served.read();
    let plan = Plan {
        context,
        base: public.addr.addr() as u64,
        length: public.length as u64,
        ..domain.plan()
    };
    let Ok(region) = domain.new_region(&plan) else {
        // There is no memory for it, and the long way says so.
        relaxed::release(served);
        return None;
    };
    // SAFETY: just made, and not given to anybody yet.
    let region = unsafe { Region::serve(region.address(), served.as_ptr(), &public, context) };
    Some(region.as_ptr())
}

/// Closes a region that goes back to the pool. False if it is another, or was closed already.
#[inline(always)]
pub fn close(region: &Region) -> bool {
    let Some(mr) = region.served() else {
        return false;
    };
    // The domain is looked at only now: a closed region may have outlived it.
    let domain = Domain::of(region);
    // The pool lets go of a region once: of two threads that close it one loses here.
    if !domain.is_fast() || !relaxed::release(mr) {
        return false;
    }
    domain.close_region(region);
    true
}
