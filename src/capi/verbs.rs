// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of `<infiniband/verbs.h>` that this library takes over, at rdma-core's own version nodes.
//!
//! # Safety
//! C's contract, ibv_reg_mr(3): a pointer to a domain, a device or a region that is not NULL is one that
//! libibverbs or this library made, and has not been ended.

use super::export::interpose;
use super::ret::{self, Call};
use super::traced;
use crate::abi::rdma_core::*;
use crate::caller::Caller;
use crate::explain::Subject;
use crate::mr::{self, Access, Change, Context, Error, Mr, Pd, Request};
use crate::next;
use crate::relaxed::{beside_plain, transparent};
use crate::stats::Counter;
use crate::trace::format::call;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::ptr::null_mut;

/// What every call says of a NULL domain.
pub const NULL_PD: Error = Error::Argument("the protection domain is NULL");
/// What every call says of a NULL region.
pub const NULL_MR: Error = Error::Argument("the memory region is NULL");

#[inline(always)]
fn describe(name: &'static str, subject: Subject, counter: Option<Counter>) -> Call {
    Call {
        name,
        subject,
        counter,
    }
}

/// A registering call: its name, which is the symbol's, and its number in the trace.
struct Entry {
    name: &'static CStr,
    call: u8,
}

/// The one body of `ibv_reg_mr`, `_iova` and `_iova2`, and of `ibv_reg_mr_ex` over plain memory.
#[inline(always)]
unsafe fn reg(entry: &Entry, pd: *mut ibv_pd, request: Request, caller: Caller) -> *mut ibv_mr {
    traced::registration(entry.call, pd, &request, caller, || {
        ret::region(
            || {
                let name = entry.name.to_str().unwrap_or_default();
                describe(name, Subject::Memory(request), Some(Counter::RegFailed))
            },
            || {
                // SAFETY: C's contract.
                let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
                transparent::register(pd, &request, entry.name, caller)
            },
        )
    })
}

const REG_MR: Entry = Entry {
    name: c"ibv_reg_mr",
    call: call::REG_MR,
};
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    caller: Caller,
) -> *mut ibv_mr {
    let request = Request::at_address(addr, length, Access::from_bits_retain(access as u32));
    // SAFETY: C's contract.
    unsafe { reg(&REG_MR, pd, request, caller) }
}
interpose!(ibv_reg_mr, "IBVERBS_1.1", caller in "r8" "x4" "a4");

const REG_MR_IOVA: Entry = Entry {
    name: c"ibv_reg_mr_iova",
    call: call::REG_MR_IOVA,
};
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
    unsafe { reg(&REG_MR_IOVA, pd, request, caller) }
}
interpose!(ibv_reg_mr_iova, "IBVERBS_1.7", caller in "r9" "x5" "a5");

const REG_MR_IOVA2: Entry = Entry {
    name: c"ibv_reg_mr_iova2",
    call: call::REG_MR_IOVA2,
};
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
    unsafe { reg(&REG_MR_IOVA2, pd, request, caller) }
}
interpose!(ibv_reg_mr_iova2, "IBVERBS_1.8", caller in "r9" "x5" "a5");

