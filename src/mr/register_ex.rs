// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering by the extensible call, `ibv_reg_mr_ex` of rdma-core 59.

use super::passed_on::made_by_next;
use super::{Access, Error, Pd, Request, require};
use crate::abi::rdma_core::*;
use crate::config::disabled;
use crate::next;

/// Registers by the extensible call: plain memory as ours, everything else by libibverbs.
///
/// # Safety
/// `attr` points to attributes of which the fields that `comp_mask` names, and those before it, are set.
pub unsafe fn reg_mr_ex(pd: Pd, attr: *mut ibv_mr_init_attr) -> Result<*mut ibv_mr, Error> {
    // SAFETY: `length`, `access` and `comp_mask` are always there. No reference to the whole: the program's
    // structure may be that of an older rdma-core, and shorter.
    let mask = unsafe { (*attr).comp_mask };
    let plain = mask == IBV_REG_MR_MASK_ADDR || mask == IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA;
    if plain && !disabled() {
        // SAFETY: always there.
        let (length, access) = (unsafe { (*attr).length }, unsafe { (*attr).access });
        // SAFETY: `comp_mask` names it.
        let addr = unsafe { (*attr).addr };
        let iova = if mask & IBV_REG_MR_MASK_IOVA != 0 {
            // SAFETY: `comp_mask` names it.
            unsafe { (*attr).iova }
        } else {
            addr.addr() as u64
        };
        let access = Access::from_bits_retain(access as u32);
        return super::register(
            pd,
            &Request {
                addr,
                length,
                iova,
                access,
            },
        );
    }
    let next = require(&next::REG_MR_EX)?;
    // SAFETY: the program's own arguments, to the function that it meant.
    made_by_next(unsafe { next(pd.as_ptr(), attr) })
}
