// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranges of this process that were registered plainly and released. Under `RDMAMR_CACHE` the
//! cache keeps a region once its range comes back; until then its registrations are plain.
//!
//! The table is part of this library's zeroed memory, so it costs nothing in a process without a
//! cache. A forked child has its parent's ranges, which are memory of the child too.

use crate::region::slot::{Cause, Slot};
use crate::watch::calls::{TO_RANGES, listen};
use core::sync::atomic::Ordering::Relaxed;
use rdmamr_policy::{Range, Released, is_remote};
use rdmamr_sys::pages::PageRange;

pub static RELEASED: Released = Released::new();

/// A region has ended. (If the region could not be kept, its range is still in the table. An interposed
/// call has already removed the range, unless that began far behind the changed memory's start.)
pub fn ended(region: &Slot, cause: Cause) {
    let was_used = region.hits() > 0 || region.was_shared.load(Relaxed) != 0;
    let has_changed = match cause {
        Cause::Hook if !was_used => return RELEASED.give_up(&region.range()),
        Cause::Uncertain | Cause::Hook => return,
        Cause::Event => true,
        // A region of a whole allocation costs more than one of the memory that was asked for.
        Cause::Linger => region.is_of_gpu() && !is_remote(region.access()),
        Cause::Flush | Cause::Watermark | Cause::Pressure => false,
    };
    RELEASED.ended(&region.range(), was_used, has_changed);
}

/// The next registration of this range comes back: a plain region of it is about to be deregistered, or
/// memory of a GPU was registered there.
pub fn add(range: &Range) {
    RELEASED.add(range);
    listen(TO_RANGES);
}

/// The memory of this range changes: the next registration there counts as the first.
#[inline(never)]
pub fn memory_changes(addr: usize, length: usize) {
    if let Some(page_range) = PageRange::around(addr as u64, length as u64) {
        RELEASED.forget(page_range.start, page_range.end);
    }
}
