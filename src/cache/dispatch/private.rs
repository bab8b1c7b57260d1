// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of providers to libibverbs' private interface. If a program looked a function up in
//! libibverbs by handle, its call bypasses this library's function of that name, and arrives here
//! by way of the provider.
//!
//! # Safety
//! **Provider's argument:** each `next` is the libibverbs function of the same name. It receives,
//! unchanged, the argument that the provider passed to that function. The provider upholds the
//! function's contract.

use crate::dispatch::{give_to_program, reuse};
use crate::life::owners;
use crate::regions::is_in_slot;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicBool;
use errno::Errno;
use rdmamr_abi::rdma_core::{ibv_pd, verbs_mr};
use rdmamr_config::config;
use rdmamr_mr::{self as mr, Mr};
use rdmamr_next::{self as next, Context, Maker, Pd};
use rdmamr_stats::log;
use rdmamr_sys::thread;

/// Serves a provider's `ibv_cmd_dereg_mr`. If `RDMAMR_CACHE` serves the region, only this use of
/// the cached region ends, and the provider frees the object. A relaxed region stays. Any other
/// region ends. An imported object can name a kernel region that the cache holds too. In that case
/// the cache neither reuses nor deregisters its region.
///
/// # Safety
/// `vmr` is NULL, a provider's own object, or an object of this library.
pub unsafe fn deregister(vmr: *mut verbs_mr) -> c_int {
    // SAFETY: this function's caller promises that `vmr` is NULL or an object.
    let mr = unsafe { Mr::from_c(vmr.cast()) };
    if mr.is_some_and(reuse::deregister_bypassed) {
        return 0;
    }
    if mr.is_some_and(is_in_slot) {
        refuse();
        return libc::EINVAL;
    }
    let maker = mr.map_or(Maker::ORDINARY, Mr::maker);
    let Some(next) = next::CMD_DEREG_MR.by(maker) else {
        return libc::ENOSYS;
    };
    let _uncancelled = thread::uncancelled();
    // SAFETY: provider's argument.
    let dereg = || unsafe { next(vmr) };
    let Some(mr) = mr else {
        return dereg();
    };
    reuse::remember(config().cache_mode, mr);
    mr::around_bypassed_deregister(mr, || owners::around_deregister_bypassed(mr, dereg))
}

/// Says once why a provider cannot end a relaxed region: it would free the object, which is the
/// cache's.
#[cold]
fn refuse() {
    static SAID: AtomicBool = AtomicBool::new(false);
    log::once(
        &SAID,
        format_args!(
            "libibverbs' own ibv_dereg_mr, which the program has looked up by dlsym, cannot end a region of \
             ibv_reg_mr_relaxed: EINVAL"
        ),
    );
}

/// Serves a provider's `ibv_cmd_rereg_mr`, which is `next`. A region that the cache serves first
/// becomes the program's own, which the cache neither reuses nor deregisters.
///
/// # Safety
/// `vmr` is NULL, a provider's own object, or an object of this library.
pub unsafe fn rereg(vmr: *mut verbs_mr, next: impl FnOnce(next::CmdRereg) -> c_int) -> c_int {
    // SAFETY: this function's caller promises that `vmr` is NULL or an object.
    let mr = unsafe { Mr::from_c(vmr.cast()) };
    if mr.is_some_and(|mr| give_to_program(mr).is_err()) {
        errno::set_errno(Errno(libc::EINVAL));
        return libc::EINVAL;
    }
    let _uncancelled = thread::uncancelled();
    next::CMD_REREG_MR
        .by(mr.map_or(Maker::ORDINARY, Mr::maker))
        .map_or(libc::ENOSYS, next)
}

/// Serves a provider's `ibv_cmd_dealloc_pd`. Idle regions would keep the domain busy, so the cache
/// deregisters them first.
///
/// # Safety
/// `pd` is NULL or a domain that exists.
pub unsafe fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: this function's caller promises that `pd` is NULL or exists.
    let named = unsafe { Pd::from_c(pd) };
    if let Some(pd) = named {
        owners::flush_quietly(pd);
    }
    let _uncancelled = thread::uncancelled();
    match next::CMD_DEALLOC_PD.by(Maker::of(named.and_then(Pd::device))) {
        // SAFETY: provider's argument.
        Some(next) => unsafe { next(pd) },
        None => libc::ENOSYS,
    }
}

/// Serves a provider's `verbs_uninit_context`. The kernel ends the cache's regions with the
/// device's file, and the next file may get the same descriptor number.
///
/// # Safety
/// `verbs_context` is a device that a provider made.
pub unsafe fn close_device(verbs_context: *mut c_void) {
    owners::before_close_bypassed(verbs_context.expose_provenance());
    // SAFETY: this function's caller promises that a provider made the device.
    let context = unsafe { Context::from_verbs_context(verbs_context) };
    let _uncancelled = thread::uncancelled();
    if let Some(next) = next::UNINIT_CONTEXT.by(Maker::of(context)) {
        // SAFETY: provider's argument.
        unsafe { next(verbs_context) }
    }
}