const REG_MR_EX: Entry = Entry {
    name: c"ibv_reg_mr_ex",
    call: call::REG_MR_EX,
};
unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    mr_init_attr: *mut ibv_mr_init_attr,
    caller: Caller,
) -> *mut ibv_mr {
    // SAFETY: C's contract: what `comp_mask` names is set.
    if let Some(request) = unsafe { mr::plain_memory(mr_init_attr) } {
        // SAFETY: C's contract.
        return unsafe { reg(&REG_MR_EX, pd, request, caller) };
    }
    let body = || {
        ret::region(
            || {
                describe(
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
    };
    // What memory it is, the attributes say in ways that only libibverbs knows.
    let unknown = Request::at_address(null_mut(), 0, Access::empty());
    traced::registration(call::REG_MR_EX, pd, &unknown, caller, body)
}
interpose!(ibv_reg_mr_ex, "IBVERBS_1.15", caller in "rdx" "x2" "a2");

unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    caller: Caller,
) -> *mut ibv_mr {
    let access = Access::from_bits_retain(access as u32);
    let body = || {
        ret::region(
            || {
                describe(
                    "ibv_reg_dmabuf_mr",
                    Subject::OtherMemory,
                    Some(Counter::RegFailed),
                )
            },
            || {
                // SAFETY: C's contract.
                let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
                // SAFETY: C's contract.
                unsafe { mr::reg_dmabuf_mr(pd, (offset, length, iova), fd, access) }
            },
        )
    };
    let request = Request::at_address(null_mut(), length, access);
    traced::registration(call::REG_DMABUF_MR, pd, &request, caller, body)
}
interpose!(ibv_reg_dmabuf_mr, "IBVERBS_1.12", caller seventh);

unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    caller: Caller,
) -> c_int {
    let access = Access::from_bits_retain(access as u32);
    // SAFETY: C's contract.
    let mr = unsafe { Mr::from_c(mr) };
    let change = Change {
        flags,
        pd,
        addr,
        length,
        access,
    };
    traced::change(mr, &change, caller, || {
        ret::rereg_code(
            || describe("ibv_rereg_mr", Subject::Region, None),
            // SAFETY: C's contract.
            || unsafe { transparent::rereg(mr.ok_or(NULL_MR)?, &change) },
        )
    })
}
interpose!(ibv_rereg_mr, "IBVERBS_1.1", caller seventh);

unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr, caller: Caller) -> c_int {
    // SAFETY: C's contract.
    let mr = unsafe { Mr::from_c(mr) };
    let dereg = || describe("ibv_dereg_mr", Subject::Region, Some(Counter::DeregFailed));
    traced::deregistration(call::DEREG_MR, mr, caller, || {
        ret::status(dereg, || transparent::deregister(mr.ok_or(NULL_MR)?))
    })
}
interpose!(ibv_dereg_mr, "IBVERBS_1.1", caller in "rsi" "x1" "a1");

unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    ret::status(
        || describe("ibv_dealloc_pd", Subject::Domain, None),
        || {
            // SAFETY: C's contract.
            let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
            beside_plain::dealloc_pd(pd)
        },
    )
}
interpose!(ibv_dealloc_pd, "IBVERBS_1.1");

unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: C's contract.
    if let Some(pd) = unsafe { Pd::from_c(pd) } {
        beside_plain::unimport_pd(pd);
    }
}
interpose!(ibv_unimport_pd, "IBVERBS_1.10");

unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: C's contract.
    if let Some(mr) = unsafe { Mr::from_c(mr) } {
        transparent::unimport(mr);
    }
}
interpose!(ibv_unimport_mr, "IBVERBS_1.10");

unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    ret::status(
        || describe("ibv_close_device", Subject::Device, None),
        || {
            // SAFETY: C's contract.
            let context =
                unsafe { Context::from_c(context) }.ok_or(Error::Argument("the device is NULL"))?;
            beside_plain::close_device(context)
        },
    )
}
interpose!(ibv_close_device, "IBVERBS_1.1");

/// What providers call of libibverbs' private interface: so calls that a program has taken from libibverbs by handle
/// come here. They are without a node, since the private one's name changes with rdma-core's releases.
mod private {
    use super::*;

    /// Of a region that the pool serves it ends the use alone. Of others the kernel's region, which may be one that
    /// the pool has: what was imported has an object of its own.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn ibv_cmd_dereg_mr(vmr: *mut verbs_mr) -> c_int {
        // SAFETY: a provider's own object, or one of ours.
        let mr = unsafe { Mr::from_c(vmr.cast()) };
        if mr.is_some_and(transparent::deregister_past_us) {
            return 0;
        }
        let Some(next) = next::CMD_DEREG_MR.get() else {
            return libc::ENOSYS;
        };
        // SAFETY: the provider's own argument, to the function that it meant.
        let dereg = || unsafe { next(vmr) };
        mr.map_or_else(dereg, |mr| beside_plain::deregister_past_us(mr, dereg))
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn ibv_cmd_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        // SAFETY: a domain that is still there.
        if let Some(pd) = unsafe { Pd::from_c(pd) } {
            beside_plain::dealloc_pd_past_us(pd);
        }
        match next::CMD_DEALLOC_PD.get() {
            // SAFETY: as above.
            Some(next) => unsafe { next(pd) },
            None => libc::ENOSYS,
        }
    }

    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn verbs_uninit_context(verbs_context: *mut c_void) {
        beside_plain::close_device_past_us(verbs_context.expose_provenance());
        if let Some(next) = next::UNINIT_CONTEXT.get() {
            // SAFETY: as above.
            unsafe { next(verbs_context) }
        }
    }
}
#[cfg(test)]
const _: (
    unsafe extern "C" fn(*mut verbs_mr) -> c_int,
    unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    unsafe extern "C" fn(*mut c_void),
) = (
    private::ibv_cmd_dereg_mr,
    private::ibv_cmd_dealloc_pd,
    private::verbs_uninit_context,
);
