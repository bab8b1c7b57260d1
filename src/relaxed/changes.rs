// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log of changes of the address space: who changes memory, or hears of it, writes down which; who
//! wants to use a region again first makes sure that all that is written down has been applied.
//!
//! Writers are the interposed memory calls, in any thread and any signal handler, and the monitor of
//! userfaultfd. They take no lock and never wait: a writer that finds the log full marks it as lost, which
//! withdraws every region. Readers apply the log one at a time, under the pool's lock.
//!
//! A change is *under way* from before the writer writes until after it has written for the last time. For
//! an interposed call that is around the real call, for the monitor around reading an event and writing it
//! down. `settled` is true when nothing is under way and all is applied.

use super::sync::{AtomicU64, Ordering::*};

/// What happened to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Kind {
    /// An interposed call changes it.
    Called,
    /// userfaultfd reports that it has changed.
    Reported,
    /// userfaultfd reports that its pages are about to be dropped; that may still take a moment.
    Dropping,
    /// It is a new shared mapping of memory that others can change.
    Shared,
    /// It is a new System V segment.
    Segment,
    /// A segment that begins there, of which only the start is known, is detached.
    Detached,
    /// A file is cut, no matter where.
    Files,
    /// Nothing is reported any more.
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
struct Slot {
    /// Twice the round in which it is to be filled; one more when it is filled.
    turn: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    kind: AtomicU64,
}

/// Room for changes that nobody has applied yet.
const ROOM: u64 = if cfg!(any(loom, miri)) { 2 } else { 4096 };

/// In `written`: a change did not fit.
const LOST: u64 = 1 << 63;

/// The log. All zeros is an empty one.
#[repr(C, align(128))]
pub struct Changes {
    under_way: AtomicU64,
    /// Changes written, or just being written; and [`LOST`].
    written: AtomicU64,
    /// Changes applied.
    applied: AtomicU64,
    rest_of_line: [u64; 13],
    slots: [Slot; ROOM as usize],
}

/// The log as it was when it was settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled(u64);

impl Changes {
    /// An empty log, for tests; others have it in zeroed memory.
    #[cfg(all(test, loom))]
    pub fn new() -> Changes {
        Changes {
            under_way: AtomicU64::new(0),
            written: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            rest_of_line: [0; 13],
            slots: core::array::from_fn(|_| Slot {
                turn: AtomicU64::new(0),
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                kind: AtomicU64::new(0),
            }),
        }
    }

    /// From now a change is under way.
    pub fn begin(&self) {
        // SeqCst: what the caller does next, a system call, must not be seen before this.
        self.under_way.fetch_add(1, SeqCst);
    }

    /// What `begin` announced is over, and written down.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Release);
    }

    /// Writes a change down. Between `begin` and `end`.
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

    fn slot(&self, position: u64) -> &Slot {
        &self.slots[(position % ROOM) as usize]
    }

    /// Whether everything that is written is applied. What is under way is for [`Changes::still`] to see, since
    /// its last word is yet to be written.
    #[inline(always)]
    pub fn applied(&self) -> Option<Settled> {
        let written = self.written.load(Acquire);
        (written == self.applied.load(Acquire)).then_some(Settled(written))
    }

    /// Whether moreover nothing is under way.
    pub fn settled(&self) -> Option<Settled> {
        self.applied().filter(|&settled| self.still(settled))
    }

    /// Whether nothing has been written since, and nothing is under way.
    #[inline(always)]
    pub fn still(&self, settled: Settled) -> bool {
        self.under_way.load(Acquire) == 0 && self.written.load(Acquire) == settled.0
    }

    /// Whether something is written that is not applied.
    pub fn is_behind(&self) -> bool {
        self.written.load(Acquire) != self.applied.load(Relaxed)
    }

    /// Applies what is written: calls `each` with every change, or with `None` when some are lost, which
    /// stands for any. Stops at one that is just being written. The caller holds the pool's lock.
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
            // A writer that finds the mark between the two is covered by the call above: what it writes is
            // before its real call, and then it writes again, or after it, and no region that is linked
            // from now on, under the lock that is held here, has been pinned yet.
            let _ = self
                .written
                .compare_exchange(written, position, SeqCst, Relaxed);
        }
        self.applied.store(position, Release);
    }
}

fn kind(number: u64) -> Kind {
    const KINDS: [Kind; 8] = [
        Kind::Called,
        Kind::Reported,
        Kind::Dropping,
        Kind::Shared,
        Kind::Segment,
        Kind::Detached,
        Kind::Files,
        Kind::Lost,
    ];
    KINDS[number as usize % KINDS.len()]
}
