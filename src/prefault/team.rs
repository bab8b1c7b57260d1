// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that populate memory during its registration, or before it.
//!
//! The threads start and end with the registration: 50 us for work that takes 10 ms or more.
//! Nothing remains that a fork could copy, a setuid could miss, or an interrupted thread could
//! hold. Each registration has threads of its own, even one in a signal handler that interrupts
//! another registration. The threads start with the processors, the protection keys and the
//! credentials of the registering thread, and allocate pages from the node from which that thread
//! would.

use super::huge;
use super::nodes::{PARTS, Place, parts};
use super::suitable::Suitable;
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use core::time::Duration;
use rdmamr_sys::helper_thread::{self, Ending};
use rdmamr_sys::pagemap::first;
use rdmamr_sys::pages::{PageRange, page_size};
use rdmamr_sys::{cgroup, clock, futex};

/// The most threads of one registration.
pub const MOST: usize = 64;

/// The least unit of work: a huge page, so that no two threads clear the same one. Larger pieces
/// were no faster.
const PIECE: u64 = 2 << 20;

/// So many bytes at each end show whether huge pages make the kernel move pages. Then the threads ask
/// for the others, or leave them small.
const FIRST: u64 = 256 << 20;

/// Fewer page faults that moved pages than this are other programs', or cost little.
const FEW: u64 = 8;

/// The threads of one registration.
pub struct Team(NonNull<Work>);

/// The work of one registration. It has its own mapping, because a signal handler may leave the
/// registration by siglongjmp, and because the stack of the registering thread may be small.
struct Work {
    populating: Populating,
    /// Only the registering thread uses this field.
    threads: [Option<Ending>; MOST],
}

/// The state that the threads share.
struct Populating {
    pages: PageRange,
    /// Equal parts of the pages, one for each node to which the memory is bound.
    parts: usize,
    found: Suitable,
    /// The number of pieces taken of each part. Threads take them from the end, because the
    /// registration begins at the start.
    taken: [AtomicUsize; PARTS],
    /// How many threads have begun.
    begun: AtomicUsize,
    /// How many threads populate beside the registering one.
    threads: usize,
    /// True once the registration has returned, or once a page could not be made: then the
    /// registration will report the error.
    over: AtomicBool,
    place: Place,
    /// [`huge::stalls`] at the start, if the threads ask for huge pages.
    stalls: Option<u64>,
    /// The threads need not wait for the pin.
    is_first: bool,
}

impl Team {
    /// Starts at most `threads` threads if they can help. `None` if none started. Not inlined, so
    /// that its frame is gone when the registration begins.
    #[inline(never)]
    pub fn start(
        pages: PageRange,
        mut found: Suitable,
        threads: usize,
        is_first: bool,
    ) -> Option<Team> {
        // Threads for which the group has no time would take it from the registration.
        let timed = cgroup::processors().map_or(MOST, |most| most.saturating_sub(1) as usize);
        let threads = threads.min(timed);
        let place = Place::of(pages.start, threads);
        found.page = found.page.max(huge::most_cleared());
        let piece = PIECE.max(found.page);
        let threads = threads
            .min((pages.bytes() / piece) as usize)
            .min(place.helpers);
        if threads == 0 {
            return None;
        }
        let memory = helper_thread::map(size_of::<Work>())?;
        let work = NonNull::new(memory.cast::<Work>())?;
        let content = Work {
            populating: Populating {
                pages,
                parts: parts(pages).min(pages.bytes().div_ceil(piece) as usize),
                found,
                taken: [const { AtomicUsize::new(0) }; PARTS],
                begun: AtomicUsize::new(0),
                threads,
                over: AtomicBool::new(false),
                place,
                stalls: found.huge.and_then(|_| huge::stalls()),
                is_first,
            },
            threads: [const { None }; MOST],
        };
        // SAFETY: the new mapping is large enough and page-aligned.
        unsafe { work.write(content) };
        // SAFETY: the work was just written.
        let populating = unsafe { &raw mut (*work.as_ptr()).populating };
        // SAFETY: as above, and the threads use the other field alone.
        let ending = unsafe { &mut (*work.as_ptr()).threads };
        for thread in &mut ending[..threads] {
            // SAFETY: `run` keeps the rules of `helper_thread`, and `stop` unmaps the work only
            // after the thread has ended.
            *thread = unsafe { helper_thread::start_ending(run, populating.cast()) };
            if thread.is_none() {
                break;
            }
        }
        Some(Team(work))
    }

    /// Populates memory on this thread too, until no piece is left.
    pub fn join_in(&self) {
        // SAFETY: `start` wrote the work, and only `stop` unmaps it.
        unsafe { &(*self.0.as_ptr()).populating }.populate_all(|_| ());
    }

