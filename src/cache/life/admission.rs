// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which regions the cache reuses: those whose memory is the process's *own*, private and of no
//! file.
//!
//! The watch sees every change of such memory. Shared memory and files change in more ways: another
//! process truncates the file, punches a hole or detaches the segment, and the cache receives no
//! event.
//!
//! The cache does not track the program's mappings. It asks the kernel once about each region, at
//! the first registration that could reuse the region. Until then the region is *new*, and a region
//! that is used once costs no question. The answer holds for these reasons:
//!
//! * A region is watched before it is pinned, and pinned before it is kept. The cache asks the
//!   kernel after that.
//! * So either the kernel's answer describes the mapping that was pinned, or a change has been
//!   reported since, and the region is invalidated (`locked.rs`) before any thread takes it.
//! * A mapping never turns from private to shared, and never gets another file.
//!
//! If the kernel does not answer, the region stays new.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use errno::{Errno, errno, set_errno};
use rdmamr_sys::aside;
use rdmamr_sys::budget::Budget;
use rdmamr_sys::clock;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::proc;
use std::sync::Mutex;

/// The kernel's answer about the memory of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// All of the memory is private and of no file.
    Own,
    /// The region overlaps this range, which is shared or of a file, or is unknown.
    Foreign(PageRange),
    /// The kernel does not answer, or cannot be asked just now.
    Unknown,
}

/// Passed in place of a region's number, if only a present answer will do.
pub const NOW: u64 = u64::MAX;

/// The process's knowledge about its mappings.
#[derive(Default)]
pub struct Admission {
    /// The kernel cannot be asked about a single mapping (that needs Linux 6.11), so all mappings
    /// are read.
    reads_all: AtomicBool,
    last: Mutex<Reading>,
    /// The time for reading all mappings, and for questions without an answer: a tenth of a second
    /// at once.
    budget: Budget<100_000_000>,
}

/// The mappings at the time of a reading, in ascending order. Adjoining mappings of one kind are
/// merged.
#[derive(Default)]
struct Reading {
    /// The regions kept before the mappings were read have at most this number.
    newest: u64,
    runs: Vec<Run>,
}

struct Run {
    range: PageRange,
    own: bool,
}

impl Admission {
    /// Asks what kind of memory lies under the region `page_range`, the `kept`th region that was
    /// kept. `newest` is the number of the region that was kept last.
    pub fn ask(&self, page_range: PageRange, kept: u64, newest: u64) -> Memory {
        let before = errno();
        let memory = self
            .ask_for_one(page_range)
            .unwrap_or_else(|| self.ask_for_all(page_range, kept, newest));
        set_errno(before);
        memory
    }

    /// `None` if the kernel cannot be asked about a single mapping.
    fn ask_for_one(&self, page_range: PageRange) -> Option<Memory> {
        if self.reads_all.load(Relaxed) {
            return None;
        }
        let start = clock::monotonic();
        if !self.budget.allows(start) {
            return Some(Memory::Unknown);
        }
        let mut runs = Vec::new();
        let mut whole = true;
        let add = |range, own| whole = whole && add(&mut runs, range, own);
        match proc::each_mapping_in(page_range, add) {
            Ok(()) if !whole => Some(Memory::Unknown),
            Ok(()) => Some(memory(&runs, page_range)),
            Err(Errno(libc::ENOTTY)) => {
                self.reads_all.store(true, Relaxed);
                None
            }
            Err(_) => {
                self.budget.spend(start, clock::monotonic());
                Some(Memory::Unknown)
            }
        }
    }

    fn ask_for_all(&self, page_range: PageRange, kept: u64, newest: u64) -> Memory {
        // Another thread is reading the mappings, which may take long.
        let Ok(mut last) = self.last.try_lock() else {
            return Memory::Unknown;
        };
        if kept > last.newest {
            let start = clock::monotonic();
            if !self.budget.allows(start) {
                return Memory::Unknown;
            }
            let read = aside::run(read).flatten();
            self.budget.spend(start, clock::monotonic());
            let Some(runs) = read else {
                return Memory::Unknown;
            };
            *last = Reading { newest, runs };
        }
        memory(&last.runs, page_range)
    }
}

