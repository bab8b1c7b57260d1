// SPDX-License-Identifier: MIT OR Apache-2.0
//! Populating memory by several threads.
//!
//! They come with each registration and end with it: 50 us for one that has 2 ms or more to do. So nothing is left
//! over that a fork could copy, a setuid miss, or an interrupted thread hold; each registration has
//! threads of its own, also one by a signal handler that interrupts another. They start with the policy
//! (NUMA), the processors, the protection keys and the credentials of the thread that registers.

use super::{LONG, Pages, now};
use crate::config::PREFAULT_MOST;
use crate::helper_thread::{self, Ending};
use crate::log::{self, Level};
use crate::mr::Request;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// What a thread does at once: a huge page, so that no two clear the same. Larger pieces were no faster.
pub const PIECE: usize = 2 << 20;

/// What the threads share. On memory of its own: a signal handler may leave the caller by siglongjmp.
struct Work {
    pages: Pages,
    /// The start of the next piece.
    next: AtomicUsize,
    /// How many bytes are there.
    done: AtomicUsize,
    /// Some page could not be made: the registration will say why.
    failed: AtomicBool,
    /// The NUMA node where the caller would have taken its pages from.
    node: Option<u32>,
}

/// Populates the memory of a registration with so many threads, of which the caller is one. Calls `tell` with
/// the share that is there, once a second. Returns how many threads there were.
pub fn populate(request: &Request, threads: usize, tell: impl Fn(f64)) -> usize {
    let Some(pages) = Pages::of(request) else {
        return 0;
    };
    let pieces = pages.bytes().div_ceil(PIECE);
    // More threads than processors would only be in each other's way.
    let helpers = threads.min(pieces).min(processors()).saturating_sub(1);
    let Some(memory) = helper_thread::map(size_of::<Work>()) else {
        return 0;
    };
    let place = memory.cast::<Work>();
    let work = Work {
        pages,
        next: AtomicUsize::new(pages.start & !(PIECE - 1)),
        done: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        node: (helpers > 0).then(local_node).flatten(),
    };
    // SAFETY: the new mapping is large enough, and page-aligned.
    unsafe { place.write(work) };
    // SAFETY: just written; unmapped at the end of this function, when the threads have ended.
    let work = unsafe { &*place };
    let mut team: [Option<Ending>; PREFAULT_MOST] = [const { None }; PREFAULT_MOST];
    let mut count = 1;
    for helper in &mut team[..helpers] {
        // SAFETY: `run` keeps to the rules; the work is there until the thread has ended.
        *helper = unsafe { helper_thread::start_ending(run, memory) };
        if helper.is_none() {
            break;
        }
        count += 1;
    }
    let told = log::wants(Level::Info);
    let mut next_line = now() + LONG;
    while work.populate_next() {
        if told && now() >= next_line {
            next_line += LONG;
            tell(work.done.load(Relaxed) as f64 / pages.bytes() as f64);
        }
    }
    team.into_iter().flatten().for_each(Ending::join);
    // SAFETY: mapped above, and the threads have ended.
    unsafe { helper_thread::unmap(memory, size_of::<Work>()) };
    count
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    helper_thread::set_name(c"rdmamr-prefault");
    // SAFETY: the work of `populate`.
    let work = unsafe { &*argument.cast::<Work>() };
    if let Some(node) = work.node {
        prefer(node);
    }
    while work.populate_next() {}
    0
}

impl Work {
    /// Takes the next piece; false if there is none any more.
    fn populate_next(&self) -> bool {
        let at = self.next.fetch_add(PIECE, Relaxed);
        if at >= self.pages.end || self.failed.load(Relaxed) {
            return false;
        }
        let piece = Pages {
            start: at.max(self.pages.start),
            end: (at + PIECE).min(self.pages.end),
            ..self.pages
        };
        // To walk over pages that are there takes twenty times as long as to ask whether they are.
        if !piece.are_present() && !piece.populate() {
            self.failed.store(true, Relaxed);
            return false;
        }
        self.done.fetch_add(piece.bytes(), Relaxed);
        true
    }
}

impl Pages {
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
