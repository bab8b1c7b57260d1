// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log of changes of the address space. Writers record each change of memory that they make or
//! learn of. Before a registration reuses a region, it verifies that every recorded change has been
//! applied.
//!
//! Writers are the interposed memory calls, in any thread and any signal handler, and the reader of
//! userfaultfd. They take no lock and never wait: a writer that finds the log full marks it as
//! lost, which invalidates every region. Readers apply the log one at a time, under the cache's
//! lock.
//!
//! A change is *under way* from before its first record is written until after its last. An
//! interposed call is under way around the real call, and names the range that it may change. The
//! reader is under way while it reads and records an event. It counts for all memory, because it
//! does not know the range before it has read the event. The log is *settled* for a range when
//! every record is applied and no change under way may touch the range. So no thread waits for a
//! change of other memory.

use rdmamr_sys::atomics::{AtomicU64, Ordering::*, fence};
use rdmamr_sys::pages::PageRange;

/// The kind of a change.
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    pub range: PageRange,
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

/// A range in which a change is under way.
#[repr(C)]
struct Place {
    /// The number of times that the place was used, and in the lower bits [`VACANT`], [`CLAIMED`]
    /// or [`NAMED`].
    word: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

impl Place {
    /// The range, which another change may be writing meanwhile.
    fn range(&self) -> PageRange {
        PageRange::new(self.start.load(Relaxed), self.end.load(Relaxed))
    }
}

const STATE: u64 = 3;
const VACANT: u64 = 0;
/// A thread is writing the range. Its change has not begun.
const CLAIMED: u64 = 1;
const NAMED: u64 = 2;
const USE: u64 = 4;

/// How many changes can name their ranges at a time. Any further change counts for all memory.
const PLACES: usize = if cfg!(any(loom, miri)) { 2 } else { 64 };

/// In `under_way`: one change that names its range, and one that may change any memory.
const SOMEWHERE: u64 = 1;
const ANYWHERE: u64 = 1 << 32;
/// A flag in `under_way`: no hit may succeed any more.
const NEVER_SETTLED: u64 = 1 << 63;

/// For how many ms a call on much memory counts.
const LONGEST: u64 = 2000;

/// How many calls on much memory count at a time.
const LONG_CALLS: usize = 4;

/// A call on much memory that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Long {
    number: usize,
    until: u64,
}

/// How many changes the log holds before one is applied.
const ROOM: u64 = if cfg!(any(loom, miri)) { 2 } else { 4096 };

/// A flag in `written`: a change did not fit.
const LOST: u64 = 1 << 63;

/// The log. Zeroed memory is an empty log. A hit reads the first three words, which are the end of
/// a cache line ([`crate::layout::Regions`]).
#[repr(C)]
pub struct Log {
    /// The changes under way: [`SOMEWHERE`] and [`ANYWHERE`].
    under_way: AtomicU64,
    /// The number of records that are written or being written, and the flag [`LOST`].
    written: AtomicU64,
    /// The number of records applied.
    applied: AtomicU64,
    /// The number of places that were ever used.
    used: AtomicU64,
    /// For each interposed call under way on much memory, the time until which it counts, by the
    /// kernel's clock in ms; 0 if there is no call. (A signal handler may leave a call by
    /// siglongjmp(3). That call counts no longer than this, and no other call counts longer because
    /// of it.)
    long: [AtomicU64; LONG_CALLS],
    /// The number of regions linked so far.
    linked: AtomicU64,
    rest_of_line: [u64; 7],
    places: [Place; PLACES],
    slots: [LogSlot; ROOM as usize],
}

/// A change that is under way in a range: its place, or `None` if it counts for all memory.
#[must_use = "the change is under way until `end_at`"]
pub struct Announced(Option<InPlace>);

/// A change in a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct InPlace {
    number: usize,
    word: u64,
}

/// The state of the log when every written record had been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position(u64);

impl Log {
    /// How many of its first bytes each hit reads.
    #[cfg(not(loom))]
    pub const READ_BY_HITS: usize = 3 * size_of::<AtomicU64>();

