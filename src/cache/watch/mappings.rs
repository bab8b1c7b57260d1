// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many mappings the watch may take: watched memory splits mappings, and the kernel limits
//! their number (vm.max_map_count). The watch takes at most half of those that the program leaves.

use core::sync::atomic::{AtomicBool, AtomicI64, Ordering::*};
use rdmamr_sys::aside;
use rdmamr_sys::budget::Budget;
use rdmamr_sys::clock;
use rdmamr_sys::proc;

/// A register call may split the first and the last mapping of its range.
const SPLITS: i64 = 2;

/// How many splits are made before the mappings are counted for the first time, if they can be
/// counted: twice as many as the count comes after.
const UNCOUNTED: i64 = 16 * SPLITS;

/// How many more mappings the watch may take.
pub struct Mappings {
    /// The number of further splits, by a worst-case estimate.
    room: AtomicI64,
    /// The value of `room` when the mappings were last counted.
    counted: AtomicI64,
    /// The mappings are short by the last count, or as the kernel said.
    short: AtomicBool,
    /// For counting the mappings, which takes 15 ms if there are 50 000, and more on busy processors.
    counting: Budget<100_000_000>,
}

impl Mappings {
    pub(super) fn new() -> Mappings {
        Mappings {
            room: AtomicI64::new(if proc::has_maps() { UNCOUNTED } else { 0 }),
            counted: AtomicI64::new(UNCOUNTED),
            short: AtomicBool::new(false),
            counting: Budget::default(),
        }
    }

    /// Whether the watch may split mappings once more. Counts the mappings if half of the room of
    /// the last count is used up.
    pub(super) fn has_room(&self) -> bool {
        if self.room.load(Relaxed) * 2 <= self.counted.load(Relaxed) {
            let count = || aside::run(|| self.count());
            self.counting.within(clock::monotonic, count);
        }
        self.room.load(Relaxed) > SPLITS && self.room.fetch_sub(SPLITS, Relaxed) > SPLITS
    }

    fn count(&self) {
        // If the kernel does not tell the number of mappings, there is no room.
        let [count, split, most] = proc::mappings().unwrap_or_default().map(|n| n as i64);
        let free = most - count;
        let room = (free - split) / 2;
        let room = if room > SPLITS * 16 { room } else { 0 };
        self.counted.store(room, Relaxed);
        self.room.store(room, Relaxed);
        self.short.store(free < split / 2, Relaxed);
    }

    /// The kernel has refused a split.
    pub(super) fn ran_out(&self) {
        self.room.store(0, Relaxed);
        self.short.store(true, Relaxed);
    }

    /// Whether mappings have become short, so that idle regions should give theirs back. True once
    /// for each time.
    pub fn have_run_short(&self) -> bool {
        self.short.load(Relaxed) && self.short.swap(false, Relaxed)
    }
}
