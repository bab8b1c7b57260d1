// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that record calls of libfabric's family in the trace. An object that is opened
//! while `RDMAMR_TRACE` is set has these functions in its tables. Any other object does not refer
//! to them.
//!
//! # Safety
//! The contracts **our object** and **caller's memory** of `functions.rs`. Each function here
//! forwards its arguments unchanged, so the C caller's promise to it holds for the function that it
//! calls.

use super::functions::{close_noting, open_domain, reg_wished, regattr_wished, regv_wished};
use crate::capi::export::caller;
use crate::capi::ret;
use core::ffi::{c_int, c_void};
use libc::iovec;
use rdmamr_abi::libfabric::{fi_mr_attr, fid, fid_mr};
use rdmamr_fabric::attributes::Wish;
use rdmamr_fabric::close::settle;
use rdmamr_fabric::region::Region;
use rdmamr_mr::How;
use rdmamr_mr::explain::last_as_text;
use rdmamr_sys::caller::Caller;
use rdmamr_trace::format::{Call, call};
use rdmamr_trace::{self as trace, Pending};

/// Defines the traced function of a call with nine arguments. `$memory` and `$count` are the call's
/// own arguments; `$range` is the address and the length for the record.
macro_rules! of_nine_arguments {
    ($name:ident, $call:expr, $wished:ident, ($memory:ident: $type:ty, $count:ident), $range:expr) => {
        pub unsafe extern "C" fn $name(
            fid: *mut fid,
            $memory: $type,
            $count: usize,
            access: u64,
            offset: u64,
            requested_key: u64,
            flags: u64,
            mr: *mut *mut fid_mr,
            context: *mut c_void,
        ) -> c_int {
            let caller = caller();
            let wish = Wish {
                access,
                offset,
                requested_key,
                flags,
                context,
            };
            let memory = ($memory, $count);
            // SAFETY: our object, caller's memory: the arguments are the C caller's, unchanged.
            let body = |pending: &mut _| unsafe { $wished(fid, memory, wish, mr, pending) };
            let (addr, length): (usize, usize) = $range;
            // SAFETY: our object: `fid` is an open domain of this library.
            unsafe { registration($call, fid, (addr, length, access), caller, body) }
        }
    };
}
of_nine_arguments!(reg, call::FI_MR_REG, reg_wished, (buf: *const c_void, len), (buf.addr(), len));
of_nine_arguments!(regv, call::FI_MR_REGV, regv_wished, (iov: *const iovec, count), (0, 0));

pub unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    let caller = caller();
    // SAFETY: our object, caller's memory: the arguments are the C caller's, unchanged.
    let body = |pending: &mut _| unsafe { regattr_wished(fid, attr, flags, mr, pending) };
    let access = if attr.is_null() {
        0
    } else {
        // SAFETY: caller's memory: `attr` is not NULL, and every version of the attributes has
        // `access`.
        unsafe { (*attr).access }
    };
    // SAFETY: our object: `fid` is an open domain of this library.
    unsafe { registration(call::FI_MR_REGATTR, fid, (0, 0, access), caller, body) }
}

pub unsafe extern "C" fn region_close(fid: *mut fid) -> c_int {
    let caller = caller();
    // SAFETY: our object: `fid` is a region of this library.
    let region = unsafe { Region::from_c(fid) };
    let mut pending = pending(call::FI_CLOSE, caller);
    ret::always((), || {
        if let Some(pending) = &mut pending {
            // The region cannot be read after the call. A region that is closed already may have
            // outlived its domain.
            if region.check().is_ok() {
                pending.record.pd = settle(region).pd.address() as u64;
                region.describe_record(&mut pending.record, How::Kernel);
            }
        }
    });
    let result = close_noting(region, |how| {
        // A region that failed after its call has nothing to deregister, and its record says so.
        if let Some(pending) = &mut pending {
            if pending.record.how != trace::NOTHING.how {
                pending.record.how = how.code();
            }
        }
    });
    write(pending, result);
    result
}

/// The record of a call that begins now, if the trace is on.
fn pending(call: u8, caller: Caller) -> Option<Pending> {
    let record = Call {
        call,
        ..trace::NOTHING
    };
    ret::always(None, trace::begin).map(|began| Pending {
        began,
        record,
        caller,
    })
}

/// Writes the record of a call that is about to return.
fn write(pending: Option<Pending>, result: c_int) {
    ret::always((), || {
        if let Some(mut pending) = pending {
            pending.record.errno = -result as u16;
            pending.write(last_as_text);
        }
    })
}

/// Runs and records a registration. `call` is one of the numbers in `trace::format::call`. The
/// tuple is the memory that the call's arguments name: address, length and access. A reader of the
/// event may close the region and the domain before this function returns. So the body, not this
/// function, describes the region in the record, or takes the record along into the background.
///
/// # Safety
/// `fid` is an open domain of this library.
unsafe fn registration(
    call: u8,
    fid: *mut fid,
    (addr, length, access): (usize, usize, u64),
    caller: Caller,
    body: impl FnOnce(&mut Option<Pending>) -> c_int,
) -> c_int {
    let mut pending = pending(call, caller);
    if let Some(Pending { record, .. }) = &mut pending {
        // SAFETY: the caller promises that `fid` is an open domain of this library.
        record.pd = unsafe { open_domain(fid) }.pd.address() as u64;
        record.addr = addr as u64;
        record.length = length as u64;
        record.access = access as u32;
    }
    let result = body(&mut pending);
    write(pending, result);
    result
}
