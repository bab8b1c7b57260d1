// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that populate memory during its registration.
//!
//! The threads start and end with the registration: 50 us for work that takes 10 ms or more.
//! Nothing remains that a fork could copy, a setuid could miss, or an interrupted thread could
//! hold. Each registration has threads of its own, even one in a signal handler that interrupts
//! another registration. The threads start with the processors, the protection keys and the
//! credentials of the registering thread, and allocate pages from where that thread would.

use super::{Bytes, LONG, Pages, now};
use crate::config::PREFAULT_MOST;
use crate::report::log::{self, Level};
use crate::sys::helper_thread::{self, Ending};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use core::time::Duration;

/// The unit of work: a huge page, so that no two threads clear the same one. Larger pieces were no
/// faster.
pub const PIECE: usize = 2 << 20;

/// The threads of one registration.
pub struct Team {
    work: NonNull<Populating>,
    threads: [Option<Ending>; PREFAULT_MOST],
}

/// The state that the threads share. It has its own mapping, since a signal handler may leave the
/// registration by siglongjmp.
struct Populating {
    pages: Pages,
    /// The number of pieces taken. Threads take them from the end, since the registration starts at
    /// the start.
    taken: AtomicUsize,
    /// True once the registration has returned, or once a page could not be made: then the
    /// registration will report the error.
    over: AtomicBool,
    /// The NUMA node from which the caller allocates its pages.
    node: Option<u32>,
    progress: Progress,
}

impl Team {
    /// Starts at most `threads` threads if they can help. `None` if none started.
    pub fn start(pages: Pages, threads: usize, start: Duration) -> Option<Team> {
        // More threads than processors would only slow each other down.
        let threads = threads
            .min(pages.bytes() / PIECE)
            .min(processors().saturating_sub(1));
        if threads == 0 {
            return None;
        }
        let memory = helper_thread::map(size_of::<Populating>())?;
        let work = NonNull::new(memory.cast::<Populating>())?;
        let content = Populating {
            pages,
            taken: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            node: local_node(),
            progress: Progress::new(pages, start),
        };
        // SAFETY: the new mapping is large enough and page-aligned.
        unsafe { work.write(content) };
        let mut team = Team {
            work,
            threads: [const { None }; PREFAULT_MOST],
        };
        for thread in &mut team.threads[..threads] {
            // SAFETY: `run` keeps the rules of `helper_thread`, and `stop` unmaps the work only
            // after the thread has ended.
            *thread = unsafe { helper_thread::start_ending(run, memory) };
            if thread.is_none() {
                break;
            }
        }
        Some(team)
    }

    /// Waits for each thread to finish its current piece and end. Returns how many threads ran.
    pub fn stop(self) -> usize {
        // SAFETY: `start` wrote the work, and only the end of this function unmaps it.
        unsafe { self.work.as_ref() }.over.store(true, Relaxed);
        let threads = self.threads.into_iter().flatten();
        let count = threads.map(Ending::join).count();
        // SAFETY: `start` mapped the work, and the threads have ended.
        unsafe { helper_thread::unmap(self.work.as_ptr().cast(), size_of::<Populating>()) };
        count
    }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    helper_thread::set_name(c"rdmamr-prefault");
    // SAFETY: `start` passed the work, and `stop` keeps it mapped until this thread ends.
    let work = unsafe { &*argument.cast::<Populating>() };
    if let Some(node) = work.node {
        prefer(node);
    }
    while work.populate_next() {
        work.progress.tell(work.pages);
    }
    0
}

impl Populating {
    /// Takes the next piece and populates it. False if no piece is left.
    fn populate_next(&self) -> bool {
        let piece = self.pages.piece(self.taken.fetch_add(1, Relaxed));
        let Some(piece) = piece.filter(|_| !self.over.load(Relaxed)) else {
            return false;
        };
        // Populating present pages takes twenty times as long as asking whether they are present.
        if !piece.are_present() && !piece.populate() {
            self.over.store(true, Relaxed);
        }
        true
    }
}

/// The progress reports of a registration that takes long.
struct Progress {
    start: Duration,
    /// The time of the next report, in ms since the start.
    due: AtomicU64,
    /// The percentage of pages present at the start.
    before: usize,
}

impl Progress {
    fn new(pages: Pages, start: Duration) -> Progress {
        let told = log::wants(Level::Info);
        Progress {
            start,
            due: AtomicU64::new(if told {
                LONG.as_millis() as u64
            } else {
                u64::MAX
            }),
            before: if told { pages.percent_present() } else { 0 },
        }
    }

