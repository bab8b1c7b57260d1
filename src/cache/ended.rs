// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of the cache for good, in this process: before the program does what [`End`] lists (after
//! it in the case of a protection key, which the kernel may refuse), the cache *gives up*. No hit
//! succeeds any more, the cache makes and keeps no region, the idle regions end, and no memory stays
//! watched. A region in use ends with its last user's release, as a plain one does. From then on the
//! interposed calls do nothing for the cache.

use crate::instance::{Cache, existing, wait_for_start};
use crate::life::ending::in_call;
use crate::life::{flush, owners};
use crate::lock::{LONG, MOMENT};
use crate::locked::By;
use crate::watch::event_reader;
use crate::watch::watch_fd::WATCH_FD;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*, fence};
use rdmamr_config::disable_for_good;
use rdmamr_mr::{Error, PANICKED};
use rdmamr_stats::log::{self, Level};
use rdmamr_sys::seccomp::{is_filtered, set_filtered};
use rdmamr_sys::{aside, thread};
use std::panic::catch_unwind;

/// Why the cache ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum End {
    /// The program makes a task that shares its memory and is no thread of it: clone(2) with CLONE_VM
    /// and without CLONE_THREAD.
    ///
    /// The proof requires that a task that changes memory lives until the reader has read the event,
    /// and that the reader lives as long as any task that may change memory (`docs/proof.md`, W1).
    /// Threads of one process die together. Such a task may be killed by itself: a fatal signal ends
    /// its wait for the reader, and the kernel drops the event with the wait. It may outlive this
    /// process, and with it the reader. It may be killed while it holds the cache's lock.
    ///
    /// A task of CLONE_VFORK is no exception: it runs any function of the program, on a stack of its
    /// own, while the other threads go on. A child of vfork(2), which the library cannot see, may do
    /// nothing but exec or end.
    Task = 1,
    /// The program filters its system calls, seccomp(2). It allows those that it makes itself; a call
    /// of the cache may kill it. From now on no thread of the program makes a system call for the
    /// cache.
    Filter = 2,
    /// The program has given memory a protection key. The access that a registration gets depends on
    /// the calling thread's rights to the key, which a thread changes without a system call.
    Key = 4,
}

impl End {
    fn say(self) {
        let words = match self {
            End::Task => {
                "the program has made a task that shares its memory and is no thread of it (clone with \
                 CLONE_VM, without CLONE_THREAD). Such a task may change memory and be killed before the library \
                 hears of the change"
            }
            End::Filter => "the program filters its system calls (seccomp)",
            End::Key => {
                "the program has given memory a protection key (pkey_mprotect), whose rights a thread changes \
                 without a system call"
            }
        };
        let say = |message: fmt::Arguments<'_>| match self {
            End::Filter => log::line(Level::Info, message),
            End::Task | End::Key => log::always(message),
        };
        say(format_args!("regions are not reused from now on: {words}"));
    }
}

/// What the program has done: a sum of [`End`]. A forked child inherits all but the task, which does
/// not share its memory.
static DONE: AtomicU8 = AtomicU8::new(0);

static GAVE_UP: AtomicBool = AtomicBool::new(false);

/// Whether the cache has given up, so that calls need not tell it of a change.
#[inline(always)]
pub fn cache_gave_up() -> bool {
    GAVE_UP.load(Relaxed)
}

/// The program does this: ends the cache, or prevents its start. Preserves errno.
///
/// A child of vfork(2) finds its parent's cache, and does not touch it.
#[cold]
pub fn end_for_good(why: End) {
    // Not once all is done: a filter may kill at the question.
    let is_done = || is_filtered() && cache_gave_up() && !WATCH_FD.exists();
    if existing().is_some_and(|cache| !is_done() && !cache.is_of_this_process()) {
        return;
    }
    let errno = errno::errno();
    if why == End::Filter {
        set_filtered();
    }
    // Either this thread finds the cache, or the thread that starts it finds the mark.
    let is_first = DONE.fetch_or(why as u8, SeqCst) & why as u8 == 0;
    fence(SeqCst);
    wait_for_start(if is_first { LONG } else { MOMENT });
    if let Some(cache) = existing() {
        give_up(cache, why);
    }
    errno::set_errno(errno);
}

/// This process is a forked child.
pub fn forget_tasks() {
    DONE.fetch_and(!(End::Task as u8), SeqCst);
}

/// What the program has done that ends the cache, if anything.
pub fn ended_by() -> Option<End> {
    fence(SeqCst);
    let done = DONE.load(Relaxed);
    let is_done = |why: &End| done & *why as u8 != 0;
    [End::Filter, End::Task, End::Key].into_iter().find(is_done)
}

/// The cache does not start: says why, once. Not of a filter, which may not allow the calls for that.
pub fn say_once(why: End) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if why != End::Filter && !SAID.swap(true, Relaxed) {
        // The caller may have little stack.
        aside::run(|| why.say());
    }
}

/// Ends the cache. More than one thread may call this.
pub fn give_up(cache: &Cache, why: End) {
    if !cache_gave_up() {
        end_reuse(cache, why);
    }
    if is_filtered() {
        // The reader goes on: the kernel may have refused to end a watch.
        WATCH_FD.close();
        event_reader::wait_to_rest();
    }
}

fn end_reuse(cache: &Cache, why: End) {
    let ring = &cache.regions.ring;
    ring.distrust();
    // A region that another thread is registering ends with its release.
    ring.lose();
    // If a signal handler has interrupted this thread in the cache, the cleaner ends the idle
    // regions.
    if !thread::is_inside() {
        // A region in use now ends with its release.
        in_call(|| owners::invalidate_those(cache, |_| true, By::Restricted, None));
        flush::deregister_all(cache);
    }
    cache.watch.give_up();
    let is_first = !GAVE_UP.swap(true, SeqCst);
    cache.cleaner.wake();
    if is_first {
        why.say();
    }
}

/// The library has panicked, on whichever thread: it disables itself for good, since its tables may be
/// half changed. From now on it forwards every call, and the cache hands out no region again. Returns
/// the error of the call that panicked.
#[cold]
pub fn panicked() -> Error {
    disable_for_good();
    if let Some(cache) = existing() {
        cache.regions.ring.distrust();
    }
    // The line is written behind the boundary too.
    let _ = catch_unwind(|| log::line(Level::Error, format_args!("{PANICKED}")));
    Error::Panic
}
