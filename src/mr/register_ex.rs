// SPDX-License-Identifier: MIT OR Apache-2.0
//! The extensible call, `ibv_reg_mr_ex` of rdma-core 59. Over plain memory it is a registration
//! like any other; libibverbs serves the rest.

use super::forwarded::made_by_next;
use super::require;
use crate::abi::rdma_core::*;
use crate::call::{Access, Error, Pd, Registered, Request};
use crate::config::disabled;
use crate::next::{self, Provider};

/// The plain memory that the attributes ask for. `None` if they ask for more, if they are NULL, or
/// if the library is disabled.
///
/// # Safety
/// `attr` is NULL or points to attributes. The caller has set the fields that `comp_mask` names,
/// and the fields before `comp_mask`.
pub unsafe fn plain_memory(attr: *const ibv_mr_init_attr) -> Option<Request> {
    if attr.is_null() || disabled() {
        return None;
    }
    // SAFETY: `length`, `access` and `comp_mask` exist in every version. The code makes no
    // reference to the whole structure: the program's may come from an older rdma-core and be
    // shorter.
    let mask = unsafe { (*attr).comp_mask };
    if mask & !IBV_REG_MR_MASK_IOVA != IBV_REG_MR_MASK_ADDR {
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

/// Registers other than plain memory.
///
/// # Safety
/// The same as for [`plain_memory`], and `attr` is not NULL.
pub unsafe fn reg_other_memory(pd: Pd, attr: *mut ibv_mr_init_attr) -> Result<Registered, Error> {
    let next = require(&next::REG_MR_EX, Provider::of_pd(pd))?;
    // SAFETY: `pd` is live, `attr` is valid by this function's contract, and `next` is libibverbs'
    // `ibv_reg_mr_ex`.
    made_by_next(unsafe { next(pd.as_ptr(), attr) })
}
