// SPDX-License-Identifier: MIT OR Apache-2.0
//! The relaxed calls of Solaris and of Oracle's kernel: cbindgen makes `include/rdmamr/verbs.h`
//! from this file.
//!
//! # Safety
//! **Live objects**, the contract of ibv_reg_mr(3), kept by the C caller: a pointer to a domain or
//! to a region is NULL, or points to an object of libibverbs or of this library that still exists.
//! A region of this library may also have ended: the library detects the double free.

use super::export::{caller, versioned};
use super::ret;
use super::verbs::{NULL_PD, dereg, reg};
use core::ffi::{c_int, c_void};
use rdmamr_abi::rdma_core::*;
use rdmamr_cache::dispatch::{self, Mr, register_relaxed};
use rdmamr_mr::explain::Subject;
use rdmamr_mr::{Access, Request};
use rdmamr_next::Pd;
use rdmamr_sys::caller::Caller;
use rdmamr_trace as trace;
use rdmamr_trace::format::call;

/// Registers memory for RDMA, and may reuse a registration that the library has cached.
///
/// ibv_reg_mr_relaxed() differs from ibv_reg_mr(3) in what the region covers and in its keys. The
/// region covers the whole pages that hold the memory: the device, and a remote peer that has the
/// rkey, can also reach the other bytes of the first and the last page. The lkey and the rkey may
/// be those of an earlier region of the same pages, if the program deregistered that region by
/// ibv_dereg_mr_relaxed(), nothing has flushed it yet, and the process has not changed the mapping
/// of those pages. A remote peer that still has the rkey of the earlier region can then use that
/// rkey again. The library reuses a registration only for the same pages and the same access flags;
/// one without remote rights also for its first pages, if it has at most 64 KiB more.
///
/// The library does not cache every registration. If `access` has IBV_ACCESS_ON_DEMAND,
/// IBV_ACCESS_ZERO_BASED, IBV_ACCESS_MW_BIND or IBV_ACCESS_HUGETLB, if the library cannot watch the
/// memory or the device, or if the process is a forked child, then the region is the caller's own,
/// as from ibv_reg_mr(), or its registration ends with its last user.
///
/// `pd`, `addr`, `length` in bytes and `access` are as for ibv_reg_mr(). The caller owns the
/// returned region until it deregisters the region, and each call returns another region. The addr
/// and length of the region are the arguments. The region may be used wherever a region of
/// ibv_reg_mr() may be used, except that ibv_rereg_mr() refuses to change it (EINVAL).
///
/// Any thread may call this function at any time. A signal handler may call it only where the C
/// library allows malloc().
///
/// Returns the region, or NULL with errno set; rdmamr_last_reason() then has the reason in words:
/// EINVAL: `pd` is NULL, `length` is 0, the range goes past the end of the address space, `access`
/// has remote write or remote atomic without local write, or `access` has a flag that no kernel
/// knows.
/// EFAULT: part of the pages is not mapped, or is not writable although the access flags need that.
/// ENOMEM: the process cannot pin more memory (RLIMIT_MEMLOCK), or the device or the kernel ran out
/// of a resource. Before the library reports this error, it deregisters the idle regions of its
/// cache.
/// EAGAIN: the limit of the rdma cgroup is reached. As for ENOMEM, the library has deregistered its
/// idle regions.
/// Other errnos are those of ibv_reg_mr().
///
/// Sources: ibv_reg_mr_relaxed(3) of Oracle Solaris; drivers/infiniband/core/uverbs_cmd.c of
/// Oracle's kernel.
// The linker puts the sections of this name together: a hit and its release run on one page.
#[unsafe(link_section = ".text.hot.rdmamr")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_relaxed(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let access = Access::from_bits_retain(access as u32);
    // A hit returns its region in a register. Through the outcome that the tracer records, a hit
    // took 1 to 5 ns more (of 21 ns).
    if !trace::is_on() {
        // SAFETY: live objects: `pd` is NULL or an allocated domain.
        if let Some(pd) = unsafe { Pd::from_c(pd) } {
            let hit = || dispatch::hit_relaxed(pd, addr.addr(), length, access);
            if let Some(mr) = ret::always(None, hit) {
                return mr;
            }
        }
    }
    // SAFETY: live objects, the contract of both functions.
    unsafe { reg_mr_relaxed_missed(pd, addr, length, access, caller()) }
}
versioned!(ibv_reg_mr_relaxed, "IBVERBS_1.1");

