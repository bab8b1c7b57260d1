// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations that libibverbs makes: what is not plain memory, and plain memory where a device, a kernel
//! or the moment does not let us do exactly as it does. Such a region is not ours.

use super::prefault::{self, Watch};
use super::state;
use super::{Access, Context, Error, Mr, Pd, Request, count_vanished, require};
use crate::abi::rdma_core::*;
use crate::log::{self, Level};
use crate::stats::Counter;
use crate::trace::{self, format::how};
use crate::{next, thread};
use errno::errno;

/// Registers plain memory by libibverbs, for the reason given.
#[cold]
pub fn register(pd: Pd, request: &Request, why: &str) -> Result<*mut ibv_mr, Error> {
    log::line(Level::Debug, format_args!("registration passed on: {why}"));
    // What has no kernel file may pin nothing.
    // SAFETY: a protection domain's own device, which is open as long as the domain exists.
    let context = unsafe { Context::from_c(pd.context()) };
    if prefault::is_large(request.length) && context.and_then(Context::fd).is_some() {
        return prefault::around(request, Watch::Unknown, || ask_next(pd, request));
    }
    ask_next(pd, request)
}

fn ask_next(pd: Pd, request: &Request) -> Result<*mut ibv_mr, Error> {
    let Request {
        addr,
        length,
        iova,
        access,
    } = *request;
    let access = access.bits();
    let pd_ptr = pd.as_ptr();
    let mr = if let Some(reg_mr_iova2) = next::REG_MR_IOVA2.get() {
        // SAFETY: the program's own arguments, to the function that it meant.
        unsafe { reg_mr_iova2(pd_ptr, addr, length, iova, access) }
    } else if let (Some(reg_mr), true) = (next::REG_MR.get(), iova == addr.addr() as u64) {
        // rdma-core before 28.
        // SAFETY: as above.
        unsafe { reg_mr(pd_ptr, addr, length, access as i32) }
    } else if let Some(reg_mr_iova) = next::REG_MR_IOVA.get() {
        // SAFETY: as above.
        unsafe { reg_mr_iova(pd_ptr, addr, length, iova, access as i32) }
    } else {
        return Err(Error::NoNext(next::REG_MR_IOVA2.name()));
    };
    made_by_next(mr)
}

/// Registers memory of a dma-buf.
///
/// # Safety
/// `fd` is the program's own: what it names is passed on.
pub unsafe fn reg_dmabuf_mr(
    pd: Pd,
    (offset, length, iova): (u64, usize, u64),
    fd: i32,
    access: Access,
) -> Result<*mut ibv_mr, Error> {
    let next = require(&next::REG_DMABUF_MR)?;
    // SAFETY: the program's own arguments, to the function that it meant.
    made_by_next(unsafe { next(pd.as_ptr(), offset, length, iova, fd, access.bits() as i32) })
}

/// Takes note of what libibverbs made. A region of ours with the same handle has vanished.
pub fn made_by_next(mr: *mut ibv_mr) -> Result<*mut ibv_mr, Error> {
    // SAFETY: a region that libibverbs has just made, if any.
    let Some(made) = (unsafe { Mr::from_c(mr) }) else {
        return Err(Error::Next(errno()));
    };
    let state = state::current();
    let counters = &state.counters;
    counters.add(thread::number(), Counter::RegNext, 1);
    trace::note(how::PASSED_ON);
    let public = made.read();
    if let Some(device) = state.devices.get(public.context.expose_provenance())
        && device.rows.forget(public.handle)
    {
        count_vanished(state, 1);
    }
    Ok(mr)
}
