// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a protection domain or a device, ibv_alloc_pd(3), ibv_open_device(3). The cache first
//! deregisters its idle regions there.

use super::listeners::cache_is_on;
use crate::cache;
use crate::mr::{self, Error};
use crate::next::{self, Context, Pd, Provider};

/// Deallocates a protection domain. Returns EBUSY while the domain has relaxed regions in use.
pub fn dealloc_pd(pd: Pd) -> Result<(), Error> {
    if cache_is_on() {
        cache::before_dealloc_pd(pd)?;
    }
    mr::dealloc_pd(pd)
}

/// Closes a device. Returns EBUSY while the device has regions in use that relaxed calls have given
/// out.
pub fn close_device(context: Context) -> Result<(), Error> {
    if cache_is_on() {
        cache::around_close_device(context, || mr::close_device(context))
    } else {
        mr::close_device(context)
    }
}

/// Forgets an imported domain, ibv_unimport_pd(3). The kernel keeps the domain for another process.
/// Another domain may get the same address next, so the cache reuses no region of this domain.
pub fn unimport_pd(pd: Pd) {
    if cache_is_on() {
        cache::before_unimport_pd(pd);
    }
    if let Some(next) = next::UNIMPORT_PD.by(Provider::of_pd(pd)) {
        // SAFETY: the program passed this live domain to ibv_unimport_pd(3), and `next` is that
        // function of libibverbs.
        unsafe { next(pd.as_ptr()) }
    }
}
