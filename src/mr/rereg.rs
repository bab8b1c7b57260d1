// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changing a region, ibv_rereg_mr(3): libibverbs does it, on our objects as on its own; our table follows.

use super::object::Mr;
use super::table::{Claim, Identity, Region};
use super::{Access, Error, count_vanished};
use crate::abi::rdma_core::ibv_pd;
use crate::config::disabled;
use crate::process::{self, Process};
use crate::stats::Counter;
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

/// Changes a region. The result is that of `ibv_rereg_mr`, 0 or one of `enum ibv_rereg_mr_err_code`, with
/// errno as libibverbs left it.
///
/// # Safety
/// `change` holds the program's own arguments to `ibv_rereg_mr`.
pub unsafe fn rereg(mr: Mr, change: &Change) -> Result<c_int, Error> {
    let next = next::REREG_MR
        .get()
        .ok_or(Error::NoNext(next::REREG_MR.name()))?;
    let claimed = claim(mr)?;
    let Change {
        flags,
        pd,
        addr,
        length,
        access,
    } = *change;
    // SAFETY: the program's own arguments, to the function that it meant.
    let code = unsafe { next(mr.as_ptr(), flags, pd, addr, length, access.bits() as c_int) };
    if let Some((process, old)) = claimed {
        // Even a failure may have changed the keys: take what the object says now.
        let verbs = mr.read().ibv_mr;
        let new = Region {
            identity: Identity {
                context: verbs.context.expose_provenance(),
                handle: verbs.handle,
                lkey: verbs.lkey,
            },
            pd: verbs.pd.expose_provenance(),
            length: verbs.length,
        };
        process.counters.add(Counter::BytesMade, new.length as u64);
        process.counters.add(Counter::BytesEnded, old.length as u64);
        process.table.restore(mr.address(), new);
    }
    Ok(code)
}

/// Claims the region if it is ours, so that nobody deregisters it meanwhile.
fn claim(mr: Mr) -> Result<Option<(&'static Process, Region)>, Error> {
    let Some(process) = process::existing() else {
        return Ok(None);
    };
    if disabled() || thread::is_inside() {
        return Ok(None);
    }
    match process.table.claim(mr.address(), || mr.identity()) {
        Claim::Ours(region) => Ok(Some((process, region))),
        Claim::Gone => Err(Error::Gone),
        Claim::Foreign => Ok(None),
        Claim::Vanished(region) => {
            count_vanished(process, region);
            Ok(None)
        }
    }
}
