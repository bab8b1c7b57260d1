// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changing a region of any kind, ibv_rereg_mr(3).

use crate::dispatch::reuse;
use crate::life::owners;
use crate::objects::is_in_slot;
use core::ffi::c_int;
use rdmamr_mr::{self as mr, Error, Mr, Reregistration};

/// Changes a region. A region that the cache serves becomes the program's own before, with its keys,
/// which remote peers may hold: the cache neither reuses nor deregisters it from then on.
///
/// # Safety
/// As for [`mr::rereg`].
pub unsafe fn rereg(mr: Mr, change: &Reregistration) -> Result<c_int, Error> {
    if is_in_slot(mr) {
        return Err(Error::Argument(
            "a relaxed region cannot be changed: others may use it, now or later",
        ));
    }
    give_to_program(mr)?;
    // SAFETY: this function's caller promises the contract of `mr::rereg` for `change`.
    unsafe { mr::rereg(mr, change) }
}

/// Makes a region of the program's own of one that the cache serves. Fails if a relaxed registration
/// uses the region as well, which would then change, or end, with the program's. (No other plain
/// registration uses it: the cache shares no region between plain calls.)
pub fn give_to_program(mr: Mr) -> Result<(), Error> {
    let Some(object) = mr.claim_cached() else {
        return Ok(());
    };
    let cached = object.cached();
    if owners::is_of_gpu(cached) {
        mr.restore_cached();
        return Err(Error::Argument("a region of a dma-buf cannot be changed"));
    }
    if !owners::forget_unshared(cached) {
        mr.restore_cached();
        return Err(Error::Argument(
            "a relaxed registration uses the same region",
        ));
    }
    reuse::end(cached);
    mr::adopt(mr);
    Ok(())
}
