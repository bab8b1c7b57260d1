// SPDX-License-Identifier: MIT OR Apache-2.0
//! Releasing, ibv_dereg_mr_relaxed(3): the pool keeps the region registered while it has room.

use crate::call::{Error, How};
use crate::mr::Mr;
use crate::pool::Instance;
use crate::pool::existing;
use crate::pool::life::ending::{self, By};
use crate::pool::life::limits;
use crate::pool::region::Id;
use crate::pool::region::word::Left;
use crate::pool::state::Batch;
use crate::sys::thread;

/// Ends one use of a region of the pool. Returns false if `mr` is no such region, or is not in use.
/// (For the size of this result see `Answer` in `hit.rs`.)
///
/// Most releases end a region's only use, by its own handle. All others are apart, so that this one
/// needs little code (`hit.rs`).
#[inline(always)]
pub fn release(mr: Mr) -> bool {
    let Some(relaxed) = existing() else {
        return false;
    };
    let (pool, object) = (relaxed.pool, mr.address());
    let Some(id) = pool.release_last(object, relaxed.cleaner.now()) else {
        return release_otherwise(relaxed, object);
    };
    if relaxed.cleaner.is_dormant() || !pool.account.all_fits() {
        left_idle(relaxed, id);
    }
    true
}

#[inline(never)]
fn release_otherwise(relaxed: &Instance, object: usize) -> bool {
    let pool = relaxed.pool;
    let Some(handle) = pool.handle(object) else {
        return false;
    };
    let id = handle.region;
    match pool.release(handle, relaxed.cleaner.now()) {
        Some(Left::InUse) => true,
        Some(Left::Idle) => {
            left_idle(relaxed, id);
            true
        }
        Some(Left::Spent(generation)) => {
            let errno = errno::errno();
            ending::spent(relaxed, id, generation);
            errno::set_errno(errno);
            true
        }
        None => false,
    }
}

/// A region has become idle: wakes the cleaner if it sleeps, and counts what is idle if need be.
#[inline(never)]
fn left_idle(relaxed: &Instance, id: Id) {
    let pool = relaxed.pool;
    if relaxed.cleaner.is_dormant() {
        relaxed.cleaner.idle(pool.region(id));
    }
    if !pool.account.may_be_idle(|| pool.region(id).hull()) {
        trim(relaxed, id);
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

/// Little is spare, or too much is idle. Goes on with the count of the idle regions. If too much is
/// idle, deregisters a few regions that have been idle for longer, or else the region that was just
/// released. This takes a bounded time, however many regions there are.
#[cold]
fn trim(relaxed: &Instance, released: Id) {
    /// The slots that the count looks at for each release: 0.5 us.
    const SLOTS: u32 = 128;
    if thread::is_inside() {
        relaxed.cleaner.wake();
        return;
    }
    let errno = errno::errno();
    let _inside = thread::enter();
    let (pool, account) = (relaxed.pool, &relaxed.pool.account);
    if account.is_over() {
        relaxed.read_old_limits(limits::MOMENT);
    }
    let mut batch = Batch::new();
    let Some(locked) = pool.lock_of_program() else {
        relaxed.cleaner.wake();
        return;
    };
    relaxed.apply(&locked, By::Program);
    let too_large = pool.region(released).hull().bytes() as i64 > account.limit().bytes;
    let ends = too_large && locked.claim_released(released);
    locked.count_idle(SLOTS, &mut batch, relaxed.cleaner.now());
    let ends = ends || (account.is_over() && locked.claim_released(released));
    drop(locked);
    if ends {
        let _ = ending::end(relaxed, released, By::Program);
    }
    for &id in batch.ids() {
        // A region that the kernel refuses to deregister stays unused. The cleaner tries again.
        let _ = ending::end(relaxed, id, By::Program);
    }
    errno::set_errno(errno);
}