    /// Waits for each thread to finish its current piece and end. Returns how many threads ran.
    pub fn stop(self) -> usize {
        let work = self.0.as_ptr();
        // SAFETY: `start` wrote the work, and only the end of this function unmaps it.
        unsafe { &(*work).populating }.over.store(true, Relaxed);
        // SAFETY: as above, and the threads use the other field alone.
        let threads = unsafe { &mut (*work).threads };
        let threads = threads.iter_mut().filter_map(Option::take);
        let count = threads.map(Ending::join).count();
        // SAFETY: `start` mapped the work, and the threads have ended.
        unsafe { helper_thread::unmap(work.cast(), size_of::<Work>()) };
        count
    }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    helper_thread::set_name(c"rdmamr-prefault");
    // SAFETY: `start` passed the work, and `stop` keeps it mapped until this thread ends.
    let work = unsafe { &*argument.cast::<Populating>() };
    work.place.go();
    if work.is_first || work.await_pin() {
        work.populate_all(|part| {
            let threads = work.threads.div_ceil(work.parts);
            work.place.go_near(part.start + part.bytes() / 2, threads);
        });
    }
    0
}

impl Populating {
    /// Populates each part, and begins with another one than the other threads. `go` comes before
    /// each.
    fn populate_all(&self, go: impl Fn(PageRange)) {
        let begun = self.begun.fetch_add(1, Relaxed);
        for part in (begun..begun + self.parts).map(|number| number % self.parts) {
            let piece = PIECE.max(self.found.page);
            let pages = part_of(self.pages, part, self.parts, piece);
            go(pages);
            self.populate_part(pages, &self.taken[part]);
        }
    }

    fn populate_part(&self, part: PageRange, taken: &AtomicUsize) {
        // Each thread asks, so that no thread populates before the first request.
        let PageRange { start, end } = part;
        if part.bytes() <= 2 * FIRST {
            self.ask(start, end);
        } else {
            self.ask(start, start + FIRST);
            self.ask(end - FIRST, end);
        }
        while self.populate_next(part, taken.fetch_add(1, Relaxed)) {}
    }

    /// Asks for huge pages between these addresses, if the threads ask for any.
    fn ask(&self, start: u64, end: u64) {
        if let Some(mapped) = self.found.huge {
            huge::ask((start, end), mapped);
        }
    }

    /// Asks for huge pages in all of a part, unless the first ones made the kernel move pages.
    #[cold]
    fn ask_for_all(&self, part: PageRange) {
        let stalls = huge::stalls().zip(self.stalls);
        if stalls.is_some_and(|(now, before)| now.wrapping_sub(before) < FEW) {
            self.ask(part.start, part.end);
        }
    }

    /// Waits until the kernel pins. The first page that was missing shows that, because the kernel
    /// pins from the start. So if the kernel refuses the registration before it looks at the
    /// memory, the memory is not populated. If the memory starts with many present pages, this only
    /// waits a moment. False if the registration is over, or if the pin does not come.
    fn await_pin(&self) -> bool {
        const MOMENT: u64 = 1_000_000;
        const LONGEST: u64 = 1_000_000_000;
        const PIECES: u64 = 32;
        // The first missing page, if it is among the first pieces.
        let end = self.pages.end.min(self.pages.start + PIECES * PIECE);
        let first = self.first_missing(PageRange::new(self.pages.start, end));
        let start = clock::monotonic_by_kernel();
        loop {
            if self.over.load(Relaxed) {
                return false;
            }
            let waited = clock::monotonic_by_kernel().saturating_sub(start);
            let begun = match first {
                Some(missing) => self.first_missing(missing).is_none(),
                None => waited >= MOMENT,
            };
            if begun || waited >= LONGEST {
                return begun;
            }
            futex::pause(Duration::from_micros(20));
        }
    }

    /// The first missing page among these. `None` also if the kernel does not tell.
    fn first_missing(&self, pages: PageRange) -> Option<PageRange> {
        let is_missing = |page| !self.found.kind.is_there(page);
        let found = first::<{ PIECE as usize / 4096 }>(pages.start, pages.end, is_missing);
        let (page, _) = found??;
        Some(PageRange::new(page, page + page_size()))
    }

    /// Populates the piece of a part with this index. False if there is none, or if no more are
    /// wanted.
    fn populate_next(&self, part: PageRange, number: usize) -> bool {
        let piece = piece_of(part, number as u64, PIECE.max(self.found.page));
        let Some(piece) = piece.filter(|_| !self.over.load(Relaxed)) else {
            return false;
        };
        if number as u64 == FIRST / PIECE && part.bytes() > 2 * FIRST {
            self.ask_for_all(part);
        }
        // Populating present pages takes twenty times as long as asking whether they are present.
        if self.first_missing(piece).is_some() && !self.populate(piece) {
            self.over.store(true, Relaxed);
        }
        true
    }

