// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changing a region, ibv_rereg_mr(3): libibverbs does it, on our objects as on its own; our table follows.

use super::deregister::{Claimed, claim, deregister};
use super::object::{Mr, Object};
use super::rows::Region;
use super::{Access, Error, put_away, require};
use crate::abi::rdma_core::ibv_pd;
use crate::{next, thread};
use core::ffi::{c_int, c_void};

/// What is to change.
pub struct Change {
    pub flags: c_int,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub access: Access,
}

/// `IBV_REREG_MR_ERR_DO_FORK_OLD`: the region is changed, but children do not get the memory back that it had.
pub const CHANGED_BUT_NOT_FOR_CHILDREN: c_int = -3;

/// Changes a region. The result is that of `ibv_rereg_mr`, 0 or one of `enum ibv_rereg_mr_err_code`, with
/// errno as libibverbs left it.
///
/// # Safety
/// `change` holds the program's own arguments to `ibv_rereg_mr`.
pub unsafe fn rereg(mr: Mr, change: &Change) -> Result<c_int, Error> {
    let next = require(&next::REREG_MR)?;
    // Claimed, so that nobody deregisters it meanwhile; but libibverbs must take it for an ordinary region.
    let claimed = claim(mr)?;
    if claimed.is_some() {
        mr.unretire();
    }
    let Change {
        flags,
        pd,
        addr,
        length,
        access,
    } = *change;
    // SAFETY: the program's own arguments, to the function that it meant.
    let code = unsafe { next(mr.as_ptr(), flags, pd, addr, length, access.bits() as c_int) };
    if let Some(claimed) = claimed {
        claimed.follow();
    }
    Ok(code)
}

/// Makes a region of ours that of another object, which the caller has claimed. Afterwards its own object is none.
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
    // SAFETY: an object of ours, which is a region now.
    let moved = unsafe { Mr::from_c(to.as_ptr()) }.ok_or(Error::Memory)?;
    let Claimed { state, device, .. } = claimed;
    Claimed {
        state,
        device,
        mr: moved,
    }
    .follow();
    put_away(state, thread::number(), object);
    Ok(())
}

impl Claimed {
    /// Puts the region back as the object has it now: even a failure may have changed the keys. The
    /// kernel's handle never changes.
    fn follow(&self) {
        let mr = self.mr.read();
        let region = Region {
            object: self.mr.address(),
            pd: mr.pd.expose_provenance(),
            length: mr.length,
            lkey: mr.lkey,
        };
        self.device.rows.insert(mr.handle, region);
    }
}
