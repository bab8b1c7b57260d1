// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of libfabric's family that are written down, if `RDMAMR_TRACE` says so.

use crate::abi::libfabric::{fid, fid_mr};
use crate::caller::Caller;
use crate::explain::last_as_text;
use crate::fabric::{Domain, Region};
use crate::trace;
use crate::trace::format::{Call, call, how};
use core::ffi::c_int;

/// A registration, one of `trace::format::call`; `memory` is what the call itself says of it: address, length and
/// access.
///
/// # Safety
/// `fid` is one of our domains, and `mr` what the body has been given to write a region to.
#[inline(always)]
pub unsafe fn registration(
    call: u8,
    fid: *mut fid,
    mr: *mut *mut fid_mr,
    memory: impl FnOnce() -> (usize, usize, u64),
    body: impl FnOnce() -> c_int,
) -> c_int {
    let Some(began) = trace::begin() else {
        return body();
    };
    let result = body();
    let (addr, length, access) = memory();
    // SAFETY: the caller's word.
    let domain = unsafe { Domain::look(fid) };
    let mut record = Call {
        call,
        errno: -result as u16,
        pd: domain.pd().address() as u64,
        addr: addr as u64,
        length: length as u64,
        access: access as u32,
        ..trace::NOTHING
    };
    if result == 0 {
        // SAFETY: the body has written a region there.
        let region = unsafe { mr.read() };
        // SAFETY: as above.
        name(&mut record, unsafe { Region::from_c(region.cast()) });
    }
    record.how = if domain.mode().relaxed {
        how::HIT
    } else {
        how::KERNEL
    };
    // The functions are called through tables, with arguments in all registers: who calls is not known.
    began.write(record, Caller::UNKNOWN, last_as_text);
    result
}

/// The end of a region.
#[inline(always)]
pub fn close(region: &Region, body: impl FnOnce() -> c_int) -> c_int {
    let Some(began) = trace::begin() else {
        return body();
    };
    let mut record = Call {
        call: call::FI_CLOSE,
        how: how::KERNEL,
        ..trace::NOTHING
    };
    // Afterwards there is no region; and of one that is closed already there may be no domain.
    if region.check().is_ok() {
        let domain = Domain::of(region);
        record.pd = domain.pd().address() as u64;
        name(&mut record, region);
        if domain.mode().relaxed {
            record.how = how::KEPT;
        }
    }
    let result = body();
    record.errno = -result as u16;
    began.write(record, Caller::UNKNOWN, last_as_text);
    result
}

fn name(record: &mut Call, region: &Region) {
    record.lkey = region.lkey();
    if record.length == 0 {
        record.addr = region.base;
        record.length = region.length;
    }
}
