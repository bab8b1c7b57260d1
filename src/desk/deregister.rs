// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deregistering, ibv_dereg_mr(3), a region of any kind: a region that `RDMAMR_CACHE` serves, a
//! relaxed region, or a plain one.

use super::{Mr, pool_is_on, reuse};
use crate::call::{Error, How};
use crate::config::{Cache, config};
use crate::mr::{self, Object};
use crate::next::{self, Maker};
use crate::pool;

/// Deregisters a region.
#[inline(always)]
pub fn deregister(mr: Mr) -> Result<How, Error> {
    if mr.is_pooled() {
        return reuse::deregister(mr);
    }
    if pool_is_on() && pool::is_region(mr) {
        return pool::deregister(mr);
    }
    match config().cache {
        Cache::Off => {}
        cache => reuse::remember(cache, mr),
    }
    mr::deregister(mr)
}

/// Forgets an imported region, ibv_unimport_mr(3). The kernel may keep the region for another
/// process.
pub fn unimport_mr(mr: Mr) {
    let region = mr.claim_pooled().map_or(mr.address(), Object::pooled);
    if pool_is_on() {
        pool::forget(region);
        reuse::end(region);
        if pool::is_region(mr) {
            // The object is the pool's: a provider must not free it.
            return;
        }
    }
    if let Some(next) = next::UNIMPORT_MR.by(Maker::of_c(mr.read().context)) {
        // SAFETY: the program passed this region to ibv_unimport_mr(3), and `next` is that function
        // of libibverbs. The region is live: its caller promised so to `Mr::from_c`.
        unsafe { next(mr.as_ptr()) }
    }
}
