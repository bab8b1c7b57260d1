// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of events: the changes of memory that userfaultfd reports. The reader alone writes it,
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
#[repr(u64)]
pub enum Kind {
    /// The range has changed.
    Changed,
    /// The range's pages are about to be dropped, which may still take a moment.
    Dropping,
    /// userfaultfd reports nothing any more.
    Lost,
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

/// How many events the ring holds before one is applied.
const ROOM: usize = if cfg!(any(loom, miri)) { 2 } else { 4096 };

/// In `reading`: no hit may succeed any more.
const NEVER: u64 = 1 << 63;

/// In `written`: one loss. The lower half counts events. (When it overflows, after 2^32 events, that
/// counts as a loss.)
const LOSS: u64 = 1 << 32;

/// The ring. Zeroed memory is an empty ring. A hit reads the first three words, which are the end of
/// a cache line ([`crate::layout::Regions`]).
#[repr(C)]
pub struct Ring {
    /// 1 while the reader reads and writes events, and the flag [`NEVER`].
    reading: AtomicU64,
    /// The number of events written, and of losses ([`LOSS`]).
    written: AtomicU64,
    /// The value of `written` up to which all is applied.
    applied: AtomicU64,
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
            places: core::array::from_fn(|_| Place {
                start: zero(),
                end: zero(),
                kind: zero(),
            }),
        }
    }

    /// The reader is about to read events.
    pub fn begin(&self) {
        // SeqCst: the caller's next step is a system call, which must not be seen before this.
        self.reading.fetch_add(1, SeqCst);
    }

    /// The reader has written all events that it has read.
    pub fn end(&self) {
        self.reading.fetch_sub(1, Release);
    }

    /// Writes an event. For the reader, between `begin` and `end`.
    pub fn write(&self, event: Event) {
        let written = self.written.load(Relaxed);
        let behind = (written as u32).wrapping_sub(self.applied.load(Acquire) as u32);
        if behind as usize >= ROOM {
            return self.lose();
        }
        let place = self.place(written as u32);
        place.start.store(event.range.start, Relaxed);
        place.end.store(event.range.end, Relaxed);
        place.kind.store(event.kind as u64, Relaxed);
        self.written.fetch_add(1, SeqCst);
    }

    /// Records a loss: all memory may change from now on. Any thread may call this, in a signal
    /// handler too.
    pub fn lose(&self) {
        self.written.fetch_add(LOSS, SeqCst);
    }

    /// Makes every later hit fail, for good.
    pub fn distrust(&self) {
        self.reading.fetch_or(NEVER, SeqCst);
    }

    /// Whether no hit may succeed any more.
    pub fn is_distrusted(&self) -> bool {
        self.reading.load(Acquire) & NEVER != 0
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
        let reads = || self.reading.load(Acquire) & !NEVER != 0;
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
                    range: PageRange::new(place.start.load(Relaxed), place.end.load(Relaxed)),
                    kind: kind(place.kind.load(Relaxed)),
                }));
            }
        }
        // The reader may write over these places from now on.
        self.applied.store(to, Release);
    }
}

fn kind(number: u64) -> Kind {
    const KINDS: [Kind; 3] = [Kind::Changed, Kind::Dropping, Kind::Lost];
    // An unknown number does not tell which memory has changed, so all of it counts as lost.
    KINDS.get(number as usize).copied().unwrap_or(Kind::Lost)
}
