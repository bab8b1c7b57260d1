// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_rereg_mr(3). libibverbs changes our objects like its own, and our table follows the change.

use super::deregister::{claim, deregister};
use super::devices::Device;
use super::object::{Mr, Object};
use super::outcome::Error;
use super::request::Reregistration;
use super::require::require;
use super::rows::Known;
use core::ffi::c_int;
use rdmamr_next as next;
use rdmamr_sys::thread;

/// `IBV_REREG_MR_ERR_DO_FORK_OLD`: the region is changed, but children do not get its old memory
/// back.
pub const CHANGED_BUT_NOT_FOR_CHILDREN: c_int = -3;

/// `IBV_REREG_MR_ERR_CMD`: the kernel or the provider refuses the change.
pub const REFUSED: c_int = -4;

/// Changes a region. The result is that of `ibv_rereg_mr`, 0 or a value of `enum
/// ibv_rereg_mr_err_code`, with errno as libibverbs left it.
///
/// # Safety
/// `change` holds arguments that are valid for `ibv_rereg_mr`.
pub unsafe fn rereg(mr: Mr, change: &Reregistration) -> Result<c_int, Error> {
    let next = require(&next::REREG_MR, mr.provider())?;
    // The claim keeps other threads from deregistering the region. libibverbs, however, must take
    // the object for an ordinary region.
    let claimed = claim(mr)?;
    if claimed.is_some() {
        mr.unretire();
    }
    let Reregistration {
        flags,
        pd,
        addr,
        length,
        access,
    } = *change;
    // SAFETY: `mr` is live (`Mr::from_c`), the other arguments are valid by this function's
    // contract, and `next` is libibverbs' `ibv_rereg_mr`.
    let code = unsafe { next(mr.as_ptr(), flags, pd, addr, length, access.bits() as c_int) };
    if let Some(claimed) = claimed {
        follow(claimed.device, mr);
    }
    Ok(code)
}

/// Moves a region of ours into the object `to`, which the caller has claimed. Afterwards the
/// region's old object has no region.
pub fn move_region(mr: Mr, to: Object) -> Result<(), Error> {
    let Some(claimed) = claim(mr)? else {
        deregister(mr)?;
        return Err(Error::Busy(
            "the device was left to libibverbs meanwhile, and another region cannot take this one's place",
        ));
    };
    let Some(object) = Object::at(mr.address()) else {
        return Err(Error::Memory);
    };
    mr.unretire();
    to.take_over(object);
    mr.retire();
    // SAFETY: `to` is an object of ours that has just become a live region.
    let moved = unsafe { Mr::from_c(to.as_ptr()) }.ok_or(Error::Memory)?;
    follow(claimed.device, moved);
    claimed.state.put_away(thread::number(), object);
    Ok(())
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