    fn populate(&self, piece: PageRange) -> bool {
        let (start, length, advice) = (piece.start, piece.bytes(), self.found.kind.advice());
        // Uses a raw system call, because this library's own wrapper of madvise must not see it.
        // SAFETY: the advice makes missing pages and changes no present page.
        unsafe { libc::syscall(libc::SYS_madvise, start, length, advice) == 0 }
    }
}

/// The part with this index of so many equal ones, in whole pieces, counted from the end.
fn part_of(pages: PageRange, number: usize, parts: usize, piece: u64) -> PageRange {
    let bound = |number: usize| match parts - number {
        0 => pages.start,
        left if left == parts => pages.end,
        left => (pages.start + pages.bytes() / parts as u64 * left as u64)
            .next_multiple_of(piece)
            .min(pages.end),
    };
    PageRange::new(bound(number + 1), bound(number))
}

/// The piece of this size with this index, counted from the end.
fn piece_of(part: PageRange, number: u64, size: u64) -> Option<PageRange> {
    let end = part.end.next_multiple_of(size);
    let end = end.checked_sub(number.checked_mul(size)?)?;
    let start = end.saturating_sub(size).max(part.start);
    (end > part.start).then(|| PageRange::new(start, end.min(part.end)))
}

#[cfg(test)]
mod tests {
    use super::super::kind::Kind;
    use super::super::pages::percent_there;
    use super::super::pages::tests::Memory;
    use super::*;

    const PRIVATE: Suitable = Suitable {
        kind: Kind::Private,
        page: 4096,
        huge: None,
    };

    fn helpers() -> usize {
        Place::of(0, 1).helpers
    }

    #[test]
    fn pieces_cover_all_of_it_and_no_more() {
        const PAGE: u64 = 4096;
        for (start, end) in [
            (0x10_0000, 0x50_0000 + PAGE),
            (0x20_0000, 0x40_0000),
            (PAGE, 2 * PAGE),
        ] {
            let pages = PageRange { start, end };
            let mut below = end;
            for piece in (0..).map_while(|number| piece_of(pages, number, PIECE)) {
                assert_eq!(piece.end, below);
                assert!(piece.start / PIECE == (piece.end - 1) / PIECE);
                below = piece.start;
            }
            assert_eq!(below, start);
        }
    }

    #[test]
    fn parts_cover_all_of_it_and_share_no_piece() {
        for (start, bytes) in [(PIECE, 8 * PIECE), (0x1000, 5 * PIECE + 0x3000)] {
            for parts in 1..=PARTS {
                let pages = PageRange::new(start, start + bytes);
                let mut below = pages.end;
                for part in (0..parts).map(|number| part_of(pages, number, parts, PIECE)) {
                    assert!(part.end == below && part.start <= part.end);
                    assert!(part.start == start || part.start % PIECE == 0);
                    below = part.start;
                }
                assert_eq!(below, start);
            }
        }
    }

    #[test]
    fn a_team_populates_what_is_missing_once_the_first_page_comes() {
        // A thread that waits for its processor may see the first page too late.
        while !populates_once_the_first_page_comes() {}
    }

    fn populates_once_the_first_page_comes() -> bool {
        let memory = Memory::new(64 << 20);
        let pages = memory.pages();
        memory.write(5 << 20, 0x5a);
        let Some(team) = Team::start(pages, PRIVATE, 1, false) else {
            assert_eq!(helpers(), 0);
            return true;
        };
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(percent_there(pages, Kind::Private), Some(0));
        memory.write(0, 0);
        let start = std::time::Instant::now();
        let is_late = || start.elapsed() > Duration::from_secs(10);
        while percent_there(pages, Kind::Private) < Some(100) && !is_late() {
            std::thread::yield_now();
        }
        assert_eq!(team.stop(), 1);
        assert_eq!((memory.read(5 << 20), memory.read(6 << 20)), (0x5a, 0));
        !is_late()
    }

    #[test]
    fn a_registration_that_never_pins_populates_nothing() {
        let memory = Memory::new(64 << 20);
        let team = Team::start(memory.pages(), PRIVATE, MOST, false);
        std::thread::sleep(Duration::from_millis(5));
        team.map(Team::stop);
        assert_eq!(percent_there(memory.pages(), Kind::Private), Some(0));
    }

    #[test]
    fn a_team_is_never_larger_than_its_work() {
        let memory = Memory::new(PIECE as usize);
        let team = Team::start(memory.pages(), PRIVATE, MOST, false);
        assert_eq!(team.map_or(0, Team::stop), 1.min(helpers()));
    }
}
