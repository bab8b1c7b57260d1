// SPDX-License-Identifier: MIT OR Apache-2.0
//! Releasing, ibv_dereg_mr_relaxed(3): the pool keeps the region registered while it has room.

use super::account::Amount;
use super::ending::{self, By};
use super::pool::{Batch, Cause};
use super::region::Id;
use super::word::Left;
use super::{Instance, existing};
use crate::call::{Error, How};
use crate::mr::Mr;
use crate::sys::thread;
use core::sync::atomic::Ordering::*;

/// Ends one use of a region of the pool. Returns false if `mr` is no such region, or is not in use.
/// (For the size of this result see `hit_inlined` in `mod.rs`.)
#[inline(always)]
pub fn release(mr: Mr) -> bool {
    let Some(relaxed) = existing() else {
        return false;
    };
    let pool = relaxed.pool;
    let Some(handle) = pool.handle(mr.address()) else {
        return false;
    };
    let id = handle.region;
    match pool.release(handle, relaxed.cleaner.now()) {
        Some(Left::InUse) => true,
        Some(Left::Idle) => {
            if relaxed.cleaner.is_dormant() {
                relaxed.cleaner.idle(pool.region(id));
            }
            if !pool.account.may_be_idle(|| pool.region(id).hull()) {
                trim(relaxed);
            }
            true
        }
        Some(Left::Spent) => {
            ending::spent(relaxed, id);
            true
        }
        None => false,
    }
}

/// Ends one use of a region of the pool. An error says why there is no such use.
#[inline(always)]
pub fn deregister(mr: Mr) -> Result<How, Error> {
    if release(mr) {
        return Ok(How::Kept);
    }
    Err(if existing().is_some() {
        Error::Gone
    } else {
        Error::Argument("the region belongs to the process that this one was forked from")
    })
}

/// If more is idle than the limit allows, deregisters the regions that have been idle longest.
#[cold]
fn trim(relaxed: &Instance) {
    if thread::is_inside() {
        relaxed.cleaner.wake();
        return;
    }
    let _inside = thread::enter();
    // The first round spares the regions that were released in this tick of the clock, the second
    // round does not.
    let now = relaxed.cleaner.now();
    for any in [false, true] {
        let mut from = Some(Id(0));
        while let Some(start) = from {
            let mut batch = Batch::new();
            let locked = relaxed.pool.lock();
            relaxed.apply(&locked, By::Program);
            let Some(mut over) = locked.over() else {
                return;
            };
            from = locked.claim_idle(start, &mut batch, Cause::Watermark, |region| {
                let needed = over.regions > 0 || over.bytes > 0;
                let chosen = needed && (any || region.released.load(Relaxed) != now);
                if chosen {
                    over = Amount {
                        regions: over.regions.saturating_sub(1),
                        bytes: over.bytes.saturating_sub(region.hull().bytes()),
                    };
                }
                chosen
            });
            drop(locked);
            for &id in batch.ids() {
                // A region that the kernel refuses to deregister stays unused. The cleaner tries
                // again.
                let _ = ending::end(relaxed, id, By::Program);
            }
        }
    }
    ending::doomed(relaxed, By::Program);
    // Counts the idle regions anew, so that the account knows how much room is left.
    relaxed.pool.lock().over();
}
