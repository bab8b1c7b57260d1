// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of `<infiniband/mlx5dv.h>` that register memory. libmlx5 serves them. The library stands
//! in front of them so that the trace and the statistics have them. The statistics count no failure.
//!
//! As in `memory.rs`, the symbols have no version node: a reference to any node of libmlx5 binds to
//! them.
//!
//! # Safety
//! **Same contract**: each function has the contract of libmlx5's function of that name, which the C
//! caller keeps, and passes its arguments on unchanged to that function.

use super::export::caller;
use super::{ret, traced};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use rdmamr_abi::rdma_core::*;
use rdmamr_cache::dispatch::mlx5;
use rdmamr_mr::explain::Subject;
use rdmamr_mr::{Access, Error, Request};
use rdmamr_next::{self as next, Context, Maker};
use rdmamr_trace::format::call;

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mlx5dv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut ibv_mr {
    let request = Request::at_address(null_mut(), length, Access::from_bits_retain(access as u32));
    let record =
        || move |outcome: &_| traced::registered(call::MLX5DV_REG_DMABUF_MR, pd, &request, outcome);
    let failing = || ret::entry(call::MLX5DV_REG_DMABUF_MR, Subject::OtherMemory, None);
    ret::as_region(ret::traced(failing, (caller(), record), || {
        // SAFETY: same contract.
        unsafe { mlx5::reg_dmabuf_mr(pd, (offset, length, iova), fd, (access, mlx5_access)) }
    }))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mlx5dv_devx_umem_reg(
    context: *mut ibv_context,
    addr: *mut c_void,
    size: usize,
    access: u32,
) -> *mut c_void {
    let request = Request::at_address(addr, size, Access::from_bits_retain(access));
    let record = || move |outcome: &_| traced::umem(call::MLX5DV_DEVX_UMEM_REG, &request, outcome);
    let failing = || ret::entry(call::MLX5DV_DEVX_UMEM_REG, Subject::Umem(request), None);
    ret::as_umem(ret::traced(failing, (caller(), record), || {
        // SAFETY: same contract: the device is open.
        let maker = Maker::of(unsafe { Context::from_c(context) });
        mlx5::umem(maker, &next::MLX5DV_DEVX_UMEM_REG, size, |next| {
            // SAFETY: same contract.
            unsafe { next(context, addr, size, access) }
        })
    }))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mlx5dv_devx_umem_reg_ex(
    context: *mut ibv_context,
    umem_in: *mut mlx5dv_devx_umem_in,
) -> *mut c_void {
    // SAFETY: same contract: the argument is readable. The program's may be longer.
    let asked = unsafe { umem_in.as_ref() };
    // `addr` may be an offset in a dma-buf.
    let is_memory = asked.is_some_and(|asked| asked.comp_mask & MLX5DV_UMEM_MASK_DMABUF == 0);
    let memory = asked.filter(|_| is_memory);
    let addr = memory.map_or(null_mut(), |memory| memory.addr);
    let (size, access) = asked.map_or((0, 0), |asked| (asked.size, asked.access));
    let request = Request::at_address(addr, size, Access::from_bits_retain(access));
    let record =
        || move |outcome: &_| traced::umem(call::MLX5DV_DEVX_UMEM_REG_EX, &request, outcome);
    let subject = match is_memory {
        true => Subject::Umem(request),
        false => Subject::OtherMemory,
    };
    let failing = || ret::entry(call::MLX5DV_DEVX_UMEM_REG_EX, subject, None);
    ret::as_umem(ret::traced(failing, (caller(), record), || {
        // SAFETY: same contract: the device is open.
        let maker = Maker::of(unsafe { Context::from_c(context) });
        let next = &next::MLX5DV_DEVX_UMEM_REG_EX;
        mlx5::umem(maker, next, request.length, |next| {
            // SAFETY: same contract.
            unsafe { next(context, umem_in) }
        })
    }))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mlx5dv_devx_umem_dereg(umem: *mut c_void) -> c_int {
    let record = || move |outcome: &_| traced::umem_end(umem, outcome);
    let failing = || ret::entry(call::MLX5DV_DEVX_UMEM_DEREG, Subject::Other, None);
    let ended = ret::traced(failing, (caller(), record), || {
        // SAFETY: same contract.
        unsafe { mlx5::umem_dereg(umem) }
    });
    // The call itself sets no errno.
    ended.map_or_else(Error::errno, |_| 0)
}