/// Judges a page range by the runs, which cover at least its mapped memory.
fn memory(runs: &[Run], page_range: PageRange) -> Memory {
    let there = &runs[runs.partition_point(|run| run.range.end <= page_range.start)..];
    if there
        .first()
        .is_some_and(|run| run.own && run.range.contains(page_range))
    {
        return Memory::Own;
    }
    let mut there = there
        .iter()
        .take_while(|run| run.range.start < page_range.end);
    let foreign = there.find(|run| !run.own);
    Memory::Foreign(foreign.map_or(page_range, |run| run.range))
}

/// False if there is no memory for the list.
fn add(runs: &mut Vec<Run>, range: PageRange, own: bool) -> bool {
    match runs.last_mut() {
        Some(last) if last.range.end == range.start && last.own == own => {
            last.range.end = range.end;
        }
        _ => {
            if runs.try_reserve(1).is_err() {
                return false;
            }
            runs.push(Run { range, own });
        }
    }
    true
}

/// Reads the mappings. `None` if the kernel does not show all of them, or if there is no memory for
/// the list.
fn read() -> Option<Vec<Run>> {
    let mut runs = Vec::new();
    let whole = proc::each_mapping(|mapping| add(&mut runs, mapping.range, mapping.is_own()));
    whole.then_some(runs)
}

const NOTES: usize = tiny_or!(4, 64);

/// How many registrations rely on a note before the kernel is asked again.
const USES: u32 = 16;

/// Notes of memory that was found to be foreign. The cache need not keep a region there only to ask
/// the kernel about it. A note can only prevent a region from being kept, so it may be out of date.
/// Zeroed memory holds no note. Everything here runs under the cache's lock.
#[repr(C)]
pub struct Foreign {
    /// Notes made so far. The next one takes the place of the oldest.
    made: AtomicU32,
    notes: [Note; NOTES],
}

#[repr(C)]
struct Note {
    start: AtomicU64,
    end: AtomicU64,
    /// Registrations that may still rely on the note; 0 if there is no note.
    left: AtomicU32,
}

/// The answer of the notes about a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noted {
    Nothing,
    Foreign,
    /// Some of it was foreign, and the kernel should be asked again.
    Ask,
}

impl Foreign {
    fn overlapping(&self, range: PageRange) -> impl Iterator<Item = &Note> {
        let made = self.made.load(Relaxed) as usize;
        self.notes[..made.min(NOTES)].iter().filter(move |note| {
            let start = note.start.load(Relaxed);
            let end = note.end.load(Relaxed);
            note.left.load(Relaxed) > 0 && range.overlaps(PageRange { start, end })
        })
    }

    /// Looks a range up, for a registration that relies on the answer.
    pub fn look(&self, range: PageRange) -> Noted {
        let Some(note) = self.overlapping(range).next() else {
            return Noted::Nothing;
        };
        let left = note.left.load(Relaxed) - 1;
        if left == 0 {
            return Noted::Ask;
        }
        note.left.store(left, Relaxed);
        Noted::Foreign
    }

    /// Notes that the memory is foreign.
    pub fn note(&self, range: PageRange) {
        self.forget(range);
        let made = self.made.load(Relaxed);
        let note = &self.notes[made as usize % NOTES];
        note.start.store(range.start, Relaxed);
        note.end.store(range.end, Relaxed);
        note.left.store(USES, Relaxed);
        // Wraps around to the number of notes, not to 0, because all notes are in use.
        let next = made.checked_add(1).unwrap_or(NOTES as u32);
        self.made.store(next, Relaxed);
    }

