// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_rereg_mr(3). libibverbs changes our objects like its own, and our table follows the change.

use super::deregister::claim;
use super::devices::{self, Device};
use super::object::Mr;
use super::outcome::Error;
use super::request::Reregistration;
use super::require::require;
use super::rows::Known;
use core::ffi::c_int;
use rdmamr_next as next;
use rdmamr_sys::thread;

/// Changes a region. The result is that of `ibv_rereg_mr`, 0 or a value of `enum
/// ibv_rereg_mr_err_code`, with errno as libibverbs left it.
///
/// # Safety
/// `change` holds arguments that are valid for `ibv_rereg_mr`.
pub unsafe fn rereg(mr: Mr, change: &Reregistration) -> Result<c_int, Error> {
    let next = require(&next::REREG_MR, mr.maker())?;
    // The claim keeps other threads from deregistering the region. libibverbs, however, must take
    // the object for an ordinary region.
    let claimed = claim(mr)?;
    if claimed.is_some() {
        mr.unretire();
    }
    let (flags, pd, asked) = (change.flags, change.pd, &change.request);
    let access = asked.access.bits() as c_int;
    let _uncancelled = thread::uncancelled();
    // SAFETY: `mr` is live (`Mr::from_c`), the other arguments are valid by this function's
    // contract, and `next` is libibverbs' `ibv_rereg_mr`.
    let code = unsafe { next(mr.as_ptr(), flags, pd, asked.addr, asked.length, access) };
    if let Some(claimed) = claimed {
        follow(claimed.device, mr);
    }
    Ok(code)
}

/// Makes an ordinary region of ours of an object that the caller has claimed ([`Mr::claim_cached`]).
/// The kernel's region is this object's alone from now on.
pub fn adopt(mr: Mr) {
    mr.become_ordinary();
    if let Some(device) = devices::of_context(mr.read().context.expose_provenance()) {
        follow(device, mr);
    }
}

/// Puts a claimed region back into the table, with the fields that its object has now: even a
/// failed change may have changed the keys. The kernel's handle never changes.
fn follow(device: &Device, mr: Mr) {
    let public = mr.read();
    let region = Known {
        object: mr.address(),
        pd: public.pd.expose_provenance(),
        length: public.length,
        lkey: public.lkey,
    };
    device.rows.insert(public.handle, region);
}
