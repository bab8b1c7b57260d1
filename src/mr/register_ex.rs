// SPDX-License-Identifier: MIT OR Apache-2.0
//! The extensible call, `ibv_reg_mr_ex` of rdma-core 59: over plain memory it is a registration like any
//! other, everything else is libibverbs'.

use super::passed_on::made_by_next;
use super::{Access, Error, Pd, Request, require};
use crate::abi::rdma_core::*;
use crate::config::disabled;
use crate::next;

/// The plain memory that the attributes ask for. `None` where they ask for more, or are NULL, or where
/// everything is passed on as it is.
///
/// # Safety
/// `attr` is NULL or points to attributes of which the fields that `comp_mask` names, and those before it,
/// are set.
pub unsafe fn plain_memory(attr: *const ibv_mr_init_attr) -> Option<Request> {
    if attr.is_null() || disabled() {
        return None;
    }
    // SAFETY: `length`, `access` and `comp_mask` are always there. No reference to the whole: the program's
    // structure may be that of an older rdma-core, and shorter.
    let mask = unsafe { (*attr).comp_mask };
    if mask & !IBV_REG_MR_MASK_IOVA != IBV_REG_MR_MASK_ADDR {
        return None;
    }
    // SAFETY: always there.
    let (length, access) = (unsafe { (*attr).length }, unsafe { (*attr).access });
    // SAFETY: `comp_mask` names it.
    let addr = unsafe { (*attr).addr };
    let mut request = Request::at_address(addr, length, Access::from_bits_retain(access as u32));
    if mask & IBV_REG_MR_MASK_IOVA != 0 {
        // SAFETY: `comp_mask` names it.
        request.iova = unsafe { (*attr).iova };
    }
    Some(request)
}

/// Registers what is not plain memory.
///
/// # Safety
/// As for [`plain_memory`], and `attr` is not NULL.
pub unsafe fn reg_other_memory(pd: Pd, attr: *mut ibv_mr_init_attr) -> Result<*mut ibv_mr, Error> {
    let next = require(&next::REG_MR_EX)?;
    // SAFETY: the program's own arguments, to the function that it meant.
    made_by_next(unsafe { next(pd.as_ptr(), attr) })
}
