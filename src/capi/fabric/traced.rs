// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of libfabric's family that are written down. The tables have these functions if `RDMAMR_TRACE` says so
//! when an object is opened, and otherwise know nothing of it.
//!
//! # Safety
//! That of [`functions`].

use super::functions;
use crate::abi::libfabric::{fi_mr_attr, fid, fid_mr};
use crate::caller::Caller;
use crate::capi::export::with_caller;
use crate::explain::last_as_text;
use crate::fabric::{Domain, Region, settle};
use crate::trace;
use crate::trace::format::{Call, call, how};
use core::ffi::{c_int, c_void};
use libc::iovec;

#[unsafe(naked)]
pub unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    with_caller!(reg_of, tenth)
}

unsafe extern "C" fn reg_of(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
    caller: Caller,
) -> c_int {
    // SAFETY: the caller's word.
    let body = || unsafe {
        functions::reg(
            fid,
            buf,
            len,
            access,
            offset,
            requested_key,
            flags,
            mr,
            context,
        )
    };
    let memory = (buf.addr(), len, access);
    // SAFETY: the caller's word.
    unsafe { registration(call::FI_MR_REG, fid, mr, memory, caller, body) }
}

#[unsafe(naked)]
pub unsafe extern "C" fn regv(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    with_caller!(regv_of, tenth)
}

unsafe extern "C" fn regv_of(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
    caller: Caller,
) -> c_int {
    // SAFETY: the caller's word.
    let body = || unsafe {
        functions::regv(
            fid,
            iov,
            count,
            access,
            offset,
            requested_key,
            flags,
            mr,
            context,
        )
    };
    // SAFETY: the caller's word.
    unsafe { registration(call::FI_MR_REGV, fid, mr, (0, 0, access), caller, body) }
}

#[unsafe(naked)]
pub unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    with_caller!(regattr_of, in "r8" "x4" "a4")
}

unsafe extern "C" fn regattr_of(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
    caller: Caller,
) -> c_int {
    // SAFETY: the caller's word.
    let body = || unsafe { functions::regattr(fid, attr, flags, mr) };
    let access = if attr.is_null() {
        0
    } else {
        // SAFETY: a field that every version has.
        unsafe { (*attr).access }
    };
    // SAFETY: the caller's word.
    unsafe { registration(call::FI_MR_REGATTR, fid, mr, (0, 0, access), caller, body) }
}

#[unsafe(naked)]
pub unsafe extern "C" fn region_close(fid: *mut fid) -> c_int {
    with_caller!(region_close_of, in "rsi" "x1" "a1")
}

unsafe extern "C" fn region_close_of(fid: *mut fid, caller: Caller) -> c_int {
    // SAFETY: one of our regions.
    let region = unsafe { Region::from_c(fid) };
    // SAFETY: the caller's word.
    close(region, caller, || unsafe { functions::region_close(fid) })
}

/// A registration, one of `trace::format::call`; `memory` is what the call itself says of it: address, length and
/// access.
///
/// # Safety
/// `fid` is one of our domains, and `mr` what the body has been given to write a region to.
unsafe fn registration(
    call: u8,
    fid: *mut fid,
    mr: *mut *mut fid_mr,
    (addr, length, access): (usize, usize, u64),
    caller: Caller,
    body: impl FnOnce() -> c_int,
) -> c_int {
    let Some(began) = trace::begin() else {
        return body();
    };
    // SAFETY: the caller's word.
    let domain = unsafe { Domain::look(fid) };
    let record = Call {
        call,
        pd: domain.pd().address() as u64,
        addr: addr as u64,
        length: length as u64,
        access: access as u32,
        ..trace::NOTHING
    };
    let has_queue = domain.queue().is_some();
    if has_queue {
        // Who reads the event may close region and domain before this call returns.
        trace::leave(began, record, caller);
    }
    let result = body();
    let record = if has_queue {
        trace::take_left().map(|left| left.record)
    } else {
        Some(record)
    };
    if let Some(mut record) = record {
        record.errno = -result as u16;
        if result == 0 && !has_queue {
            // SAFETY: the body has written a region there.
            let region = unsafe { mr.read() };
            // SAFETY: as above.
            unsafe { Region::from_c(region.cast()) }.describe(&mut record, how::HIT);
        }
        began.write(record, caller, last_as_text);
    }
    result
}

/// The end of a region.
fn close(region: &Region, caller: Caller, body: impl FnOnce() -> c_int) -> c_int {
    let Some(began) = trace::begin() else {
        return body();
    };
    let mut record = Call {
        call: call::FI_CLOSE,
        ..trace::NOTHING
    };
    // Afterwards there is no region; and of one that is closed already there may be no domain.
    if region.check().is_ok() {
        settle(region);
        record.pd = Domain::of(region).pd().address() as u64;
        region.describe(&mut record, how::KEPT);
    }
    let result = body();
    record.errno = -result as u16;
    began.write(record, caller, last_as_text);
    result
}
