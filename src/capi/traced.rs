// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records of calls of libibverbs' family in the trace, if `RDMAMR_TRACE` is set.

use core::ffi::c_void;
use core::ptr::null_mut;
use rdmamr_abi::rdma_core::ibv_pd;
use rdmamr_cache::dispatch::{Mr, is_of_gpu, verdict};
use rdmamr_mr::mlx5::Umem;
use rdmamr_mr::{Error, How, Registered, Request, Reregistration};
use rdmamr_trace as trace;
use rdmamr_trace::format::{Call, call, how, unserved};

fn errno<T>(outcome: &Result<T, Error>) -> u16 {
    outcome
        .as_ref()
        .map_or_else(|error| error.errno() as u16, |_| 0)
}

/// The record of a registration that has just finished. `call` is one of the numbers in
/// `trace::format::call`.
#[cold]
pub fn registered(
    call: u8,
    pd: *mut ibv_pd,
    request: &Request,
    outcome: &Result<Registered, Error>,
) -> Call {
    let done = outcome.ok();
    // SAFETY: the region is the one that the call has just registered, or NULL.
    let mr = done.and_then(|done| unsafe { Mr::from_c(done.mr) });
    let reason = |done: Registered| unserved_reason(call, request, done.how, mr);
    Call {
        call,
        how: done.map_or(how::NONE, |done| done.how as u8),
        reason: done.map_or(unserved::UNKNOWN, reason),
        errno: errno(outcome),
        pd: pd.addr() as u64,
        lkey: mr.map_or(0, |mr| mr.read().lkey),
        ..of_memory(request)
    }
}

/// Why the cache does not serve a registration of `call` that has succeeded; and that it has served one
/// of a device's memory.
fn unserved_reason(call: u8, request: &Request, how: How, mr: Option<Mr>) -> u32 {
    match (how, call) {
        (How::Past, _) => unserved::UNKNOWN,
        (How::Gpu, _) => unserved::DEVICE,
        (How::Hit | How::Miss, _) if mr.is_some_and(is_of_gpu) => unserved::DEVICE,
        (_, call::REG_MR | call::REG_MR_IOVA | call::REG_MR_IOVA2) => verdict(request),
        (_, call::REG_MR_EX) if request.length != 0 => verdict(request),
        (_, call::REG_MR_EX | call::REG_DMABUF_MR) => unserved::DEVICE,
        _ => unserved::UNKNOWN,
    }
}

/// A record of the memory that a call names.
fn of_memory(request: &Request) -> Call {
    Call {
        addr: request.addr.addr() as u64,
        length: request.length as u64,
        access: request.access.bits(),
        ..trace::NOTHING
    }
}

/// The record of a deregistration, made before the call: the region cannot be read after it.
#[cold]
pub fn to_be_deregistered(call: u8, mr: Option<Mr>) -> Call {
    let mut record = Call {
        call,
        ..trace::NOTHING
    };
    if let Some(mr) = mr {
        let public = mr.read();
        record.pd = public.pd.addr() as u64;
        record.addr = public.addr.addr() as u64;
        record.length = public.length as u64;
        record.access = mr.access();
        record.lkey = public.lkey;
    }
    record
}

/// The same record after the call.
pub fn deregistered(before: Call, outcome: &Result<How, Error>) -> Call {
    Call {
        how: outcome.map_or(how::NONE, |how| how as u8),
        errno: errno(outcome),
        ..before
    }
}

/// The record of a registration by libmlx5 that makes a umem.
pub fn umem(call: u8, request: &Request, outcome: &Result<Umem, Error>) -> Call {
    Call {
        call,
        how: how::PAST,
        errno: errno(outcome),
        pd: outcome.map_or(0, |umem| umem.addr().get() as u64),
        ..of_memory(request)
    }
}

/// The record of the deregistration of a umem.
pub fn umem_end(umem: *mut c_void, outcome: &Result<How, Error>) -> Call {
    Call {
        call: call::MLX5DV_DEVX_UMEM_DEREG,
        how: how::PAST,
        errno: errno(outcome),
        pd: umem.addr() as u64,
        ..trace::NOTHING
    }
}

/// The record of a change of a region, `ibv_rereg_mr`: a registration of the region's new state.
pub fn changed(mr: Option<Mr>, change: &Reregistration, outcome: &Result<(), Error>) -> Call {
    let asked = change.request;
    match (mr, outcome) {
        (Some(mr), Ok(())) => {
            let now = mr.read();
            let request = Request::at_address(now.addr, now.length, asked.access);
            let done = Registered::by(How::Kernel, mr.as_ptr());
            registered(call::REREG_MR, now.pd, &request, &Ok(done))
        }
        _ => {
            let failed = outcome.map(|()| Registered::by(How::Kernel, null_mut()));
            registered(call::REREG_MR, change.pd, &asked, &failed)
        }
    }
}
