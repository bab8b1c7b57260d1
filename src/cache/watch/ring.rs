// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of events: the changes of memory that userfaultfd reports. The reader alone writes events,
//! and waits for no thread. Threads apply it one at a time, under the cache's lock. Before a
//! registration reuses a region, it verifies that every event is applied.
//!
//! An interposed call does not write here: it invalidates regions itself (`life/change.rs`). If it
//! cannot, and the kernel has no event of its change, it records a *loss*, as the reader does when the
//! ring is full: a loss stands for a change of all memory.

use rdmamr_sys::atomics::{AtomicU64, Ordering::*};
use rdmamr_sys::pages::PageRange;

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The range has changed.
    Changed,
    /// The range's pages are about to be dropped. The reader has read that at this time, in ns.
    Dropping { at: u64 },
    /// userfaultfd reports nothing any more.
    Broken,
}

impl Kind {
    const KIND: u64 = 3;

    /// As a place stores it: the kind in the lowest two bits, the time above them.
    fn in_word(self) -> u64 {
        match self {
            Kind::Changed => 1,
            Kind::Dropping { at } => at << 2 | 2,
            Kind::Broken => 3,
        }
    }

    /// What a place stores.
    fn from_word(word: u64) -> Kind {
        match word & Kind::KIND {
            1 => Kind::Changed,
            2 => Kind::Dropping { at: word >> 2 },
            _ => Kind::Broken,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    pub range: PageRange,
    pub kind: Kind,
}

#[repr(C)]
struct Place {
    start: AtomicU64,
    end: AtomicU64,
    kind: AtomicU64,
}

impl Place {
    fn range(&self) -> PageRange {
        PageRange::new(self.start.load(Acquire), self.end.load(Acquire))
    }
}

/// How long after its report a drop may happen, in ns.
const LONGEST: u64 = 1_000_000_000;

/// How many events the ring holds before one is applied.
const ROOM: usize = if cfg!(any(loom, miri)) { 2 } else { 4096 };

/// In `reading`: no hit may succeed any more.
const NO_HIT: u64 = 1 << 63;

/// In `written`: one loss. The lower half counts events. (When it overflows, after 2^32 events, that
/// counts as a loss.)
const LOSS: u64 = 1 << 32;

/// The ring. Zeroed memory is an empty ring. A hit reads the first three words, which are the end of
/// a cache line ([`crate::regions::Regions`]).
#[repr(C)]
pub struct Ring {
    /// 1 while the reader reads and writes events, and the flag [`NO_HIT`].
    reading: AtomicU64,
    /// The number of events written, and of losses ([`LOSS`]).
    written: AtomicU64,
    /// The value of `written` up to which all is applied.
    applied: AtomicU64,
    /// When the last report of pages that are about to be dropped was written, and when one was last
    /// left out, or written over too soon. In ns; 0 means never.
    dropping: AtomicU64,
    forgotten: AtomicU64,
    places: [Place; ROOM],
}

/// The state of the ring when all of it had been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position(u64);

impl Ring {
    /// How many of its first bytes each hit reads.
    #[cfg(not(loom))]
    pub const READ_BY_HITS: usize = 3 * size_of::<AtomicU64>();

    /// An empty ring, for tests. The cache's ring lies in zeroed memory.
    #[cfg(test)]
    pub fn new() -> Ring {
        let zero = || AtomicU64::new(0);
        Ring {
            reading: zero(),
            written: zero(),
            applied: zero(),
            dropping: zero(),
            forgotten: zero(),
            places: core::array::from_fn(|_| Place {
                start: zero(),
                end: zero(),
                kind: zero(),
            }),
        }
    }

    /// The reader is about to read events.
    pub fn announce(&self) {
        // SeqCst: the caller's next step is a system call, which must not be seen before this.
        self.reading.fetch_add(1, SeqCst);
    }

    /// The reader has written all events that it has read.
    pub fn finish(&self) {
        self.reading.fetch_sub(1, Release);
    }

    /// Writes an event. For the reader, between `announce` and `finish`.
    pub fn write(&self, event: Event) {
        let written = self.written.load(Relaxed);
        let behind = (written as u32).wrapping_sub(self.applied.load(Acquire) as u32);
        let place = self.place(written as u32);
        let is_full = behind as usize >= ROOM;
        if let Kind::Dropping { at } = event.kind {
            self.dropping.store(at, Release);
        }
        let latest = self.dropping.load(Relaxed);
        let left_out = if is_full {
            event.kind
        } else {
            Kind::from_word(place.kind.load(Relaxed))
        };
        if matches!(left_out, Kind::Dropping { at } if latest < at + LONGEST) {
            self.forgotten.store(latest, Relaxed);
        }
        if is_full {
            return self.lose();
        }
        // Release: a thread that sees a part of this event sees that the earlier one is forgotten.
        place.start.store(event.range.start, Release);
        place.end.store(event.range.end, Release);
        place.kind.store(event.kind.in_word(), Release);
        self.written.fetch_add(1, SeqCst);
    }

    /// Records a loss: all memory may change from now on. Any thread may call this, in a signal
    /// handler too.
    pub fn lose(&self) {
        self.written.fetch_add(LOSS, SeqCst);
    }

    /// Makes every later hit fail, for good.
    pub fn distrust(&self) {
        self.reading.fetch_or(NO_HIT, SeqCst);
    }

    /// Whether no hit may succeed any more.
    pub fn is_distrusted(&self) -> bool {
        self.reading.load(Acquire) & NO_HIT != 0
    }

    /// The state of the ring if all of it is applied. The reader may be reading further events;
    /// [`Ring::still`] asks that.
    #[inline(always)]
    pub fn applied(&self) -> Option<Position> {
        let written = self.written.load(Acquire);
        (written == self.applied.load(Acquire)).then_some(Position(written))
    }

    /// Whether nothing has been written since `position`, and the reader is not reading.
    #[inline(always)]
    pub fn still(&self, position: Position) -> bool {
        self.reading.load(Acquire) == 0 && self.written.load(Acquire) == position.0
    }

    /// Waits a moment while the reader reads. It needs a processor, as this thread does.
    pub fn wait_for_reader(&self) {
        const YIELDS: u32 = 16;
        let reads = || self.reading.load(Acquire) & !NO_HIT != 0;
        for _ in 0..YIELDS {
            if !reads() {
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Whether all is applied, and the reader is not reading.
    pub fn is_settled(&self) -> bool {
        self.applied().is_some_and(|position| self.still(position))
    }

    /// Whether something is not applied yet.
    pub fn is_behind(&self) -> bool {
        self.applied().is_none()
    }

    fn place(&self, number: u32) -> &Place {
        &self.places[number as usize % ROOM]
    }

    /// Applies what was written: calls `each` with every event, or with `None` for a loss. The
    /// caller holds the cache's lock.
    ///
    /// A loss that comes beside this is applied by the next call. No region that is linked by then
    /// escapes it: linking takes the lock too.
    pub fn apply(&self, mut each: impl FnMut(Option<Event>)) {
        let (from, to) = (self.applied.load(Relaxed), self.written.load(Acquire));
        if from / LOSS != to / LOSS {
            each(None);
        } else {
            for number in from as u32..to as u32 {
                let place = self.place(number);
                each(Some(Event {
                    range: place.range(),
                    kind: Kind::from_word(place.kind.load(Acquire)),
                }));
            }
        }
        // The reader may write over these places from now on.
        self.applied.store(to, Release);
    }

    /// Whether pages of a range may be about to be dropped, by a report of the last second. `now` is
    /// the time in ns. Under the cache's lock, once all is applied.
    ///
    /// No other event of userfaultfd comes before its change. A region that is pinned between such a
    /// report and the drop becomes stale without an event, so the cache keeps no region there. That is
    /// a bound in time, and not a proof. (The hook of an interposed madvise mostly stops watching the
    /// memory first.)
    pub fn may_be_dropping(&self, range: PageRange, now: impl FnOnce() -> u64) -> bool {
        let latest = self.dropping.load(Acquire);
        if latest == 0 {
            return false;
        }
        let oldest = now().saturating_sub(LONGEST);
        if latest <= oldest {
            return false;
        }
        let written = self.written.load(Acquire) as u32;
        for back in 1..=ROOM as u32 {
            let place = self.place(written.wrapping_sub(back));
            let word = place.kind.load(Acquire);
            match Kind::from_word(word) {
                Kind::Dropping { at } if at <= oldest => break,
                Kind::Dropping { .. } if range.overlaps(place.range()) => return true,
                // Never written.
                _ if word == 0 => break,
                _ => {}
            }
        }
        self.forgotten.load(Acquire) > oldest
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const STEP: u64 = LONGEST / 10;

    fn range(n: u64) -> PageRange {
        PageRange::new(n * 100, n * 100 + 10)
    }

    fn report(ring: &Ring, n: u64, at: u64) {
        ring.write(Event {
            range: range(n),
            kind: Kind::Dropping { at },
        });
    }

    #[test]
    fn pages_may_be_dropped_for_a_second() {
        let ring = Ring::new();
        let start = 5 * LONGEST;
        assert!(!ring.may_be_dropping(PageRange::ALL, || 1));
        report(&ring, 1, start);
        report(&ring, 2, start + STEP);
        let may_be = |n, now| ring.may_be_dropping(range(n), || now);
        assert!(may_be(1, start) && may_be(1, start + LONGEST - 1) && may_be(2, start + LONGEST));
        assert!(!may_be(1, start + LONGEST) && !may_be(2, start + STEP + LONGEST));
        assert!(!may_be(3, start));
    }

    #[test]
    fn no_report_is_forgotten_before_its_time() {
        let ring = Ring::new();
        let start = 5 * LONGEST;
        let other = Event {
            range: range(0),
            kind: Kind::Changed,
        };
        report(&ring, 1, start);
        (1..ROOM).for_each(|_| ring.write(other));
        ring.apply(|_| ());
        assert!(ring.may_be_dropping(range(1), || start));
        assert!(!ring.may_be_dropping(range(2), || start));
        // Written over.
        ring.write(other);
        ring.apply(|_| ());
        assert!(ring.may_be_dropping(range(1), || start + LONGEST - 1));
        assert!(!ring.may_be_dropping(range(1), || start + LONGEST));
        // Left out, because the ring is full.
        (0..ROOM).for_each(|_| ring.write(other));
        report(&ring, 1, start + 2 * LONGEST);
        assert!(ring.is_behind() && ring.may_be_dropping(range(1), || start + 2 * LONGEST));
        ring.apply(|_| ());
        // An old one does no harm.
        report(&ring, 1, start + 4 * LONGEST);
        (1..ROOM).for_each(|_| ring.write(other));
        ring.apply(|_| ());
        report(&ring, 2, start + 6 * LONGEST);
        assert!(!ring.may_be_dropping(range(1), || start + 6 * LONGEST));
        assert!(ring.may_be_dropping(range(2), || start + 6 * LONGEST));
    }
}
