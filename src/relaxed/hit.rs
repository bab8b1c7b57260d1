// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a hit, on which the proof in `pool.rs` rests. The tests under loom run this very function.

use super::changes::Changes;

/// Why there is no hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss<T> {
    /// No region of the pool serves.
    None,
    /// A change of the address space is under way, or has not been applied. What was taken must be given
    /// back.
    Unsettled(Option<T>),
}

/// Takes a region, and makes sure that its translation holds. `fence` says that no event is in flight.
#[inline(always)]
pub fn hit<T>(
    changes: &Changes,
    take: impl FnOnce() -> Option<T>,
    fence: impl FnOnce() -> bool,
) -> Result<T, Miss<T>> {
    let settled = changes.applied().ok_or(Miss::Unsettled(None))?;
    let taken = take().ok_or(Miss::None)?;
    if fence() && changes.still(settled) {
        Ok(taken)
    } else {
        Err(Miss::Unsettled(Some(taken)))
    }
}
