// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_dereg_mr(3) on a region of any kind: a region that `RDMAMR_CACHE` serves, a relaxed region,
//! or a plain one.

use crate::dispatch::reuse;
use crate::life::owners;
use crate::life::release;
use crate::objects::is_in_slot;
use rdmamr_config::{CacheMode, config};
use rdmamr_mr::{self as mr, Error, How, Mr, Object};
use rdmamr_next as next;
use rdmamr_sys::thread;

#[inline(always)]
pub fn deregister(mr: Mr) -> Result<How, Error> {
    if mr.is_stand_in() {
        return reuse::deregister(mr);
    }
    if is_in_slot(mr) {
        return release::deregister(mr);
    }
    match config().cache_mode {
        CacheMode::Off => {}
        mode => reuse::remember(mode, mr),
    }
    mr::deregister(mr)
}

/// Forgets an imported region, ibv_unimport_mr(3). The kernel may keep the region for another
/// process.
pub fn unimport_mr(mr: Mr) {
    let region = mr.claim_cached().map_or(mr.address(), Object::cached);
    owners::forget(region);
    reuse::end(region);
    if is_in_slot(mr) {
        // The cache owns the object, so no provider may free it.
        return;
    }
    if let Some(next) = next::UNIMPORT_MR.by(mr.provider()) {
        let _uncancelled = thread::uncancelled();
        // SAFETY: the program passed this region to ibv_unimport_mr(3), and `next` is that function
        // of libibverbs. The region is live: its caller promised so to `Mr::from_c`.
        unsafe { next(mr.as_ptr()) }
    }
}