/// Serves every call but a hit. As a separate function it leaves the hit with little code and
/// little stack, both of which the program's other work may have evicted from the CPU's caches.
#[cold]
#[inline(never)]
unsafe fn reg_mr_relaxed_missed(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: Access,
    caller: Caller,
) -> *mut ibv_mr {
    let request = Request::at_address(addr, length, access);
    // SAFETY: live objects: `pd` is NULL or an allocated domain.
    unsafe { reg(call::REG_MR_RELAXED, pd, request, caller, register_relaxed) }
}

/// Ends the caller's use of a region.
///
/// `mr` is invalid when this function returns 0. The region may stay registered with the device,
/// and a remote peer that has the rkey may still reach the memory, until one of these events
/// flushes the registration: a call of ibv_flush_relaxed_mr(), ibv_dealloc_pd() or
/// ibv_close_device(); the end of the time RDMAMR_CACHE_LINGER (by default one second if the memory
/// is remotely accessible, else one minute); more idle regions than RDMAMR_CACHE_MAX_IDLE and
/// RDMAMR_CACHE_MAX_IDLE_BYTES allow, or than an eighth of what the rdma cgroup or the device has
/// left; a fork() while more than 128 KiB are released; a shortage of memory; a change of the mapping
/// of the pages by the process. ibv_dereg_mr_relaxed() and ibv_dereg_mr() both take regions of either
/// kind.
///
/// Any thread may call this function at any time.
///
/// Returns 0, or an errno. EINVAL: `mr` is NULL, or the region is deregistered already (a double
/// free), or the region belongs to the process that forked this one. For a region that the library
/// does not cache, also the errnos of ibv_dereg_mr().
///
/// Source: ibv_dereg_mr_relaxed(3) of Oracle Solaris.
#[unsafe(link_section = ".text.hot.rdmamr")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr_relaxed(mr: *mut ibv_mr) -> c_int {
    // SAFETY: live objects: `mr` is NULL, a live region, or an ended region of this library.
    let mr = unsafe { Mr::from_c(mr) };
    if !trace::is_on() && mr.is_some_and(|mr| ret::always(false, || dispatch::release_relaxed(mr)))
    {
        return 0;
    }
    dereg_mr_unreleased(mr, caller())
}
versioned!(ibv_dereg_mr_relaxed, "IBVERBS_1.1");

/// Serves every call but the release of a cached region (see [`reg_mr_relaxed_missed`]).
#[cold]
#[inline(never)]
fn dereg_mr_unreleased(mr: Option<Mr>, caller: Caller) -> c_int {
    dereg(call::DEREG_MR_RELAXED, mr, caller)
}

/// Deregisters the regions of a protection domain that ibv_dereg_mr_relaxed() has left registered.
///
/// When this function returns 0, every relaxed region of `pd` that the program deregistered before
/// the call is invalid in the device, and the device refuses the keys of those regions. Regions in
/// use stay as they are, and other threads may register memory meanwhile. Any thread may call this
/// function at any time.
///
/// Returns 0, or an errno. EINVAL: `pd` is NULL. EAGAIN: a signal handler made the call while it
/// interrupted the library, or another thread that works on the regions has not continued for 5 s.
/// EBUSY and others: the kernel refused to deregister a region; the library does not reuse that
/// region.
///
/// Source: ibv_flush_relaxed_mr(3) of Oracle Solaris.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_flush_relaxed_mr(pd: *mut ibv_pd) -> c_int {
    let failing = || ("ibv_flush_relaxed_mr", Subject::Region, None);
    ret::as_errno(ret::run(failing, || {
        // SAFETY: live objects: `pd` is NULL or an allocated domain.
        let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
        dispatch::flush(pd)
    }))
}
versioned!(ibv_flush_relaxed_mr, "IBVERBS_1.1");
