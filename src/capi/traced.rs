// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that are written down, if `RDMAMR_TRACE` says so: around a call's body, whatever its outcome.

use crate::abi::rdma_core::{ibv_mr, ibv_pd};
use crate::caller::Caller;
use crate::explain::last_as_text;
use crate::mr::{Change, Mr, Request};
use crate::trace::format::{Call, call, how};
use crate::{relaxed, trace};
use core::ffi::c_int;
use core::ptr::null_mut;

/// A registration, one of `trace::format::call`.
#[inline(always)]
pub fn registration(
    call: u8,
    pd: *mut ibv_pd,
    request: &Request,
    caller: Caller,
    body: impl FnOnce() -> *mut ibv_mr,
) -> *mut ibv_mr {
    let began = trace::begin();
    let mr = body();
    if let Some(began) = began {
        began.write(registered(call, pd, request, mr), caller, last_as_text);
    }
    mr
}

/// What there is to say of a registration that has just returned.
#[cold]
fn registered(call: u8, pd: *mut ibv_pd, request: &Request, mr: *mut ibv_mr) -> Call {
    // SAFETY: just registered, or NULL.
    let mr = unsafe { Mr::from_c(mr) };
    Call {
        call,
        how: if mr.is_some_and(relaxed::serves) {
            how::HIT
        } else {
            how::KERNEL
        },
        errno: if mr.is_some() {
            0
        } else {
            errno::errno().0 as u16
        },
        pd: pd.addr() as u64,
        addr: request.addr.addr() as u64,
        length: request.length as u64,
        access: request.access.bits(),
        lkey: mr.map_or(0, |mr| mr.read().lkey),
        ..trace::NOTHING
    }
}

/// A deregistration.
#[inline(always)]
pub fn deregistration(
    call: u8,
    mr: Option<Mr>,
    caller: Caller,
    body: impl FnOnce() -> c_int,
) -> c_int {
    let Some(began) = trace::begin() else {
        return body();
    };
    // Afterwards nothing can be asked of it.
    let mut record = mr.map_or(trace::NOTHING, to_be_deregistered);
    record.call = call;
    let error = body();
    record.errno = error as u16;
    began.write(record, caller, last_as_text);
    error
}

#[cold]
fn to_be_deregistered(mr: Mr) -> Call {
    let public = mr.read();
    Call {
        how: if relaxed::serves(mr) {
            how::KEPT
        } else {
            how::KERNEL
        },
        pd: public.pd.addr() as u64,
        addr: public.addr.addr() as u64,
        length: public.length as u64,
        access: mr.access(),
        lkey: public.lkey,
        ..trace::NOTHING
    }
}

/// A change of a region: written down as a registration of what it is afterwards.
#[inline(always)]
pub fn change(
    mr: Option<Mr>,
    change: &Change,
    caller: Caller,
    body: impl FnOnce() -> c_int,
) -> c_int {
    let Some(began) = trace::begin() else {
        return body();
    };
    let code = body();
    let changed = mr.filter(|_| code == 0);
    let asked = Request::at_address(change.addr, change.length, change.access);
    let (pd, request) = changed.map_or((change.pd, asked), |mr| {
        let now = mr.read();
        let request = Request::at_address(now.addr, now.length, change.access);
        (now.pd, request)
    });
    let mr = changed.map_or(null_mut(), Mr::as_ptr);
    let record = registered(call::REREG_MR, pd, &request, mr);
    began.write(record, caller, last_as_text);
    code
}
