// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of `<infiniband/verbs.h>` that this library takes over, at rdma-core's own version nodes.
//!
//! # Safety
//! C's contract, ibv_reg_mr(3): a pointer to a domain, a device or a region that is not NULL is one that
//! libibverbs or this library made, and has not been ended.

use super::export::interpose;
use super::ret::{self, Call};
use crate::abi::rdma_core::*;
use crate::caller::Caller;
use crate::explain::Subject;
use crate::mr::{self, Access, Change, Context, Error, Mr, Pd, Request};
use crate::next;
use crate::relaxed::{beside_plain, transparent};
use crate::stats::Counter;
use core::ffi::{CStr, c_int, c_uint, c_void};

/// What every call says of a NULL domain.
pub const NULL_PD: Error = Error::Argument("the protection domain is NULL");
/// What every call says of a NULL region.
pub const NULL_MR: Error = Error::Argument("the memory region is NULL");

#[inline(always)]
fn call(name: &'static str, subject: Subject, counter: Option<Counter>) -> Call {
    Call {
        name,
        subject,
        counter,
    }
}

/// The one body of `ibv_reg_mr`, `_iova` and `_iova2`, and of `ibv_reg_mr_ex` over plain memory.
#[inline(always)]
unsafe fn reg(
    name: &'static CStr,
    pd: *mut ibv_pd,
    request: Request,
    caller: Caller,
) -> *mut ibv_mr {
    ret::region(
        || {
            let name = name.to_str().unwrap_or_default();
            call(name, Subject::Memory(request), Some(Counter::RegFailed))
        },
        || {
            // SAFETY: C's contract.
            let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
            transparent::register(pd, &request, name, caller)
        },
    )
}

unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    caller: Caller,
) -> *mut ibv_mr {
    let request = Request::at_address(addr, length, Access::from_bits_retain(access as u32));
    // SAFETY: C's contract.
    unsafe { reg(c"ibv_reg_mr", pd, request, caller) }
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
    let request = Request {
        iova,
        ..Request::at_address(addr, length, Access::from_bits_retain(access as u32))
    };
    // SAFETY: C's contract.
    unsafe { reg(c"ibv_reg_mr_iova", pd, request, caller) }
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
    let request = Request {
        iova,
        ..Request::at_address(addr, length, Access::from_bits_retain(access))
    };
    // SAFETY: C's contract.
    unsafe { reg(c"ibv_reg_mr_iova2", pd, request, caller) }
}
interpose!(ibv_reg_mr_iova2, "IBVERBS_1.8", caller in "r9" "x5" "a5");

unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    mr_init_attr: *mut ibv_mr_init_attr,
    caller: Caller,
) -> *mut ibv_mr {
    // SAFETY: C's contract: what `comp_mask` names is set.
    if let Some(request) = unsafe { mr::plain_memory(mr_init_attr) } {
        // SAFETY: C's contract.
        return unsafe { reg(c"ibv_reg_mr_ex", pd, request, caller) };
    }
    ret::region(
        || {
            call(
                "ibv_reg_mr_ex",
                Subject::OtherMemory,
                Some(Counter::RegFailed),
            )
        },
        || {
            // SAFETY: C's contract.
            let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
            if mr_init_attr.is_null() {
                return Err(Error::Argument("the attributes are NULL"));
            }
            // SAFETY: C's contract, and not NULL.
            unsafe { mr::reg_other_memory(pd, mr_init_attr) }
        },
    )
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
    ret::region(
        || {
            call(
                "ibv_reg_dmabuf_mr",
                Subject::OtherMemory,
                Some(Counter::RegFailed),
            )
        },
        || {
            // SAFETY: C's contract.
            let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
            let access = Access::from_bits_retain(access as u32);
            // SAFETY: C's contract.
            unsafe { mr::reg_dmabuf_mr(pd, (offset, length, iova), fd, access) }
        },
    )
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
    ret::rereg_code(
        || call("ibv_rereg_mr", Subject::Region, None),
        || {
            // SAFETY: C's contract.
            let mr = unsafe { Mr::from_c(mr) }.ok_or(NULL_MR)?;
            let access = Access::from_bits_retain(access as u32);
            // SAFETY: C's contract.
            unsafe {
                beside_plain::rereg(
                    mr,
                    &Change {
                        flags,
                        pd,
                        addr,
                        length,
                        access,
                    },
                )
            }
        },
    )
}
interpose!(ibv_rereg_mr, "IBVERBS_1.1");

unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let dereg = || call("ibv_dereg_mr", Subject::Region, Some(Counter::DeregFailed));
    ret::status(dereg, || {
        // SAFETY: C's contract.
        let mr = unsafe { Mr::from_c(mr) }.ok_or(NULL_MR)?;
        beside_plain::deregister(mr)
    })
}
interpose!(ibv_dereg_mr, "IBVERBS_1.1");

/// What a provider calls to deregister, of libibverbs' private interface: so an `ibv_dereg_mr` that was taken from
/// libibverbs by handle comes here. Of a region that the pool serves it ends the use alone. Without a node, since
/// the private one's name changes with rdma-core's releases.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ibv_cmd_dereg_mr(vmr: *mut verbs_mr) -> c_int {
    // SAFETY: a provider's own object, or one of ours.
    let mr = unsafe { Mr::from_c(vmr.cast()) };
    if mr.is_some_and(transparent::deregister_past_us) {
        return 0;
    }
    match next::CMD_DEREG_MR.get() {
        // SAFETY: the provider's own argument, to the function that it meant.
        Some(next) => unsafe { next(vmr) },
        None => libc::ENOSYS,
    }
}
#[cfg(test)]
const _: unsafe extern "C" fn(*mut verbs_mr) -> c_int = ibv_cmd_dereg_mr;

unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    ret::status(
        || call("ibv_dealloc_pd", Subject::Domain, None),
        || {
            // SAFETY: C's contract.
            let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
            beside_plain::dealloc_pd(pd)
        },
    )
}
interpose!(ibv_dealloc_pd, "IBVERBS_1.1");

unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    ret::status(
        || call("ibv_close_device", Subject::Device, None),
        || {
            // SAFETY: C's contract.
            let context =
                unsafe { Context::from_c(context) }.ok_or(Error::Argument("the device is NULL"))?;
            beside_plain::close_device(context)
        },
    )
}
interpose!(ibv_close_device, "IBVERBS_1.1");