    /// Forgets the notes about the range.
    pub fn forget(&self, range: PageRange) {
        self.overlapping(range)
            .for_each(|note| note.left.store(0, Relaxed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange { start, end }
    }

    #[test]
    fn only_what_was_shown_as_own_is_own() {
        let run = |start, end, own| Run {
            range: range(start, end),
            own,
        };
        let runs = [
            run(10, 20, true),
            run(20, 30, false),
            run(30, 40, true),
            run(50, 60, true),
        ];
        let memory = |start, end| memory(&runs, range(start, end));
        for (start, end) in [(10, 20), (10, 11), (30, 40), (59, 60)] {
            assert_eq!(memory(start, end), Memory::Own);
        }
        for (start, end) in [(19, 21), (20, 30), (10, 60), (29, 31)] {
            assert_eq!(memory(start, end), Memory::Foreign(range(20, 30)));
        }
        // Ranges that reach into gaps, where the memory is unknown.
        for (start, end) in [(9, 11), (35, 55), (39, 41), (40, 50), (59, 61), (70, 80)] {
            assert_eq!(memory(start, end), Memory::Foreign(range(start, end)));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "no /proc")]
    fn old_answers_serve_old_regions_only() {
        let admission = Admission::default();
        let own = Box::new([0u8; 64]);
        let page_range = PageRange::around((&raw const *own).addr() as u64, 64).unwrap();
        assert_eq!(admission.ask(page_range, NOW, 1), Memory::Own);
        admission.reads_all.store(true, Relaxed);
        assert_eq!(admission.ask(page_range, 1, 5), Memory::Own);
        assert_eq!(admission.ask(page_range, 5, 9), Memory::Own);
        assert_eq!(admission.last.lock().unwrap().newest, 5, "not read again");
        admission.budget.wait_until(u64::MAX);
        assert_eq!(admission.ask(page_range, 6, 9), Memory::Unknown);
        assert_eq!(admission.ask(page_range, NOW, 9), Memory::Unknown);
        admission.budget.wait_until(0);
        assert_eq!(admission.ask(page_range, NOW, 9), Memory::Own);
        assert_eq!(admission.last.lock().unwrap().newest, 9);
        let code = range as fn(u64, u64) -> PageRange as usize as u64;
        let code = PageRange::around(code, 1).unwrap();
        let Memory::Foreign(image) = admission.ask(code, 1, 9) else {
            panic!("the program's own file is no file");
        };
        assert!(image.contains(code));
    }

    #[test]
    fn a_note_serves_a_while() {
        let foreign = Foreign {
            made: AtomicU32::new(0),
            notes: core::array::from_fn(|_| Note {
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                left: AtomicU32::new(0),
            }),
        };
        assert_eq!(foreign.look(range(0, 100)), Noted::Nothing);
        foreign.note(range(10, 20));
        for _ in 1..USES {
            assert_eq!(foreign.look(range(19, 30)), Noted::Foreign);
        }
        assert_eq!(foreign.look(range(0, 11)), Noted::Ask);
        assert_eq!(foreign.look(range(0, 11)), Noted::Ask);
        assert_eq!(foreign.look(range(20, 30)), Noted::Nothing);
        foreign.note(range(15, 18));
        assert_eq!(foreign.look(range(10, 15)), Noted::Nothing);
        assert_eq!(foreign.look(range(10, 16)), Noted::Foreign);
        foreign.forget(range(17, 18));
        assert_eq!(foreign.look(range(15, 18)), Noted::Nothing);
        for n in 0..=NOTES as u64 {
            foreign.note(range(100 * n, 100 * n + 1));
        }
        assert_eq!(foreign.look(range(0, 1)), Noted::Nothing, "the oldest");
        assert_eq!(foreign.look(range(100, 101)), Noted::Foreign);
        foreign.made.store(u32::MAX, Relaxed);
        foreign.note(range(7, 8));
        assert_eq!(foreign.look(range(7, 8)), Noted::Foreign);
        assert_eq!(foreign.look(range(300, 301)), Noted::Foreign);
    }
}