    /// An empty log, for tests. The cache's log lies in zeroed memory.
    #[cfg(test)]
    pub fn new() -> Log {
        Log {
            under_way: AtomicU64::new(0),
            written: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            used: AtomicU64::new(0),
            long: core::array::from_fn(|_| AtomicU64::new(0)),
            linked: AtomicU64::new(0),
            rest_of_line: [0; 7],
            places: core::array::from_fn(|_| Place {
                word: AtomicU64::new(0),
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
            }),
            slots: core::array::from_fn(|_| LogSlot {
                turn: AtomicU64::new(0),
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                kind: AtomicU64::new(0),
            }),
        }
    }

    /// Announces a change of any memory: it is under way from now on.
    pub fn begin(&self) {
        // SeqCst: the caller's next step is a system call, which must not be seen before this
        // announcement.
        self.under_way.fetch_add(ANYWHERE, SeqCst);
    }

    /// Ends the change that `begin` announced. All of its records have been written.
    pub fn end(&self) {
        self.under_way.fetch_sub(ANYWHERE, Release);
    }

    /// Makes every later hit fail, without a wait: announces a change that never ends.
    pub fn distrust(&self) {
        self.under_way.fetch_or(NEVER_SETTLED, SeqCst);
    }

    /// Whether no hit may succeed any more.
    pub fn is_distrusted(&self) -> bool {
        self.under_way.load(Acquire) & NEVER_SETTLED != 0
    }

    /// Announces a change in a range: it is under way from now on.
    pub fn begin_at(&self, range: PageRange) -> Announced {
        for (n, place) in self.places.iter().enumerate() {
            let word = place.word.load(Relaxed);
            if word & STATE != VACANT
                || place
                    .word
                    .compare_exchange(word, word | CLAIMED, Acquire, Relaxed)
                    .is_err()
            {
                continue;
            }
            // A thread that reads a part of the new range sees that the word has changed.
            fence(Release);
            place.start.store(range.start, Relaxed);
            place.end.store(range.end, Relaxed);
            let word = word | NAMED;
            self.used.fetch_max(n as u64 + 1, Relaxed);
            // The thread that ends the change subtracts this again. So the change is counted before
            // it is named.
            self.under_way.fetch_add(SOMEWHERE, SeqCst);
            // SeqCst: the caller's next step is a system call, which must not be seen before this
            // announcement.
            place.word.swap(word, SeqCst);
            return Announced(Some(InPlace { number: n, word }));
        }
        self.begin();
        Announced(None)
    }

    /// Ends the change that `begin_at` announced. All of its records have been written.
    pub fn end_at(&self, announced: Announced) {
        let Some(InPlace { number, word }) = announced.0 else {
            return self.end();
        };
        let vacant = (word & !(USE - 1)) + USE;
        self.places[number].word.store(vacant, Release);
        self.under_way.fetch_sub(SOMEWHERE, Release);
    }

    /// A call on much memory begins: it may hold the kernel's mmap lock for long. `None` if so many
    /// are under way that this one does not matter.
    pub fn begin_long(&self, now: u64) -> Option<Long> {
        let until = now + LONGEST;
        self.long.iter().enumerate().find_map(|(number, place)| {
            let was = place.load(Relaxed);
            let taken = was <= now && place.compare_exchange(was, until, Relaxed, Relaxed).is_ok();
            taken.then_some(Long { number, until })
        })
    }

    /// A call on much memory has ended.
    pub fn end_long(&self, Long { number, until }: Long) {
        // If the call took longer than it counts, the place may belong to another call.
        let _ = self.long[number].compare_exchange(until, 0, Relaxed, Relaxed);
    }

    /// Whether a call on much memory is under way.
    pub fn is_long(&self, now: impl Fn() -> u64) -> bool {
        let latest = self.long.iter().map(|place| place.load(Relaxed)).max();
        latest.is_some_and(|until| until != 0 && now() < until)
    }

