// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations that libibverbs makes: of memory other than plain memory, and of plain memory if
//! the device, the kernel or the moment prevents us from doing exactly what libibverbs does. Such a
//! region is not ours.

use super::access::Access;
use super::object::Mr;
use super::outcome::{Error, How, Registered};
use super::request::Request;
use super::require::require;
use super::{devices, large};
use errno::errno;
use rdmamr_abi::rdma_core::*;
use rdmamr_config::disabled;
use rdmamr_next::{self as next, Context, Maker, Pd};
use rdmamr_stats::log::{self, Level};
use rdmamr_stats::{self as stats, counter};
use rdmamr_sys::thread;
use rdmamr_trace as trace;

/// Registers plain memory by libibverbs, for the given reason.
#[cold]
pub fn register(pd: Pd, request: &Request, why: &str) -> Result<Registered, Error> {
    log::line(Level::Debug, format_args!("registration forwarded: {why}"));
    // A device without a uverbs descriptor may pin nothing.
    if large::is_large(request.length) && pd.device().and_then(Context::fd).is_some() {
        return large::around(request, false, || ask_next(pd, request));
    }
    ask_next(pd, request)
}

fn ask_next(pd: Pd, request: &Request) -> Result<Registered, Error> {
    let (addr, length, iova) = (request.addr, request.length, request.iova);
    let access = request.access.bits();
    let pd_ptr = pd.as_ptr();
    let maker = Maker::of(pd.device());
    let _uncancelled = thread::uncancelled();
    let mr = if let Some(reg_mr_iova2) = next::REG_MR_IOVA2.by(maker) {
        // SAFETY: `pd` is live (`Pd::from_c`), libibverbs accepts any range, and the function is
        // its own.
        unsafe { reg_mr_iova2(pd_ptr, addr, length, iova, access) }
    } else if let (Some(reg_mr), true) = (next::REG_MR.by(maker), iova == addr.addr() as u64) {
        // rdma-core before 28.
        // SAFETY: `pd` is live (`Pd::from_c`), libibverbs accepts any range, and the function is
        // its own.
        unsafe { reg_mr(pd_ptr, addr, length, access as i32) }
    } else if let Some(reg_mr_iova) = next::REG_MR_IOVA.by(maker) {
        // SAFETY: `pd` is live (`Pd::from_c`), libibverbs accepts any range, and the function is
        // its own.
        unsafe { reg_mr_iova(pd_ptr, addr, length, iova, access as i32) }
    } else {
        return Err(Error::NoNext(next::REG_MR_IOVA2.name()));
    };
    made_by_next(mr)
}

/// Registers memory of a dma-buf.
///
/// # Safety
/// `fd` is a file descriptor of the program, valid for `ibv_reg_dmabuf_mr`.
pub unsafe fn reg_dmabuf_mr(
    pd: Pd,
    (offset, length, iova): (u64, usize, u64),
    fd: i32,
    access: Access,
) -> Result<Registered, Error> {
    let next = require(&next::REG_DMABUF_MR, Maker::of(pd.device()))?;
    let _uncancelled = thread::uncancelled();
    // SAFETY: `pd` is live (`Pd::from_c`), `fd` is valid by this function's contract, and `next` is
    // libibverbs' `ibv_reg_dmabuf_mr`.
    made_by_next(unsafe { next(pd.as_ptr(), offset, length, iova, fd, access.bits() as i32) })
}

/// The memory of attributes that have these fields and perhaps an iova: `IBV_REG_MR_MASK_ADDR` names
/// plain memory, with `IBV_REG_MR_MASK_BUF` it is of `ibv_alloc_buf` ([`is_ordinary`]). `None` if they
/// ask for more or less, if they are NULL, or if the library is disabled.
///
/// # Safety
/// `attr` is NULL or points to attributes. The caller has set the fields that `comp_mask` names,
/// and the fields before `comp_mask`. `fields` has the address.
pub unsafe fn memory_with(attr: *const ibv_mr_init_attr, fields: u64) -> Option<Request> {
    if attr.is_null() || disabled() {
        return None;
    }
    // SAFETY: `length`, `access` and `comp_mask` exist in every version. The code makes no
    // reference to the whole structure: the program's may come from an older rdma-core and be
    // shorter.
    let mask = unsafe { (*attr).comp_mask };
    if mask & !IBV_REG_MR_MASK_IOVA != fields {
        return None;
    }
    // SAFETY: `length` and `access` exist in every version of the structure.
    let (length, access) = (unsafe { (*attr).length }, unsafe { (*attr).access });
    // SAFETY: `comp_mask` names `addr`, so the caller has set it.
    let addr = unsafe { (*attr).addr };
    let mut request = Request::at_address(addr, length, Access::from_bits_retain(access as u32));
    if mask & IBV_REG_MR_MASK_IOVA != 0 {
        // SAFETY: `comp_mask` names `iova`, so the caller has set it.
        request.iova = unsafe { (*attr).iova };
    }
    Some(request)
}

/// Whether memory of `ibv_alloc_buf` is ordinary, and libibverbs would register it: it refuses a
/// domain other than the buffer's, and memory beyond the buffer. If a later release changes its
/// private structure, the comparison fails.
///
/// # Safety
/// The same as for [`memory_with`], which made `request` of attributes with `IBV_REG_MR_MASK_BUF`.
pub unsafe fn is_ordinary(
    pd: *mut ibv_pd,
    attr: *const ibv_mr_init_attr,
    request: &Request,
) -> bool {
    // The field behind those of rdma-core 59.
    let field = attr.wrapping_add(1).cast::<*const ibv_buf>();
    // SAFETY: `comp_mask` names the field, so the caller has set it.
    let buffer = unsafe { field.read() };
    // SAFETY: NULL, or a live buffer of `ibv_alloc_buf`.
    let Some(buffer) = (unsafe { buffer.as_ref() }) else {
        return false;
    };
    let offset = request.addr.addr().checked_sub(buffer.addr.addr());
    let rest = offset.and_then(|offset| buffer.size.checked_sub(offset));
    buffer.pd == pd && buffer.dmabuf_fd == -1 && rest.is_some_and(|rest| request.length <= rest)
}

/// Registers memory other than plain memory.
///
/// # Safety
/// The same as for [`memory_with`], and `attr` is not NULL.
pub unsafe fn reg_other_memory(pd: Pd, attr: *mut ibv_mr_init_attr) -> Result<Registered, Error> {
    let next = require(&next::REG_MR_EX, Maker::of(pd.device()))?;
    let _uncancelled = thread::uncancelled();
    // SAFETY: `pd` is live, `attr` is valid by this function's contract, and `next` is libibverbs'
    // `ibv_reg_mr_ex`.
    made_by_next(unsafe { next(pd.as_ptr(), attr) })
}

/// Records a region that libibverbs made. A region of ours with the same handle has ended
/// elsewhere.
fn made_by_next(mr: *mut ibv_mr) -> Result<Registered, Error> {
    // SAFETY: `mr` is null or a region that libibverbs has just made.
    let made = unsafe { Mr::from_c(mr) }.ok_or_else(|| Error::Next(errno()))?;
    let devices = devices::current();
    stats::counters().count(counter!(reg_next));
    trace::switch::look();
    let public = made.read();
    if let Some(device) = devices.get(public.context.expose_provenance()) {
        stats::counters().count_on(thread::number(), device.rows.counted_at());
        device.rows.forget(public.handle);
    }
    Ok(Registered::by(How::Forwarded, mr))
}
