// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a hit's steps, on which the proof in `pool.rs` rests. The loom tests run this very
//! function.

use super::changes::Changes;
use crate::sys::pages::PageRange;

/// Why a registration was no hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss<T> {
    /// No region of the pool serves.
    None,
    /// A change of the memory is under way, or has not been applied. The caller must give back the
    /// region that was taken.
    Unsettled(Option<T>),
}

/// The steps of a hit. This is a trait because its methods can be marked for inlining and closures
/// cannot: calling closures took 40 of the 470 instructions of an fi_mr_reg() and fi_close() pair.
pub trait Steps {
    type Taken;
    /// Takes a region that serves.
    fn take(&self) -> Option<Self::Taken>;
    /// Whether no event is in flight.
    fn fence(&self) -> bool;
}

/// Takes a region for this memory and verifies that its translation holds.
#[inline(always)]
pub fn hit<S: Steps>(
    changes: &Changes,
    memory: PageRange,
    steps: S,
) -> Result<S::Taken, Miss<S::Taken>> {
    let settled = changes.applied().ok_or(Miss::Unsettled(None))?;
    let taken = steps.take().ok_or(Miss::None)?;
    if steps.fence() && changes.still(settled, memory) {
        Ok(taken)
    } else {
        Err(Miss::Unsettled(Some(taken)))
    }
}