    /// Reports the progress, once a second.
    fn tell(&self, pages: Pages) {
        let due = self.due.load(Relaxed);
        if due == u64::MAX {
            return;
        }
        let took = now().saturating_sub(self.start);
        let next = due + LONG.as_millis() as u64;
        if (took.as_millis() as u64) < due
            || self
                .due
                .compare_exchange(due, next, Relaxed, Relaxed)
                .is_err()
        {
            return;
        }
        let percent = pages.percent_present();
        if percent > self.before {
            let rate = (percent - self.before) as f64 / took.as_secs_f64();
            let (size, left) = (Bytes(pages.bytes()), (100 - percent) as f64 / rate);
            log::line(
                Level::Info,
                format_args!(
                    "registering {size}: {percent} % of it populated, the rest in about {left:.1} s"
                ),
            );
        }
    }
}

impl Pages {
    /// The piece with that index, counted from the end.
    fn piece(self, number: usize) -> Option<Pages> {
        let end = self
            .end
            .next_multiple_of(PIECE)
            .checked_sub(number * PIECE)?;
        (end > self.start).then(|| Pages {
            start: (end - PIECE).max(self.start),
            end: end.min(self.end),
            ..self
        })
    }

    /// The percentage of pages present, estimated from as many samples.
    fn percent_present(self) -> usize {
        let each = self.count() / 100;
        (0..100)
            .filter(|look| self.page(look * each).are_present())
            .count()
    }

    fn populate(self) -> bool {
        // SAFETY: the advice makes missing pages and changes no present page.
        let result = unsafe {
            libc::syscall(
                libc::SYS_madvise,
                self.start,
                self.bytes(),
                libc::MADV_POPULATE_WRITE,
            )
        };
        result == 0
    }
}

/// The kernel's node mask: one bit a node, as many as the largest kernel configuration has.
type Mask = [u64; 128];

/// How many processors this thread may run on. (The function ignores a limit on their time,
/// cpu.max.)
fn processors() -> usize {
    let mut mask: Mask = [0; 128];
    let this_thread = 0usize;
    // SAFETY: the mask is writable.
    unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            this_thread,
            size_of::<Mask>(),
            mask.as_mut_ptr(),
        )
    };
    mask.iter().map(|word| word.count_ones() as usize).sum()
}

/// The node from which this thread allocates pages, if its policy is the default, the nearest.
fn local_node() -> Option<u32> {
    let (mut policy, mut node) = (0 as c_int, 0u32);
    let nothing = 0usize;
    // SAFETY: the policy is writable, and the call writes nothing else.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut policy,
            nothing,
            nothing,
            nothing,
            nothing,
        )
    } != 0
        // SAFETY: the node is writable, and the call writes nothing else.
        || unsafe { libc::syscall(libc::SYS_getcpu, nothing, &raw mut node, nothing) } != 0;
    (!failed && policy == libc::MPOL_DEFAULT).then_some(node)
}

/// Makes this thread allocate from that node while it has free pages, wherever the thread runs.
fn prefer(node: u32) {
    let mut mask: Mask = [0; 128];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return;
    };
    *word = 1 << (node % 64);
    let bits = 8 * size_of::<Mask>();
    // SAFETY: the mask is readable.
    unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            bits,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::prefault::tests::Memory;

    #[test]
    fn pieces_cover_all_of_it_and_no_more() {
        const PAGE: usize = 4096;
        for (start, end) in [
            (0x10_0000, 0x50_0000 + PAGE),
            (0x20_0000, 0x40_0000),
            (PAGE, 2 * PAGE),
        ] {
            let size = PAGE;
            let pages = Pages { start, end, size };
            let mut below = end;
            for piece in (0..).map_while(|number| pages.piece(number)) {
                assert_eq!(piece.end, below);
                assert!(piece.start / PIECE == (piece.end - 1) / PIECE);
                below = piece.start;
            }
            assert_eq!(below, start);
        }
    }

    #[test]
    fn a_team_populates_what_is_missing_and_changes_nothing() {
        let memory = Memory::new(64 << 20);
        memory.write(5 << 20, 0x5a);
        assert_eq!(memory.pages().percent_present(), 0);
        let Some(team) = Team::start(memory.pages(), 1, now()) else {
            assert_eq!(processors(), 1);
            return;
        };
        while memory.pages().percent_present() < 100 {
            std::thread::yield_now();
        }
        assert_eq!(team.stop(), 1);
        assert_eq!((memory.read(5 << 20), memory.read(6 << 20)), (0x5a, 0));
    }

    #[test]
    fn a_team_is_never_larger_than_its_work() {
        let memory = Memory::new(PIECE);
        let team = Team::start(memory.pages(), PREFAULT_MOST, now());
        let most = 1.min(processors() - 1);
        assert_eq!(team.map_or(0, Team::stop), most);
    }
}
