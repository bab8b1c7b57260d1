// SPDX-License-Identifier: MIT OR Apache-2.0
//! Releasing, ibv_dereg_mr_relaxed(3): the region stays registered, as far as there is room.

use super::account::Amount;
use super::ending::{self, By};
use super::pool::{Batch, Cause};
use super::region::Id;
use super::word::Left;
use super::{Instance, existing, start};
use crate::mr::{self, Error, Mr};
use crate::thread;
use core::sync::atomic::Ordering::*;

/// Ends the program's use of a region of the pool; false if it is none, or not in use. (See `super::hit` for
/// why that is all it says.)
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

/// Ends the program's use of a region, relaxed or not.
#[inline(always)]
pub fn deregister(mr: Mr) -> Result<(), Error> {
    if !start::is_object(mr.address()) {
        return mr::deregister(mr);
    }
    if release(mr) {
        return Ok(());
    }
    Err(if existing().is_some() {
        Error::Gone
    } else {
        Error::Argument("the region belongs to the process that this one was forked from")
    })
}

/// Deregisters idle regions as far as they are more than the limit, those that are idle longest first.
#[cold]
fn trim(relaxed: &Instance) {
    if thread::is_inside() {
        relaxed.cleaner.wake();
        return;
    }
    let _inside = thread::enter();
    // First those that have not been released in this tick of the clock, then any.
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
                // What the kernel refuses stays, unused; the cleaner tries again.
                let _ = ending::end(relaxed, id, By::Program);
            }
        }
    }
    ending::doomed(relaxed, By::Program);
    // Notes what is spare now.
    relaxed.pool.lock().over();
}
