// SPDX-License-Identifier: MIT OR Apache-2.0
//! libmlx5's own calls that register memory, past libibverbs. libmlx5 serves them: the library
//! forwards them, counts them, and records them in the trace (`capi/mlx5.rs`). Such a region or umem
//! is not ours, and the cache has no part in it.
//!
//! # Safety
//! **Same contract**: each function has the contract of libmlx5's function of that name, and passes
//! its arguments on unchanged to that function.

use super::devices;
use super::object::Mr;
use super::outcome::{Error, How, Registered};
use super::require::require;
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use errno::{Errno, errno, set_errno};
use rdmamr_abi::rdma_core::ibv_pd;
use rdmamr_next::{self as next, Maker, Next, Pd};
use rdmamr_stats::{self as stats, counter};
use rdmamr_sys::thread;
use rdmamr_trace as trace;

/// The address of a umem, which identifies it until its deregistration.
pub type Umem = NonNull<c_void>;

/// `mlx5dv_reg_dmabuf_mr`. `access` has the flags of libibverbs, and libmlx5's own.
///
/// # Safety
/// Same contract.
pub unsafe fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    (offset, length, iova): (u64, usize, u64),
    fd: c_int,
    (access, of_mlx5): (c_int, c_int),
) -> Result<Registered, Error> {
    // SAFETY: same contract: the domain is live.
    let device = unsafe { Pd::from_c(pd) }.and_then(Pd::device);
    let next = require(&next::MLX5DV_REG_DMABUF_MR, Maker::of(device))?;
    let _uncancelled = thread::uncancelled();
    // SAFETY: same contract.
    let mr = unsafe { next(pd, offset, length, iova, fd, access, of_mlx5) };
    // SAFETY: `mr` is NULL or a region that libmlx5 has just made.
    let made = unsafe { Mr::from_c(mr) }.ok_or_else(|| Error::Next(errno()))?;
    count(length);
    let public = made.read();
    if let Some(device) = devices::of_context(public.context.expose_provenance()) {
        // The kernel gives no handle twice: a region of ours that had it has ended elsewhere.
        device.rows.forget(public.handle);
    }
    Ok(Registered::by(How::Past, mr))
}

/// `mlx5dv_devx_umem_reg` or `mlx5dv_devx_umem_reg_ex`, of so many bytes. `call` calls libmlx5's.
pub fn umem<F: Copy>(
    maker: Maker,
    next: &Next<F>,
    length: usize,
    call: impl FnOnce(F) -> *mut c_void,
) -> Result<Umem, Error> {
    let next = require(next, maker)?;
    let _uncancelled = thread::uncancelled();
    let umem = Umem::new(call(next)).ok_or_else(|| Error::Next(errno()))?;
    count(length);
    Ok(umem)
}

/// `mlx5dv_devx_umem_dereg`. A process may have several libmlx5, and a umem does not tell its
/// device: a libmlx5 that has not opened the device refuses the umem, and changes nothing.
///
/// # Safety
/// Same contract.
pub unsafe fn umem_dereg(umem: *mut c_void) -> Result<How, Error> {
    let mut refused = Error::NoNext(next::MLX5DV_DEVX_UMEM_DEREG.name());
    let _uncancelled = thread::uncancelled();
    for next in next::MLX5DV_DEVX_UMEM_DEREG.by_each() {
        // SAFETY: same contract.
        match unsafe { next(umem) } {
            0 => return Ok(How::Past),
            libc::EOPNOTSUPP => refused = Error::Next(Errno(libc::EOPNOTSUPP)),
            code => return Err(Error::Next(Errno(code))),
        }
    }
    Err(refused)
}

/// Counts a registration. errno stays libmlx5's.
#[inline(never)]
fn count(length: usize) {
    let errno = errno();
    let (counters, thread) = (stats::counters(), thread::number());
    counters.add(thread, counter!(reg_past), 1);
    counters.add(thread, counter!(reg_past_bytes), length as u64);
    trace::switch::look();
    set_errno(errno);
}
