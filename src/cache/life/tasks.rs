// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks that share this process's memory and are not its threads: clone(2) with CLONE_VM and
//! without CLONE_THREAD.
//!
//! The proof requires that a task that changes memory lives until the reader has read the event,
//! and that the reader lives as long as any task that may change memory (`docs/proof.md`, W1).
//! Threads of one process die together. Such a task does not:
//!
//! - It may be killed by itself. A fatal signal ends its wait for the reader, and the kernel drops
//!   the event with the wait.
//! - It may outlive this process, and with it the reader. Then it would wait for ever until its
//!   event is read.
//! - It may be killed while it holds the cache's lock.
//!
//! So before such a task exists, the cache *gives up*: no hit succeeds any more, the cache makes
//! and keeps no region, the idle regions end, and no memory stays watched. From then on the
//! interposed calls do nothing for the cache, so that the task never touches the data on which the
//! cache's threads work.
//!
//! A task of CLONE_VFORK is no exception. It runs any function of the program, on a stack of its
//! own, while the other threads go on. Like any other such task, it can be killed or outlive the
//! caller. A child of vfork(2), which the library cannot see, may do nothing but exec or end.

use crate::instance::{Cache, cache_gave_up, existing, gives_up, wait_for_start};
use crate::life::flush;
use crate::lock::MOMENT;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering::*, fence};
use rdmamr_stats::log;
use rdmamr_sys::process::PerProcess;
use rdmamr_sys::thread;

/// Whether this process has made such a task. A forked child shares its memory with no task.
static MADE: PerProcess<()> = PerProcess::new();

unsafe extern "C" fn forget() {
    MADE.forget();
}

/// Whether a task shares, or has shared, this process's memory.
pub fn were_made() -> bool {
    fence(SeqCst);
    MADE.get().is_some()
}

/// The program is about to make a task by clone(2) with these flags. Preserves errno.
#[inline]
pub fn making(flags: c_int) {
    if flags & (libc::CLONE_VM | libc::CLONE_THREAD) == libc::CLONE_VM {
        sharing_memory();
    }
}

#[cold]
fn sharing_memory() {
    let errno = errno::errno();
    if MADE.get().is_none() {
        MADE.publish(&(), forget);
    }
    // Either this thread finds the cache, or the thread that starts it finds the mark.
    fence(SeqCst);
    wait_for_start(MOMENT);
    if let Some(cache) = existing() {
        give_up(cache);
    }
    errno::set_errno(errno);
}

/// Makes the cache give up, and logs that. More than one thread may call this.
pub fn give_up(cache: &Cache) {
    if give_up_quietly(cache) {
        say();
    }
}

/// Makes the cache give up. True for the one thread that has ended it.
pub fn give_up_quietly(cache: &Cache) -> bool {
    if cache_gave_up() {
        return false;
    }
    let ring = &cache.regions.ring;
    ring.distrust();
    // A region that another thread is registering or using now ends with its release.
    ring.lose();
    // If a signal handler has interrupted this thread in the cache, the cleaner ends the idle
    // regions.
    if !thread::is_inside() {
        flush::end_all(cache);
    }
    cache.watch.give_up();
    let is_first = gives_up();
    cache.cleaner.wake();
    is_first
}

/// Logs once why no region is reused.
pub fn say() {
    static SAID: AtomicBool = AtomicBool::new(false);
    log::once(
        &SAID,
        format_args!(
            "regions are not reused from now on: the program has made a task that shares its memory \
             and is no thread of it (clone with CLONE_VM, without CLONE_THREAD). Such a task may \
             change memory and be killed before the library hears of the change"
        ),
    );
}
