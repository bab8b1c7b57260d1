// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log of changes of the address space. Writers record each change of memory that they make or
//! hear of. Before a registration uses a region again, it makes sure that every recorded change has
//! been applied.
//!
//! Writers are the interposed memory calls, in any thread and any signal handler, and the monitor
//! of userfaultfd. They take no lock and never wait: a writer that finds the log full marks it as
//! lost, which withdraws every region. Readers apply the log one at a time, under the pool's lock.
//!
//! A change is *under way* from before its first record is written until after its last. An
//! interposed call is under way around the real call; the monitor is under way around reading an
//! event and recording it. The log is *settled* when nothing is under way and every record is
//! applied.

use super::sync::{AtomicU64, Ordering::*};

/// What happened to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Kind {
    /// An interposed call changes the range.
    Called,
    /// userfaultfd reports that the range has changed.
    Reported,
    /// userfaultfd reports that the range's pages are about to be dropped, which may still take a
    /// moment.
    Dropping,
    /// userfaultfd reports nothing any more.
    Lost,
}

/// A change of memory, from `start` up to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    pub start: u64,
    pub end: u64,
    pub kind: Kind,
}

#[repr(C)]
struct LogSlot {
    /// Twice the round in which the slot is to be filled, plus one once it is filled.
    turn: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    kind: AtomicU64,
}

/// How many changes the log holds before one is applied.
const ROOM: u64 = if cfg!(any(loom, miri)) { 2 } else { 4096 };

/// A flag in `written`: a change did not fit.
const LOST: u64 = 1 << 63;

/// The log. Zeroed memory is an empty log.
#[repr(C, align(128))]
pub struct Changes {
    under_way: AtomicU64,
    /// Changes that are written or just being written, and the flag [`LOST`].
    written: AtomicU64,
    /// Changes applied.
    applied: AtomicU64,
    rest_of_line: [u64; 13],
    slots: [LogSlot; ROOM as usize],
}

/// The state of the log when all that was written had been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled(u64);

impl Changes {
    /// An empty log, for tests. The pool's log lies in zeroed memory.
    #[cfg(all(test, loom))]
    pub fn new() -> Changes {
        Changes {
            under_way: AtomicU64::new(0),
            written: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            rest_of_line: [0; 13],
            slots: core::array::from_fn(|_| LogSlot {
                turn: AtomicU64::new(0),
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                kind: AtomicU64::new(0),
            }),
        }
    }

    /// Announces a change: it is under way from now on.
    pub fn begin(&self) {
        // SeqCst: the caller's next step is a system call, which must not be seen before this
        // announcement.
        self.under_way.fetch_add(1, SeqCst);
    }

    /// Ends what `begin` announced. All of its records have been written.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Release);
    }

    /// Records a change. Called between `begin` and `end`.
    pub fn write(&self, change: Change) {
        let mut written = self.written.load(Relaxed);
        loop {
            if written & LOST != 0 {
                return;
            }
            let (slot, turn) = (self.slot(written), 2 * (written / ROOM));
            let now = slot.turn.load(Acquire);
            if now < turn {
                self.written.fetch_or(LOST, SeqCst);
                return;
            }
            if now == turn
                && self
                    .written
                    .compare_exchange(written, written + 1, SeqCst, Relaxed)
                    .is_ok()
            {
                slot.start.store(change.start, Relaxed);
                slot.end.store(change.end, Relaxed);
                slot.kind.store(change.kind as u64, Relaxed);
                slot.turn.store(turn + 1, Release);
                return;
            }
            written = self.written.load(Relaxed);
        }
    }

    fn slot(&self, position: u64) -> &LogSlot {
        &self.slots[(position % ROOM) as usize]
    }

    /// The state of the log if every record is applied. Changes that are under way have their last
    /// record still to come; [`Changes::still`] looks for those.
    #[inline(always)]
    pub fn applied(&self) -> Option<Settled> {
        let written = self.written.load(Acquire);
        (written == self.applied.load(Acquire)).then_some(Settled(written))
    }

    /// The state of the log if every record is applied and nothing is under way.
    pub fn settled(&self) -> Option<Settled> {
        self.applied().filter(|&settled| self.still(settled))
    }

    /// Whether no record has been written since, and nothing is under way.
    #[inline(always)]
    pub fn still(&self, settled: Settled) -> bool {
        self.under_way.load(Acquire) == 0 && self.written.load(Acquire) == settled.0
    }

    /// Whether a record is not applied yet.
    pub fn is_behind(&self) -> bool {
        self.written.load(Acquire) != self.applied.load(Relaxed)
    }

    /// Applies the records: calls `each` with every change, or with `None` if some were lost, which
    /// stands for any change. Stops at a record that is just being written. The caller holds the
    /// pool's lock.
    pub fn apply(&self, mut each: impl FnMut(Option<Change>)) {
        let mut position = self.applied.load(Relaxed);
        loop {
            let (slot, turn) = (self.slot(position), 2 * (position / ROOM));
            if slot.turn.load(Acquire) != turn + 1 {
                break;
            }
            each(Some(Change {
                start: slot.start.load(Relaxed),
                end: slot.end.load(Relaxed),
                kind: kind(slot.kind.load(Relaxed)),
            }));
            slot.turn.store(turn + 2, Release);
            position += 1;
        }
        let written = self.written.load(Acquire);
        if written == position | LOST {
            each(None);
            // The call above also covers a writer that finds the mark between the two steps. If
            // that writer's record comes before its real call, it will write a second one. If the
            // record comes after the real call, only regions that are linked from now on could miss
            // it, and none of those has been pinned yet: linking takes the lock that is held here.
            let _ = self
                .written
                .compare_exchange(written, position, SeqCst, Relaxed);
        }
        self.applied.store(position, Release);
    }
}

fn kind(number: u64) -> Kind {
    const KINDS: [Kind; 4] = [Kind::Called, Kind::Reported, Kind::Dropping, Kind::Lost];
    // A number that is no kind says nothing of what has changed: all is lost.
    KINDS.get(number as usize).copied().unwrap_or(Kind::Lost)
}
