// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many mappings the process can afford: watched memory splits mappings, and the kernel limits
//! their number (vm.max_map_count).

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering::*};
use rdmamr_sys::budget::Budget;
use rdmamr_sys::clock;
use rdmamr_sys::proc;

/// A register call may split the first and the last mapping of its range.
const SPLITS: i64 = 2;

/// How many splits are made before the mappings are counted for the first time, if they can be
/// counted.
const UNCOUNTED: i64 = 4 * SPLITS;

/// The mappings are counted.
const COUNTED: u32 = 0;
/// Much of the room is used up: the mappings are to be counted again.
const DUE: u32 = 1;
/// The limits reader has been asked to count them.
const ASKED: u32 = 2;

/// How many more mappings the process can afford.
pub struct Mappings {
    /// The number of further splits that the process can afford.
    room: AtomicI64,
    /// The value of `room` when the mappings were last counted.
    room_at_most: AtomicI64,
    /// The state of the count: [`COUNTED`], [`DUE`] or [`ASKED`].
    state: AtomicU32,
    /// For counting the mappings, which takes 15 ms if there are 50 000.
    counting: Budget<0>,
}

impl Mappings {
    pub(super) fn new() -> Mappings {
        Mappings {
            room: AtomicI64::new(if proc::has_maps() { UNCOUNTED } else { 0 }),
            room_at_most: AtomicI64::new(UNCOUNTED),
            state: AtomicU32::new(DUE),
            counting: Budget::default(),
        }
    }

    /// Whether the process can afford more mappings. At three quarters of the mappings that the
    /// kernel allows, the cache watches no further memory. The mappings are to be counted when, by
    /// a worst-case estimate, half of the room up to there is used up.
    pub(super) fn has_room(&self) -> bool {
        !self.is_full() && self.room.fetch_sub(SPLITS, Relaxed) > SPLITS
    }

    /// Whether by a worst-case estimate the process can afford no more mappings.
    pub fn is_full(&self) -> bool {
        self.room.load(Relaxed) <= SPLITS
    }

    /// Whether the limits reader should count the mappings now. The caller asks it to.
    pub fn should_be_counted(&self) -> bool {
        let is_due = match self.state.load(Relaxed) {
            COUNTED => self.room.load(Relaxed) < self.room_at_most.load(Relaxed) / 2,
            due => due == DUE,
        };
        is_due
            && self.counting.allows(clock::monotonic())
            && self.state.swap(ASKED, Relaxed) != ASKED
    }

    /// Counts the mappings if that was asked. The caller has a table of descriptors of its own.
    pub fn count(&self) {
        if self.state.load(Relaxed) != ASKED {
            return;
        }
        self.counting.within(clock::monotonic_by_kernel, || {
            // If the kernel does not tell the number of mappings, there is no room.
            let (count, most) = proc::mappings().unwrap_or_default();
            let room = (most / 4 * 3) as i64 - count as i64;
            let enough = room > SPLITS * 16;
            self.room_at_most.store(room.max(0), Relaxed);
            self.room.store(if enough { room } else { -1 }, Relaxed);
            self.state
                .store(if enough { COUNTED } else { DUE }, Relaxed);
        });
    }

    /// Whether mappings are short, so that the memory of ended regions should not stay watched.
    pub fn is_crowded(&self) -> bool {
        self.room.load(Relaxed) * 4 < self.room_at_most.load(Relaxed) * 3
    }
}
