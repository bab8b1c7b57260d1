// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of the cache before the program filters its system calls, seccomp(2). Such a program
//! allows the calls that it makes itself; a call of the cache may kill it. So the cache gives up
//! (`tasks.rs`), and from then on no thread of the program makes a system call for it.

use crate::instance::{Cache, existing, wait_for_start};
use crate::life::tasks;
use crate::lock::LONG;
use crate::watch::event_reader;
use crate::watch::listeners::{is_retired, retire as retire_watch};
use crate::watch::watch_fd::WATCH_FD;
use core::sync::atomic::{Ordering::SeqCst, fence};
use rdmamr_stats::log::{self, Level};

/// Ends the cache, or prevents its start. Idle regions are deregistered; a region in use ends with
/// its last user's release, as a plain one does. The message contains `why`. Preserves errno.
///
/// A child of vfork(2) that filters its own calls finds its parent's cache, and does not touch it.
pub fn retire(why: &str) {
    let of_another = || existing().is_some_and(|cache| !cache.is_of_this_process());
    if is_retired() || of_another() || !retire_watch() {
        return;
    }
    let errno = errno::errno();
    // Either this thread finds the cache, or the thread that starts it finds the mark.
    fence(SeqCst);
    wait_for_start(LONG);
    if let Some(cache) = existing().filter(|cache| cache.is_of_this_process()) {
        end(cache);
        log::line(
            Level::Info,
            format_args!("regions are not reused from now on: {why}"),
        );
    }
    errno::set_errno(errno);
}

/// Ends the cache, gives its descriptor number back to the program, and waits until its threads make
/// no system call any more. The reader goes on: memory without a region may still be watched.
pub fn end(cache: &Cache) {
    tasks::give_up_quietly(cache);
    WATCH_FD.close();
    event_reader::wait_to_rest();
}