    /// Whether a change under way may change a range.
    ///
    /// A place that another change takes over while this function reads it does not matter: the
    /// records of the change that left the place are written, and the caller looks for records
    /// next.
    #[cold]
    fn touches(&self, range: PageRange) -> bool {
        let used = self.used.load(Acquire) as usize;
        let mut places = self.places.iter().take(used);
        self.under_way.load(Acquire) >= ANYWHERE
            || places.any(|place| {
                let word = place.word.load(Acquire);
                let named = place.range();
                fence(Acquire);
                // A range that was read in part counts as any range.
                word & STATE == NAMED && (place.word.load(Relaxed) != word || named.overlaps(range))
            })
    }

    /// A region is about to be linked, and pinned after that. Under the cache's lock.
    pub fn link(&self) {
        let linked = self.linked.load(Relaxed);
        self.linked.store(linked.wrapping_add(1), Release);
    }

    /// The number of regions linked so far, for [`Log::write_again`].
    pub fn linked(&self) -> u64 {
        self.linked.load(Acquire)
    }

    /// Records a change a second time, after it is made. The first record precedes the change, and
    /// `linked` was read before that record. If no region has been linked since, the first record
    /// is enough: the thread that applies it meets every region that was pinned before the change.
    /// (A region is watched between its link and its pin. So the kernel's mmap lock orders this
    /// check after the link of a region that was pinned before the change.)
    pub fn write_again(&self, change: Change, linked: u64) {
        if self.linked() != linked {
            self.write(change);
        }
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
                slot.start.store(change.range.start, Relaxed);
                slot.end.store(change.range.end, Relaxed);
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

    /// The state of the log if every record is applied. The last records of changes under way are
    /// still to come; [`Log::still`] looks for those changes.
    #[inline(always)]
    pub fn applied(&self) -> Option<Position> {
        let written = self.written.load(Acquire);
        (written == self.applied.load(Acquire)).then_some(Position(written))
    }

    /// Whether every record is applied and no change is under way in this range.
    pub fn is_settled(&self, range: PageRange) -> bool {
        self.applied()
            .is_some_and(|position| self.still(position, range))
    }

    /// Whether no record has been written since `position`, and no change is under way in this
    /// range.
    #[inline(always)]
    pub fn still(&self, position: Position, range: PageRange) -> bool {
        (self.under_way.load(Acquire) == 0 || !self.touches(range))
            && self.written.load(Acquire) == position.0
    }

    /// Whether a record is not applied yet.
    pub fn is_behind(&self) -> bool {
        self.written.load(Acquire) != self.applied.load(Relaxed)
    }

    /// Applies the records: calls `each` with every change, or with `None` if some were lost, which
    /// stands for any change. Stops at a record that is still being written. The caller holds the
    /// cache's lock.
    pub fn apply(&self, mut each: impl FnMut(Option<Change>)) {
        let mut position = self.applied.load(Relaxed);
        loop {
            let (slot, turn) = (self.slot(position), 2 * (position / ROOM));
            if slot.turn.load(Acquire) != turn + 1 {
                break;
            }
            each(Some(Change {
                range: PageRange::new(slot.start.load(Relaxed), slot.end.load(Relaxed)),
                kind: kind(slot.kind.load(Relaxed)),
            }));
            slot.turn.store(turn + 2, Release);
            position += 1;
        }
        let written = self.written.load(Acquire);
        if written == position | LOST {
            each(None);
            // The call above also covers a writer that finds the mark between the two steps. Only
            // regions that are linked from now on could miss that writer's record: linking takes
            // the lock that is held here. If the record comes before the real call, the writer sees
            // that they were linked, and writes a second one. If it comes after the real call, none
            // of them was pinned before the change.
            //
            // No writer fills a slot while the mark is set. This slot stays empty, so that a hit
            // that began before the loss meets another number, and not the one that it knows.
            let turn = 2 * (position / ROOM);
            self.slot(position).turn.store(turn + 2, Release);
            let _ = self
                .written
                .compare_exchange(written, position + 1, SeqCst, Relaxed);
            position += 1;
        }
        self.applied.store(position, Release);
    }
}

fn kind(number: u64) -> Kind {
    const KINDS: [Kind; 4] = [Kind::Called, Kind::Reported, Kind::Dropping, Kind::Lost];
    // An unknown number does not tell which memory has changed, so all of it counts as lost.
    KINDS.get(number as usize).copied().unwrap_or(Kind::Lost)
}
