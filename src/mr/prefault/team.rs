// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that populate memory while it is being registered.
//!
//! They come with a registration and end with it: 50 us for what takes 10 ms or more. So nothing is left
//! over that a fork could copy, a setuid miss, or an interrupted thread hold; each registration has
//! threads of its own, also one by a signal handler that interrupts another. They start with the
//! processors, the protection keys and the credentials of the thread that registers, and take pages where it
//! would take them.

use super::{Bytes, LONG, Pages, now};
use crate::config::PREFAULT_MOST;
use crate::helper_thread::{self, Ending};
use crate::log::{self, Level};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use core::time::Duration;

/// What a thread does at once: a huge page, so that no two clear the same. Larger pieces were no faster.
pub const PIECE: usize = 2 << 20;

/// The threads of a registration.
pub struct Team {
    work: NonNull<Work>,
    threads: [Option<Ending>; PREFAULT_MOST],
}

/// What they share. On memory of its own: a signal handler may leave the registration by siglongjmp.
struct Work {
    pages: Pages,
    /// How many pieces are taken. They come from the end, since the registration comes from the start.
    taken: AtomicUsize,
    /// The registration has returned, or some page could not be made: then the registration will say why.
    over: AtomicBool,
    /// The NUMA node where the caller takes its pages from.
    node: Option<u32>,
    progress: Progress,
}

impl Team {
    /// Starts so many threads, if they can be of use. `None` if there is none.
    pub fn start(pages: Pages, threads: usize, start: Duration) -> Option<Team> {
        // More threads than processors would only be in each other's way.
        let threads = threads
            .min(pages.bytes() / PIECE)
            .min(processors().saturating_sub(1));
        if threads == 0 {
            return None;
        }
        let memory = helper_thread::map(size_of::<Work>())?;
        let work = NonNull::new(memory.cast::<Work>())?;
        let content = Work {
            pages,
            taken: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            node: local_node(),
            progress: Progress::new(pages, start),
        };
        // SAFETY: the new mapping is large enough, and page-aligned.
        unsafe { work.write(content) };
        let mut team = Team {
            work,
            threads: [const { None }; PREFAULT_MOST],
        };
        for thread in &mut team.threads[..threads] {
            // SAFETY: `run` keeps to the rules; the work is there until the thread has ended.
            *thread = unsafe { helper_thread::start_ending(run, memory) };
            if thread.is_none() {
                break;
            }
        }
        Some(team)
    }

    /// Ends them, as soon as they have done the piece that they are at. Returns how many there were.
    pub fn stop(self) -> usize {
        // SAFETY: written in `start`, and not yet unmapped.
        unsafe { self.work.as_ref() }.over.store(true, Relaxed);
        let threads = self.threads.into_iter().flatten();
        let count = threads.map(Ending::join).count();
        // SAFETY: mapped in `start`, and the threads have ended.
        unsafe { helper_thread::unmap(self.work.as_ptr().cast(), size_of::<Work>()) };
        count
    }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    helper_thread::set_name(c"rdmamr-prefault");
    // SAFETY: the work of `start`.
    let work = unsafe { &*argument.cast::<Work>() };
    if let Some(node) = work.node {
        prefer(node);
    }
    while work.populate_next() {
        work.progress.tell(work.pages);
    }
    0
}

impl Work {
    /// Takes the next piece; false if there is none any more.
    fn populate_next(&self) -> bool {
        let piece = self.pages.piece(self.taken.fetch_add(1, Relaxed));
        let Some(piece) = piece.filter(|_| !self.over.load(Relaxed)) else {
            return false;
        };
        // To walk over pages that are there takes twenty times as long as to ask whether they are.
        if !piece.are_present() && !piece.populate() {
            self.over.store(true, Relaxed);
        }
        true
    }
}

/// What is told of a registration that takes long.
struct Progress {
    start: Duration,
    /// When the next line is due, in ms since the start.
    due: AtomicU64,
    /// How many percent were there at the start.
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

    /// Tells how far it has come, once a second.
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
    /// The piece of that number, from the end.
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

    /// How many percent of the pages are there, by as many looks.
    fn percent_present(self) -> usize {
        let each = self.count() / 100;
        (0..100)
            .filter(|look| self.page(look * each).are_present())
            .count()
    }

    fn populate(self) -> bool {
        // SAFETY: makes pages where there are none, and changes none that is there.
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

/// As the kernel has it: a bit for each, up to as many as any has.
type Mask = [u64; 128];

/// How many processors this thread may run on. (A limit on their time, cpu.max, is not looked at.)
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

/// The node that pages for this thread come from, if it is just the nearest.
fn local_node() -> Option<u32> {
    let (mut policy, mut node) = (0 as c_int, 0u32);
    let nothing = 0usize;
    // SAFETY: the policy is writable, and no more is asked for.
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
        // SAFETY: the node is writable, and no more is asked for.
        || unsafe { libc::syscall(libc::SYS_getcpu, nothing, &raw mut node, nothing) } != 0;
    (!failed && policy == libc::MPOL_DEFAULT).then_some(node)
}

/// Has pages for this thread come from that node, if it has some, wherever the thread runs.
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
