// SPDX-License-Identifier: MIT OR Apache-2.0
//! The relaxed calls of Solaris and of Oracle's kernel: `include/rdmamr/verbs.h` is made from this file.
//!
//! # Safety
//! C's contract, ibv_reg_mr(3): a pointer to a domain or a region that is not NULL is one that libibverbs or
//! this library made, and has not been ended.

use super::export::{versioned, with_caller};
use super::ret::{self, Call};
use super::traced;
use super::verbs::{NULL_MR, NULL_PD};
use crate::abi::rdma_core::*;
use crate::caller::Caller;
use crate::explain::Subject;
use crate::mr::{Access, Mr, Pd, Request};
use crate::relaxed::{self, Miss, transparent};
use crate::stats::Counter;
use crate::trace::format::call;
use core::ffi::{c_int, c_void};

/// Registers memory for RDMA, possibly by a registration that the library has kept.
///
/// Like ibv_reg_mr(3), with these differences. The region covers the whole pages that hold the memory: a
/// device, and a peer that has the rkey, reach what else lies on the first and the last page. Its lkey and
/// rkey may be those of an earlier region of the same pages that was deregistered by ibv_dereg_mr_relaxed()
/// and not yet flushed, as long as the process has not changed the mapping of those pages; a peer that still
/// has that rkey can use it again. A region with remote rights is used again only for the same pages and
/// the same access flags; one without may serve for part of its pages, and for local reading alone.
///
/// With IBV_ACCESS_ON_DEMAND, ZERO_BASED, MW_BIND or HUGETLB, on memory or a device that cannot be watched,
/// and in a forked child, the region is the caller's own as from ibv_reg_mr(), or ends with its last user.
///
/// `pd`, `addr`, `length` in bytes and `access` are as for ibv_reg_mr(). The returned region is the caller's
/// until it is deregistered, and each call returns another; its addr and length are those given. It may be
/// used wherever a region may, but not be changed by ibv_rereg_mr() (EINVAL).
///
/// Any thread may call this at any time, a signal handler as far as the C library's malloc allows.
///
/// Returns NULL with errno on failure, and rdmamr_last_reason() has it in words:
/// EINVAL: a NULL `pd`, length 0, a range past the end of the address space, remote write or atomic access
/// without local write, an access flag that no kernel knows.
/// EFAULT: part of the pages is not mapped, or not writable where the access flags need it.
/// ENOMEM: more memory cannot be pinned (RLIMIT_MEMLOCK), or the device or the kernel ran out of something;
/// regions that are kept and not in use have been given up before.
/// EAGAIN: as ENOMEM, but another thread is just deregistering regions: try again.
/// Others as by ibv_reg_mr().
///
/// Sources: ibv_reg_mr_relaxed(3) of Oracle Solaris; drivers/infiniband/core/uverbs_cmd.c of Oracle's kernel.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_relaxed(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    with_caller!(reg_mr_relaxed, in "r8" "x4" "a4")
}
versioned!(ibv_reg_mr_relaxed, "IBVERBS_1.1");

unsafe extern "C" fn reg_mr_relaxed(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    caller: Caller,
) -> *mut ibv_mr {
    let request = Request::at_address(addr, length, Access::from_bits_retain(access as u32));
    traced::registration(call::REG_MR_RELAXED, pd, &request, caller, || {
        // SAFETY: C's contract.
        let pd = unsafe { Pd::from_c(pd) };
        let hit = pd.map_or(Err(Miss::None), |pd| {
            relaxed::hit(pd, addr.addr(), length, request.access)
        });
        let miss = match hit {
            Ok(mr) => return mr,
            Err(miss) => miss,
        };
        ret::region(
            || Call {
                name: "ibv_reg_mr_relaxed",
                subject: Subject::Memory(request),
                counter: Some(Counter::RegFailed),
            },
            || relaxed::register(pd.ok_or(NULL_PD)?, &request, miss, false),
        )
    })
}

/// Ends the caller's use of a region.
///
/// The device may keep the region, and a peer that has its rkey may reach the memory, until it is flushed: by
/// ibv_flush_relaxed_mr(), ibv_dealloc_pd() or ibv_close_device(); after RDMAMR_RELAXED_LINGER (by default
/// one second if peers can reach it, else one minute); when more is kept than RDMAMR_RELAXED_MAX_IDLE and
/// RDMAMR_RELAXED_MAX_IDLE_BYTES allow; when memory is short; or when the process changes the mapping of the
/// pages. `mr` itself is gone when this returns 0. Both this and ibv_dereg_mr() take regions of either kind.
///
/// Any thread may call this at any time.
///
/// Returns 0, or EINVAL: `mr` is NULL, or it is deregistered already, or it belongs to the process that this
/// one was forked from. For a region that is not kept, also what ibv_dereg_mr() returns.
///
/// Source: ibv_dereg_mr_relaxed(3) of Oracle Solaris.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr_relaxed(mr: *mut ibv_mr) -> c_int {
    with_caller!(dereg_mr_relaxed, in "rsi" "x1" "a1")
}
versioned!(ibv_dereg_mr_relaxed, "IBVERBS_1.1");

unsafe extern "C" fn dereg_mr_relaxed(mr: *mut ibv_mr, caller: Caller) -> c_int {
    let describe = || Call {
        name: "ibv_dereg_mr_relaxed",
        subject: Subject::Region,
        counter: Some(Counter::DeregFailed),
    };
    // SAFETY: C's contract.
    let mr = unsafe { Mr::from_c(mr) };
    traced::deregistration(call::DEREG_MR_RELAXED, mr, caller, || {
        if mr.is_some_and(relaxed::release) {
            return 0;
        }
        ret::status(describe, || transparent::deregister(mr.ok_or(NULL_MR)?))
    })
}

/// Deregisters what ibv_dereg_mr_relaxed() has left registered in a protection domain.
///
/// When it returns 0, every relaxed region of `pd` that was deregistered before the call is invalid in the
/// device, and its keys are refused. Regions in use are not touched, and other threads may register
/// meanwhile. Any thread may call this at any time.
///
/// Returns 0, or an errno: EINVAL: `pd` is NULL. EAGAIN: called in a signal handler that interrupted the
/// library. EBUSY and others: the kernel refused to deregister a region; it is not used again.
///
/// Source: ibv_flush_relaxed_mr(3) of Oracle Solaris.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_flush_relaxed_mr(pd: *mut ibv_pd) -> c_int {
    let call = || Call {
        name: "ibv_flush_relaxed_mr",
        subject: Subject::Region,
        counter: None,
    };
    ret::status(call, || {
        // SAFETY: C's contract.
        let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
        relaxed::flush(pd)
    })
}
versioned!(ibv_flush_relaxed_mr, "IBVERBS_1.1");
