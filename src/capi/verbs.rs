// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of `<infiniband/verbs.h>` that this library takes over, at rdma-core's own version
//! nodes.
//!
//! # Safety
//! The C caller keeps these two contracts of ibv_reg_mr(3).
//!
//! - **Live objects**: a pointer to a domain, a device or a region is NULL, or points to an object
//!   of libibverbs or of this library that still exists. A region of this library may also have
//!   ended: the library detects the double free.
//! - **Set attributes**: attributes are NULL, or every field that their `comp_mask` names is set.

use super::export::{caller, interpose};
use super::{ret, traced};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use errno::errno;
use rdmamr_abi::rdma_core::*;
use rdmamr_cache::dispatch::{self, Mr, register_for};
use rdmamr_mr::explain::Subject;
use rdmamr_mr::{Access, Error, Registered, Request, Reregistration, queue};
use rdmamr_next::{self as next, Context, Next, Pd};
use rdmamr_stats::{Counter, counter};
use rdmamr_sys::caller::Caller;
use rdmamr_trace::format::call;

/// The error of every call that gets a NULL domain.
pub const NULL_PD: Error = Error::Argument("the protection domain is NULL");
/// The error of every call that gets a NULL region.
pub const NULL_MR: Error = Error::Argument("the memory region is NULL");

/// The fields of attributes that name memory of `ibv_alloc_buf`.
const OF_BUFFER: u64 = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF;
const REG_FAILED: Option<Counter> = Some(counter!(reg_failed));

/// The common body of the calls that register plain memory by `register`. `call` is the function's
/// number in the trace.
///
/// # Safety
/// Live objects: `pd` is NULL or an allocated domain.
#[inline(always)]
pub unsafe fn reg(
    call: u8,
    pd: *mut ibv_pd,
    request: Request,
    caller: Caller,
    register: impl FnOnce(Pd, &Request) -> Result<Registered, Error>,
) -> *mut ibv_mr {
    // By reference: the stack may be small.
    let asked = &request;
    let record = || move |outcome: &_| traced::registered(call, pd, asked, outcome);
    // SAFETY: live objects, by this function's contract.
    let domain = unsafe { Pd::from_c(pd) };
    let failing = || ret::entry(call, Subject::of_memory(domain, request), REG_FAILED);
    ret::as_region(ret::traced(failing, (caller, record), || {
        register(domain.ok_or(NULL_PD)?, &request)
    }))
}

/// The common body of the calls that deregister a region.
#[inline(always)]
pub fn dereg(call: u8, mr: Option<Mr>, caller: Caller) -> c_int {
    let record = || {
        let before = traced::to_be_deregistered(call, mr);
        move |outcome: &_| traced::deregistered(before, outcome)
    };
    let failing = || ret::entry(call, Subject::Region, Some(counter!(dereg_failed)));
    ret::as_errno(ret::traced(failing, (caller, record), || {
        dispatch::deregister(mr.ok_or(NULL_MR)?)
    }))
}

unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    caller: Caller,
) -> *mut ibv_mr {
    let request = Request::at_address(addr, length, Access::from_bits_retain(access as u32));
    // SAFETY: live objects: `pd` is NULL or an allocated domain.
    unsafe { reg(call::REG_MR, pd, request, caller, register_for) }
}
interpose!(ibv_reg_mr, "IBVERBS_1.1", caller in "r8" "x4" "a4");

unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
    caller: Caller,
) -> *mut ibv_mr {
    let request = Request::new(addr, length, iova, Access::from_bits_retain(access as u32));
    // SAFETY: live objects: `pd` is NULL or an allocated domain.
    unsafe { reg(call::REG_MR_IOVA, pd, request, caller, register_for) }
}
interpose!(ibv_reg_mr_iova, "IBVERBS_1.7", caller in "r9" "x5" "a5");

unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
    caller: Caller,
) -> *mut ibv_mr {
    let request = Request::new(addr, length, iova, Access::from_bits_retain(access));
    // SAFETY: live objects: `pd` is NULL or an allocated domain.
    unsafe { reg(call::REG_MR_IOVA2, pd, request, caller, register_for) }
}
interpose!(ibv_reg_mr_iova2, "IBVERBS_1.8", caller in "r9" "x5" "a5");

unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    mr_init_attr: *mut ibv_mr_init_attr,
    caller: Caller,
) -> *mut ibv_mr {
    // SAFETY: set attributes: `mr_init_attr` is NULL, or the fields that its `comp_mask` names are
    // set.
    let plain = unsafe { dispatch::memory_with(mr_init_attr, IBV_REG_MR_MASK_ADDR) };
    // SAFETY: set attributes, as above.
    let buffer = unsafe { dispatch::memory_with(mr_init_attr, OF_BUFFER) };
    // SAFETY: set attributes, as above.
    let ordinary = |buffer: &Request| unsafe { dispatch::is_ordinary(pd, mr_init_attr, buffer) };
    if let Some(request) = plain.or(buffer.filter(ordinary)) {
        // SAFETY: live objects: `pd` is NULL or an allocated domain.
        return unsafe { reg(call::REG_MR_EX, pd, request, caller, register_for) };
    }
    // Of other attributes the tracer records no address: only libibverbs knows all the ways in which
    // they name memory.
    let unknown = || Request::at_address(null_mut(), 0, Access::empty());
    let request = buffer.unwrap_or_else(unknown);
    let record = || move |outcome: &_| traced::registered(call::REG_MR_EX, pd, &request, outcome);
    let failing = || ret::entry(call::REG_MR_EX, Subject::OtherMemory, REG_FAILED);
    ret::as_region(ret::traced(failing, (caller, record), || {
        // SAFETY: live objects: `pd` is NULL or an allocated domain.
        let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
        if mr_init_attr.is_null() {
            return Err(Error::Argument("the attributes are NULL"));
        }
        // SAFETY: set attributes: `mr_init_attr` is not NULL, so the fields that its `comp_mask`
        // names are set.
        unsafe { dispatch::reg_other_memory(pd, mr_init_attr) }
    }))
}
interpose!(ibv_reg_mr_ex, "IBVERBS_1.15", caller in "rdx" "x2" "a2");

unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let access = Access::from_bits_retain(access as u32);
    let request = Request::at_address(null_mut(), length, access);
    let record =
        || move |outcome: &_| traced::registered(call::REG_DMABUF_MR, pd, &request, outcome);
    let failing = || ret::entry(call::REG_DMABUF_MR, Subject::OtherMemory, REG_FAILED);
    ret::as_region(ret::traced(failing, (caller(), record), || {
        // SAFETY: live objects: `pd` is NULL or an allocated domain.
        let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
        // SAFETY: `fd` is the program's own file descriptor, and the call forwards it unchanged.
        unsafe { dispatch::reg_dmabuf_mr(pd, (offset, length, iova), fd, access) }
    }))
}
interpose!(ibv_reg_dmabuf_mr, "IBVERBS_1.12");

unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let request = Request::at_address(addr, length, Access::from_bits_retain(access as u32));
    // SAFETY: live objects: `mr` is NULL, a live region, or an ended region of this library.
    let mr = unsafe { Mr::from_c(mr) };
    let change = Reregistration { flags, pd, request };
    let record = || |outcome: &_| traced::changed(mr, &change, outcome);
    let failing = || ret::entry(call::REREG_MR, Subject::Change, None);
    // C gets the call's own code. -1 (IBV_REREG_MR_ERR_INPUT) means that the region is unchanged.
    let mut code = -1;
    let outcome = ret::traced(failing, (caller(), record), || {
        // SAFETY: live objects: `mr` is a live region, and `change.pd` is NULL or a domain that
        // exists.
        match unsafe { dispatch::rereg(mr.ok_or(NULL_MR)?, &change) }? {
            0 => Ok(()),
            refused => {
                code = refused;
                Err(Error::Next(errno()))
            }
        }
    });
    match ret::as_errno(outcome) {
        0 => 0,
        _ => code,
    }
}
interpose!(ibv_rereg_mr, "IBVERBS_1.1");

unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr, caller: Caller) -> c_int {
    // SAFETY: live objects: `mr` is NULL, a live region, or an ended region of this library.
    dereg(call::DEREG_MR, unsafe { Mr::from_c(mr) }, caller)
}
interpose!(ibv_dereg_mr, "IBVERBS_1.1", caller in "rsi" "x1" "a1");

/// The common body of the calls that make a queue, by libibverbs' function `next`.
#[inline(always)]
fn make_queue<F: Copy, T>(
    next: &Next<F>,
    device: Option<Context>,
    call: impl FnOnce(F) -> *mut T,
) -> *mut T {
    let failing = || (next.name(), Subject::Queue(queue::driver(device)), None);
    ret::run(failing, || queue::make(next, device, call)).unwrap_or_else(ret::null_and_errno)
}

unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: live objects: `context` is NULL or an open device.
    let device = unsafe { Context::from_c(context) };
    make_queue(&next::CREATE_CQ, device, |next| {
        // SAFETY: live objects: the arguments are the program's, unchanged.
        unsafe { next(context, cqe, cq_context, channel, comp_vector) }
    })
}
interpose!(ibv_create_cq, "IBVERBS_1.1");

unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: live objects: `pd` is NULL or an allocated domain.
    let device = unsafe { Pd::from_c(pd) }.and_then(Pd::device);
    // SAFETY: live objects: the arguments are the program's, unchanged.
    make_queue(&next::CREATE_QP, device, |next| unsafe { next(pd, attr) })
}
interpose!(ibv_create_qp, "IBVERBS_1.1");

unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: live objects: `pd` is NULL or an allocated domain.
    let device = unsafe { Pd::from_c(pd) }.and_then(Pd::device);
    // SAFETY: live objects: the arguments are the program's, unchanged.
    make_queue(&next::CREATE_SRQ, device, |next| unsafe { next(pd, attr) })
}
interpose!(ibv_create_srq, "IBVERBS_1.1");

unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let failing = || {
        // SAFETY: live objects: `pd` is NULL, or a domain that was not deallocated.
        let device = unsafe { Pd::from_c(pd) }.and_then(Pd::device);
        let name = device.map(Context::name);
        ("ibv_dealloc_pd", Subject::Domain(name), None)
    };
    ret::as_errno(ret::run(failing, || {
        // SAFETY: live objects: `pd` is NULL or an allocated domain.
        let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
        dispatch::dealloc_pd(pd)
    }))
}
interpose!(ibv_dealloc_pd, "IBVERBS_1.1");

unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let failing = || ("ibv_close_device", Subject::Other, None);
    ret::as_errno(ret::run(failing, || {
        // SAFETY: live objects: `context` is NULL or an open device.
        let context = unsafe { Context::from_c(context) };
        dispatch::close_device(context.ok_or(Error::Argument("the device is NULL"))?)
    }))
}
interpose!(ibv_close_device, "IBVERBS_1.1");

unsafe extern "C" fn ibv_fork_init() -> c_int {
    let failing = || ("ibv_fork_init", Subject::Other, None);
    ret::as_errno(ret::run(failing, dispatch::fork_init))
}
interpose!(ibv_fork_init, "IBVERBS_1.1");

unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    ret::always((), || {
        // SAFETY: live objects: `pd` is NULL or an allocated domain.
        if let Some(pd) = unsafe { Pd::from_c(pd) } {
            dispatch::unimport_pd(pd);
        }
    })
}
interpose!(ibv_unimport_pd, "IBVERBS_1.10");

unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    ret::always((), || {
        // SAFETY: live objects: `mr` is NULL, a live region, or an ended region of this library.
        if let Some(mr) = unsafe { Mr::from_c(mr) } {
            dispatch::unimport_mr(mr);
        }
    })
}
interpose!(ibv_unimport_mr, "IBVERBS_1.10");

// The functions of libibverbs' private interface that providers call. These symbols have no version
// node, since the name of the private node contains rdma-core's release.

const _: next::CmdRereg = ibv_cmd_rereg_mr;

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ibv_cmd_dereg_mr(vmr: *mut verbs_mr) -> c_int {
    // SAFETY: the provider passes NULL, an object of its own, or an object of this library.
    let deregister = || unsafe { dispatch::private::deregister(vmr) };
    ret::always(libc::ENOMEM, deregister)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ibv_cmd_rereg_mr(
    vmr: *mut verbs_mr,
    flags: u32,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
    pd: *mut ibv_pd,
    command: *mut c_void,
    command_size: usize,
    answer: *mut c_void,
    answer_size: usize,
) -> c_int {
    ret::always(libc::ENOMEM, || {
        let forward = |next: rdmamr_next::CmdRereg| {
            // SAFETY: `next` is libibverbs' function of this name, and gets the provider's
            // arguments.
            unsafe {
                next(
                    vmr,
                    flags,
                    addr,
                    length,
                    hca_va,
                    access,
                    pd,
                    command,
                    command_size,
                    answer,
                    answer_size,
                )
            }
        };
        // SAFETY: the provider passes NULL, an object of its own, or an object of this library.
        unsafe { dispatch::private::rereg(vmr, forward) }
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ibv_cmd_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the provider passes a domain that it is about to deallocate and that still
    // exists.
    let deallocate = || unsafe { dispatch::private::dealloc_pd(pd) };
    ret::always(libc::ENOMEM, deallocate)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn verbs_uninit_context(verbs_context: *mut c_void) {
    // SAFETY: the provider passes a device that it made and is about to close.
    let close = || unsafe { dispatch::private::close_device(verbs_context) };
    ret::always((), close)
}
