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

/// What a hit consists of. (A trait, since its functions can be told to be inlined, and closures cannot: called,
/// they took 40 of the 470 instructions of a pair of fi_mr_reg() and fi_close().)
pub trait Steps {
    type Taken;
    /// Takes a region that serves.
    fn take(&self) -> Option<Self::Taken>;
    /// Whether no event is in flight.
    fn fence(&self) -> bool;
}

/// Takes a region, and makes sure that its translation holds.
#[inline(always)]
pub fn hit<S: Steps>(changes: &Changes, steps: S) -> Result<S::Taken, Miss<S::Taken>> {
    let settled = changes.applied().ok_or(Miss::Unsettled(None))?;
    let taken = steps.take().ok_or(Miss::None)?;
    if steps.fence() && changes.still(settled) {
        Ok(taken)
    } else {
        Err(Miss::Unsettled(Some(taken)))
    }
}
