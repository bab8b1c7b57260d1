// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way of a registration that the pool serves, and back: what `register.rs` and `close.rs` do, for the case that
//! is worth nanoseconds. A relaxed domain, the provider's keys, no queue, no flags; all else is `None`,
//! and goes the long way.
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
    let mr = relaxed::hit(domain.pd(), addr, length, access).ok()?;
    // SAFETY: just registered.
    let served = unsafe { Mr::from_c(mr) }?;
    let plan = Plan {
        ops: &domain.tables().region,
        domain: domain.address(),
        process: domain.process(),
        raw: false,
        context,
        table_key: None,
        is_placed: false,
        base: addr as u64,
        length: length as u64,
    };
    let Ok(region) = domain.open_region(&plan) else {
        // There is no memory for it, and the long way says so.
        relaxed::release(served);
        return None;
    };
    region.serve(mr, &served.read());
    Some(region.as_ptr())
}

/// Closes a region that goes back to the pool. False if it is another, or was closed already.
#[inline(always)]
pub fn close(region: &Region) -> bool {
    let Some(mr) = region.take_served() else {
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
